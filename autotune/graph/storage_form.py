"""How a model's weights are stored: it decides how much memory a session holds."""

from pathlib import Path

import onnx
from onnx import external_data_helper

from autotune.graph.passes import LARGEST_PROTO_BYTES, load
from autotune.graph.refusal import StepRefusedError

# Smaller tensors stay in the model: ONNX Runtime needs shapes and axes while it parses.
_SMALLEST_BYTES = 1024


def inline(source: Path, target: Path) -> None:
    """Writes the model with all weights in one file.

    Raises:
        StepRefusedError: a file of protobuf cannot hold them.
    """
    model = load(source)
    if model.ByteSize() > LARGEST_PROTO_BYTES:
        raise StepRefusedError("a model over 2 GiB cannot be one file")
    onnx.save(model, target)


def external_data(source: Path, target: Path) -> None:
    """Writes the weights to a file beside the model, which ONNX Runtime maps and need not copy."""
    model = load(source)
    external_data_helper.convert_model_to_external_data(
        model,
        all_tensors_to_one_file=True,
        location=f"{target.name}.data",
        size_threshold=_SMALLEST_BYTES,
    )
    onnx.save(model, target)
    if not target.with_name(f"{target.name}.data").exists():
        raise StepRefusedError("no weight is large enough to be stored outside")


def prepacked(source: Path, target: Path) -> None:
    """Writes the optimised model with its weights outside, as the kernels want them packed.

    What comes out belongs to this kind of processor and this ONNX Runtime.
    """
    import onnxruntime

    data = f"{target.name}.data"
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4
    settings.optimized_model_filepath = str(target)
    for key, value in {
        "session.optimized_model_external_initializers_file_name": data,
        "session.optimized_model_external_initializers_min_size_in_bytes": str(_SMALLEST_BYTES),
        "session.save_external_prepacked_constant_initializers": "1",
    }.items():
        settings.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(
        source, settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )
    packed = any(
        entry.key.startswith("prepacked")
        for weight in onnx.load(target, load_external_data=False).graph.initializer
        for entry in weight.external_data
    )
    if not packed:
        raise StepRefusedError("ONNX Runtime packs none of its weights")


FORMS = {"inline": inline, "external_data": external_data, "prepacked": prepacked}
"""All storage forms by name."""
