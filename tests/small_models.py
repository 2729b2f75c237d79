"""Small models for tests of the graph parameters, and how far their answers are apart."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from autotune.facts import sample_models
from autotune.facts.feeds import Feed
from autotune.facts.generated import generate
from autotune.facts.model import describe

BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    "cnn": lambda: sample_models.cnn(channels=8, size=16, blocks=2),
    "transformer": lambda: sample_models.transformer(width=32, heads=2, layers=1, words=50),
    "lstm": lambda: sample_models.lstm(features=4, width=8),
}


def write(kind: str, folder: Path) -> tuple[Path, tuple[Feed, ...]]:
    """Writes a model of that kind; returns its file and samples for it."""
    path = folder / f"{kind}.onnx"
    onnx.save(BUILDERS[kind](), path)
    return path, generate(describe(path), {}).feeds


def distance(first: Path, second: Path, feeds: Sequence[Feed]) -> float:
    """Returns the largest relative L2 distance of an output of the two models."""
    settings = onnxruntime.SessionOptions()
    # products of eight bits saturate on x86 without VNNI, unless they are computed exactly, which
    # is one of ONNX Runtime's extended optimisations
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    settings.add_session_config_entry("session.x64quantprecision", "1")
    sessions = [
        onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        for path in (first, second)
    ]
    worst = 0.0
    for feed in feeds:
        for x, y in zip(*(s.run(None, dict(feed)) for s in sessions), strict=True):
            size = float(np.linalg.norm(x)) or 1.0
            worst = max(worst, float(np.linalg.norm(np.asarray(x, np.float64) - y)) / size)
    return worst
