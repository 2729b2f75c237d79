"""The user's metric: a function named on the command line, which judges outputs."""

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.measure.fidelity import Metric, Outputs


def load_metric(name: str) -> Metric:
    """Returns the function ``module:function``; the module may lie in the working directory.

    An error in the function, and a result that is no finite number, become a
    :class:`RequestError`.

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
            value = float(function(outputs, references, inputs))
        except Exception as error:
            raise RequestError(
                f"--metric {name} failed: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(value):
            raise RequestError(f"--metric {name} gave {value}; it must be a finite number")
        return value

    return judge
