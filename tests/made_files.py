"""Files as a study makes them of graph parameters, inside the test."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from small_models import distance

from autotune.facts.feeds import Feed, save_samples
from autotune.graph import prepare_child
from autotune.graph.entries import StepRefusedError
from autotune.graph.graph_facts import FILE
from autotune.graph.parameters import shared_passes, steps_of


def make(model: onnx.ModelProto, folder: Path, feeds: Sequence[Feed] = (), **half: Any) -> Path:
    """Returns the file that a study makes of a model.

    Args:
        folder: Where the source, its samples and the file are written.
        half: The graph parameters.

    Raises:
        StepRefusedError: a step refuses the model.
    """
    folder = Path(tempfile.mkdtemp(dir=folder))
    source = folder / "source" / "model.onnx"
    source.parent.mkdir()
    onnx.save(model, source)
    if feeds:
        save_samples(feeds, folder / "samples.npz")
    current = source
    for steps in filter(None, shared_passes(steps_of(half))):
        made = Path(tempfile.mkdtemp(dir=folder))
        copy = Path(tempfile.mkdtemp(dir=folder))
        for file in current.parent.iterdir():
            (copy / file.name).write_bytes(file.read_bytes())
        reply = prepare_child.convert(
            {
                "source": str(copy / current.name),
                "folder": str(made),
                "samples": str(folder / "samples.npz") if feeds else None,
                "shared": None,
                "steps": [[step.name, dict(step.options)] for step in steps],
            }
        )
        if reply.refusal is not None:
            raise StepRefusedError(reply.refusal.message)
        current = made / FILE
    return current


def error_of(model: onnx.ModelProto, made: Path, feeds: Sequence[Feed]) -> float:
    """Returns how far the outputs of a made file are from those of its model."""
    source = made.with_name("source.onnx")
    onnx.save(model, source)
    return distance(source, made, feeds)


def overridable(path: Path) -> set[str]:
    """Returns the names of the inputs of a file that have a default value."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return {item.name for item in session.get_overridable_initializers()}


def run(path: Path, feed: Feed) -> list[Any]:
    """Returns the outputs of a file, its products of eight bits exact on every processor."""
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    outputs: list[Any] = session.run(None, dict(feed))
    return outputs
