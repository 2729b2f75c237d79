"""Questions about a model that a process of its own answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from autotune.errors import CannotMeasureError
from autotune.facts.feeds import Feed, save_samples
from autotune.facts.runtime import without_places
from autotune.process.child import Child, ChildFailure, memory_limit

_Answer = TypeVar("_Answer")


def ask(
    module: str,
    message: dict[str, Any],
    model: Path,
    feeds: Sequence[Feed],
    answer: type[_Answer],
    *,
    limit_s: float = 600.0,
    verb: str = "profiled",
) -> _Answer:
    """Returns what a child says of a model, as a record.

    Args:
        message: What it is asked, beside the model and the inputs.
        verb: What cannot be done to the model where it fails.

    Raises:
        CannotMeasureError: the child failed; the message says why.
    """
    with Child(module, memory_limit()) as child:
        samples = child.folder / "samples.npz"
        save_samples(feeds, samples)
        request = {**message, "model": str(model.absolute()), "samples": str(samples)}
        try:
            return child.request(request, limit_s, answer)
        except ChildFailure as failure:
            raise CannotMeasureError(
                f"{model} cannot be {verb}: {without_places(failure.message)}"
            ) from None
