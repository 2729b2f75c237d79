"""The user's own metric: a function that they name, called with outputs, references and inputs."""

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.measure.fidelity import Metric, Outputs


def load(name: str) -> Metric:
    """Returns the function ``module:function``; the module may lie in the working directory.

    What it raises, and anything but a finite number, becomes a :class:`RequestError`.

    Raises:
        RequestError: there is no such module or function.
    """
    place, colon, attribute = name.partition(":")
    if not (colon and place and attribute):
        raise RequestError(f"--metric: '{name}' is not of the form MODULE:FUNCTION")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(place), attribute)
    except Exception as error:  # a module may fail in any way while it is loaded
        raise RequestError(f"--metric {name}: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise RequestError(f"--metric {name}: it is no function")

    def judge(
        outputs: Sequence[Outputs], references: Sequence[Outputs], inputs: Sequence[Feed]
    ) -> float:
        try:
            told = float(function(outputs, references, inputs))
        except Exception as error:
            raise RequestError(
                f"--metric {name} failed: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(told):
            raise RequestError(f"--metric {name} gave {told}; it must be a finite number")
        return told

    return judge
