"""The inputs of a benchmark's model: NAME_inputs.npz beside NAME.onnx, or generated ones."""

from pathlib import Path

from autotune.facts.model import Model
from autotune.facts.workload import Workload, generate, read


def file_beside(path: Path) -> Path | None:
    """Returns the file of inputs that lies beside a model; None if there is none."""
    data = path.with_name(f"{path.stem}_inputs.npz")
    return data if data.exists() else None


def workload_of(path: Path, model: Model) -> Workload:
    """Returns the inputs beside a model, generated if there are none."""
    data = file_beside(path)
    return generate(model, {}) if data is None else read(model, data)
