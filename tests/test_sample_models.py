"""The sample models."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from autotune.facts import sample_models

FEEDS: dict[str, dict[str, NDArray[Any]]] = {
    "cnn": {"image": np.ones((2, 3, 96, 96), np.float32)},
    "transformer": {
        "input_ids": np.full((2, 7), 999, np.int64),
        "attention_mask": np.ones((2, 7), np.int64),
    },
    "lstm": {"frames": np.ones((5, 2, 16), np.float32), "state": np.zeros((1, 2, 64), np.float32)},
}
SHAPES = {"cnn": [(2, 10)], "transformer": [(2, 64)], "lstm": [(2, 1), (1, 2, 64)]}


@pytest.mark.parametrize("kind", sorted(FEEDS))
def test_a_sample_passes_the_checker_and_runs(kind: str) -> None:
    model = sample_models.KINDS[kind]()
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    outputs = [np.asarray(output) for output in session.run(None, FEEDS[kind])]
    assert [output.shape for output in outputs] == SHAPES[kind]
    assert all(np.isfinite(output).all() for output in outputs)


@pytest.mark.parametrize("kind", sorted(FEEDS))
def test_a_sample_is_the_same_every_time(kind: str) -> None:
    build = sample_models.KINDS[kind]
    assert build().SerializeToString() == build().SerializeToString()
