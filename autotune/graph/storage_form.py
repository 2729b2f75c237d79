"""How a model's weights are stored, which decides how much memory a session holds.

To add a storage form, write its function and its entry in :data:`STORAGE_FORMS`.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from autotune.graph.entries import Step, StepRefusedError

# Smaller tensors stay in the model: ONNX Runtime needs shapes and axes while it parses.
_SMALLEST_BYTES = 1024
_ALIGNED_BYTES = 64  # what the matrix kernels of MLAS read at once
_BLOCKS = re.compile(r"\|([0-9]+);([0-9]+)")


def _external_data(source: Path, target: Path) -> None:
    """Writes the weights to a file beside the model, which ONNX Runtime maps instead of copying."""
    import onnx
    from onnx import external_data_helper, numpy_helper

    from autotune.facts.graphs import all_weights

    if _is_stored_outside(source, target.name):
        for name in (target.name, f"{target.name}.data"):
            shutil.copyfile(source.with_name(name), target.with_name(name))
        return
    model = onnx.load(source)
    for tensor in all_weights(model.graph):
        # some exporters write one field for each number, which onnx does not move to a file
        if not tensor.HasField("raw_data") and tensor.data_type != onnx.TensorProto.STRING:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))
    external_data_helper.convert_model_to_external_data(
        model,
        all_tensors_to_one_file=True,
        location=f"{target.name}.data",
        size_threshold=_SMALLEST_BYTES,
    )
    onnx.save(model, target)
    if not target.with_name(f"{target.name}.data").exists():
        raise StepRefusedError("no weight is large enough to be stored outside")


def _is_stored_outside(source: Path, name: str) -> bool:
    """Returns whether all large weights lie in one file of that name already, which is copied.

    A large model is written so, and must not be in memory as a whole.
    """
    import onnx

    from autotune.facts.graphs import all_weights
    from autotune.graph.model_file import data_file

    if source.name != name:
        return False
    weights = list(all_weights(onnx.load(source, load_external_data=False).graph))
    files = [data_file(item) for item in weights if item.ByteSize() > _SMALLEST_BYTES]
    outside = {data_file(item) for item in weights} - {None}
    return outside == {f"{name}.data"} and None not in files


def _prepacked(source: Path, target: Path) -> None:
    """Writes the optimised model with its weights outside, packed as the kernels read them.

    ONNX Runtime knows packed weights by their contents: on another kind of processor, or in
    another version, whose kernels pack in another way, it packs again and computes the same.
    """
    import onnx

    from autotune.facts.graphs import all_weights
    from autotune.graph.model_file import DATA_FILE, write_optimised

    entries = {
        DATA_FILE: f"{target.name}.data",
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_SMALLEST_BYTES),
        "session.save_external_prepacked_constant_initializers": "1",
    }
    write_optimised(source, target, "ORT_ENABLE_EXTENDED", entries)
    model = onnx.load(target, load_external_data=False)
    packed = [
        (weight, entry)
        for weight in all_weights(model.graph)
        for entry in weight.external_data
        if entry.key.startswith("prepacked")
    ]
    # an entry names its kernel and then offset;length;... of each block of bytes
    blocks = [_BLOCKS.findall(entry.value) for _, entry in packed]
    if any(int(offset) % _ALIGNED_BYTES for entry in blocks for offset, _ in entry):
        raise StepRefusedError(
            "this version of ONNX Runtime does not align packed weights in the file, and its "
            "kernels end in a segmentation fault on them; 1.32 aligns them"
        )
    # ONNX Runtime writes an empty block for int8 depthwise convolutions, and cannot read it again;
    # such a weight is packed when the session is created
    unread = [
        (weight, entry)
        for (weight, entry), lengths in zip(packed, blocks, strict=True)
        if not all(int(length) for _, length in lengths)
    ]
    if len(unread) == len(packed):
        raise StepRefusedError("ONNX Runtime packs none of its weights")
    for weight, entry in unread:
        weight.external_data.remove(entry)
    if unread:
        onnx.save(model, target)


EXTERNAL_DATA = "external_data"
"""The form that a model with external data keeps where no other one is chosen."""

STORAGE_FORMS: Mapping[str, Step] = {
    EXTERNAL_DATA: Step(run=_external_data, words="external data"),
    "prepacked": Step(run=_prepacked, words="weights pre-packed in external data"),
}
"""All storage forms by name but the default, ``inline``: weights in the model's own file."""
