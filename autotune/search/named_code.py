"""Code of the user that an option names as ``MODULE:NAME``."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autotune.errors import RequestError


def load_named(option: str, name: str, known: Iterable[str], form: str) -> Any:
    """Returns what `name` names in a module, which may lie in the working directory.

    Args:
        option: The option that names it, as typed.
        known: The names that the option takes beside it.
        form: The form of `name`, in words.

    Raises:
        RequestError: `name` has another form, or there is no such module or name.
    """
    place, colon, attribute = name.partition(":")
    if not (colon and place and attribute):
        raise RequestError(
            f"{option}: '{name}' is none of {', '.join(known)}, and not of the form {form}"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(place), attribute)
    except Exception as error:  # a module may fail in any way while it is loaded
        raise RequestError(f"{option} {name}: {type(error).__name__}: {error}") from error
