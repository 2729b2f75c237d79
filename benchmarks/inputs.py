"""The inputs of a benchmark's model: NAME_inputs.npz beside NAME.onnx, a folder, or generated ones.

A benchmark that is given no model takes the one that is made here.
"""

from pathlib import Path

import onnx

from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.model import Model
from autotune.facts.workload import Workload, read


def file_beside(path: Path) -> Path | None:
    """Returns the file or folder of inputs that lies beside a model; None if there is none."""
    beside = (path.with_name(f"{path.stem}_inputs{end}") for end in (".npz", ""))
    return next((data for data in beside if data.exists()), None)


def workload_of(path: Path, model: Model) -> Workload:
    """Returns the inputs beside a model, generated if there are none."""
    data = file_beside(path)
    return generate(model, {}) if data is None else read(model, data)


def sample_cnn(folder: Path) -> Path:
    """Writes a small network of separable convolutions and returns its file."""
    path = folder / "cnn.onnx"
    onnx.save(sample_models.separable_cnn(channels=64, size=128, blocks=4), path)
    return path
