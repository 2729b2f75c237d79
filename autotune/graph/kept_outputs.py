"""A model with some of its outputs, and without what served the others alone."""

from pathlib import Path

import onnx

from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import remove_unneeded, save


def keep(source: Path, target: Path, *, outputs: str) -> None:
    """Writes the model with these outputs, whose names are separated by commas.

    Its inputs stay, also those that nothing takes any more: callers give them.

    Raises:
        StepRefusedError: the model has no such output.
    """
    model = onnx.load(source)
    names = outputs.split(",")
    kept = [item for item in model.graph.output if item.name in names]
    if len(kept) < len(names):
        raise StepRefusedError(f"the model has not all of the outputs {', '.join(names)}")
    del model.graph.output[:]
    model.graph.output.extend(kept)
    remove_unneeded(model.graph)
    save(model, target)
