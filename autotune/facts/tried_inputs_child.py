"""The child of :mod:`autotune.facts.tried_inputs`: runs a stranger's model on generated inputs."""

from pathlib import Path
from typing import Any

import numpy as np

from autotune.facts.feeds import load_samples
from autotune.facts.model_facts import TriedRun
from autotune.process.child_end import Message, serve

_opened: list[Any] = []


def open_model(message: Message) -> TriedRun:
    """Opens the model in the file ``message["path"]`` as it is, without optimisation."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.log_severity_level = 4
    _opened[:] = [
        onnxruntime.InferenceSession(
            message["path"], settings, providers=["CPUExecutionProvider"], enable_fallback=0
        )
    ]
    return TriedRun()


def run(message: Message) -> TriedRun:
    """Runs the model once on the sample in the file ``message["sample"]``."""
    (feed,) = load_samples(Path(message["sample"]))
    (session,) = _opened
    outputs = session.run(None, feed)
    names = [output.name for output in session.get_outputs()]
    return TriedRun(
        nan=tuple(
            name
            for name, output in zip(names, outputs, strict=True)
            if isinstance(output, np.ndarray)
            and output.dtype.kind == "f"
            and np.isnan(output).any()
        )
    )


if __name__ == "__main__":
    serve({"open": open_model, "run": run})
