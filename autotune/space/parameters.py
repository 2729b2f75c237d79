"""Every parameter that a search space may use, with its values."""

import re
from collections.abc import Iterable, Mapping, Sequence

from autotune.deploy.options import BATCH, Domain, Value
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.space.session import SESSION_PARAMETERS

PARAMETERS: Mapping[str, Domain] = {
    **{name: parameter.domain for name, parameter in GRAPH_PARAMETERS.items()},
    **SESSION_PARAMETERS,
}
"""Parameters of the model's file and of a session, by name."""

CORES: Mapping[str, int] = {"cores": 1, "cores/2": 2, "cores/4": 4}
"""Thread counts that follow the machine: by what the usable cores are divided."""

THREAD_COUNTS = frozenset({"intra_op_num_threads", "inter_op_num_threads"})
"""Parameters that count threads; a file may give them values of :data:`CORES`."""

# Every size costs a file of samples, and runs of the unoptimised model.
_MOST_BATCHES = 16


def batch_problem(sizes: Sequence[object]) -> str | None:
    """Returns why these are no batch sizes of a study; None if they are."""
    for size in sizes:
        if problem := PARAMETERS[BATCH].problem(size):
            return f"a size {problem}"
        if sizes.count(size) > 1:
            return f"{size} is there twice"
    if len(sizes) > _MOST_BATCHES:
        return f"{len(sizes)} sizes are too many; name at most {_MOST_BATCHES}"
    return None


CLIENTS = Domain(low=1, high=256, default=1)
"""How many clients of a study may run at once; a space has one number of them."""


def parse_value(name: str, text: str) -> Value:
    """Returns `text`, as typed on a command line, as a value of the parameter `name`.

    Raises:
        ValueError: it is none of the values that the parameter takes; the message lists them.
    """
    domain = PARAMETERS[name]
    readings: Iterable[Value] = (
        *([text.lower() == "true"] if text.lower() in {"true", "false"} else []),
        *([int(text)] if re.fullmatch("[0-9]{1,12}", text) else []),
        text,
    )
    for value in readings:
        if domain.problem(value) is None:
            return value
    raise ValueError(f"{name} {domain.problem(text)}")
