"""The metric that is named on the command line: the user's function, or one of autotune's."""

import hashlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from autotune.deploy.files import read_bytes
from autotune.errors import FormatError, RequestError
from autotune.facts.feeds import Feed
from autotune.measure.answers import Metric, Outputs
from autotune.measure.metrics import METRICS
from autotune.search.named_code import load_named

_LARGEST_SOURCE_BYTES = 16 << 20


def load_metric(name: str) -> Metric:
    """Returns the metric of that name in :data:`METRICS`, or the function ``module:function``.

    The module may lie in the working directory.

    An error in the function, and a result that is no finite number, become a
    :class:`RequestError`. The function gets arrays that it cannot write to.

    Raises:
        RequestError: there is no such module or function.
    """
    if name in METRICS:
        return METRICS[name]
    function = load_named("--metric", name, METRICS, "MODULE:FUNCTION")
    if not callable(function):
        raise RequestError(f"--metric {name}: it is no function")

    def judge(
        outputs: Sequence[Outputs], references: Sequence[Outputs], inputs: Sequence[Feed]
    ) -> float:
        try:
            value = float(function(_locked(outputs), _locked(references), _locked(inputs)))
        except Exception as error:
            raise RequestError(
                f"--metric {name} failed: {type(error).__name__}: {error}"
            ) from error
        if not math.isfinite(value):
            raise RequestError(f"--metric {name} gave {value}; it must be a finite number")
        return value

    return judge


def _locked(samples: Sequence[Feed]) -> Sequence[Feed]:
    """Returns samples that the function cannot change: other answers are compared with them too."""
    copies = [{name: array.view() for name, array in sample.items()} for sample in samples]
    for view in (view for copy in copies for view in copy.values()):
        view.flags.writeable = False
    return copies


def source_digest(name: str) -> str:
    """Returns a digest of the file that a metric is written in; empty where there is none.

    An edited function is another metric: its values are not compared with those of the old one.

    Args:
        name: The metric, which :func:`load_metric` has loaded.
    """
    module = sys.modules.get(name.partition(":")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return ""
    try:
        return hashlib.sha256(read_bytes(Path(file), _LARGEST_SOURCE_BYTES)).hexdigest()[:16]
    except FormatError as error:
        raise RequestError(f"--metric {name}: cannot read {file}: {error}") from None
