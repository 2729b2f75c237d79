"""A model whose inputs have the shapes of the samples, so that all later steps see static shapes.

The written file keeps these shapes: a later step may fold a size into a constant, and a model with
the old names would then claim to take sizes for which its answers are wrong. ONNX Runtime refuses
an input of another shape, and names the input and both sizes.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx

from autotune.facts.feeds import Feed
from autotune.graph.distance import open_exactly
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import is_large, refill, save


def fix(source: Path, target: Path, samples: Sequence[Feed], *, shared: Any = None) -> None:
    """Writes the model with the shapes that its inputs have in `samples`.

    Raises:
        StepRefusedError: the samples have several shapes, the model's are fixed already, or it
            cannot be opened with these: a branch that is not taken may be for other ones.
    """
    del shared
    model = onnx.load(source)
    changed = [_fix_input(item, samples) for item in model.graph.input if item.name in samples[0]]
    if not any(changed):
        raise StepRefusedError("the shapes of the model's inputs are fixed already")
    # what was inferred with open dimensions would contradict what is inferred now
    refill(model.graph.value_info, [])
    for item in model.graph.output:
        _open(item)
    if not is_large(model):
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    save(model, target)
    try:
        open_exactly(str(target))
    except Exception as error:
        raise StepRefusedError(f"the model cannot be opened with these shapes: {error}") from error


def _fix_input(item: onnx.ValueInfoProto, samples: Sequence[Feed]) -> bool:
    """Gives an input the shape of the samples; returns whether a dimension of it was open."""
    shapes = {sample[item.name].shape for sample in samples}
    if len(shapes) > 1:
        raise StepRefusedError(f"the samples of the input {item.name} have several shapes")
    shape = shapes.pop()
    own = item.type.tensor_type.shape
    fixed = item.type.tensor_type.HasField("shape") and all(
        dimension.HasField("dim_value") for dimension in own.dim
    )
    if not fixed:
        del own.dim[:]
        item.type.tensor_type.shape.SetInParent()
        for size in shape:
            own.dim.add().dim_value = size
    return not fixed


def _open(item: onnx.ValueInfoProto) -> None:
    """Removes the names of an output's dimensions, so that inference can give them sizes."""
    for dimension in item.type.tensor_type.shape.dim:
        if not dimension.HasField("dim_value"):
            dimension.Clear()
