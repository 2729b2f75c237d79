"""Caches in int8: a quarter of the bytes, in one buffer, with nearly the same answers."""

from pathlib import Path

import decoder_models
import numpy as np
import onnxruntime
import pytest

from autotune.deploy.generation import generation
from autotune.deploy.session import SessionConfig
from autotune.facts.model import describe
from autotune.facts.prompts import workload_of_prompts
from autotune.graph import int8_caches
from autotune.graph.entries import StepRefusedError
from autotune.inspection.profile import profile_session

_PAST = {
    f"past_key_values.0.{n}": (1, decoder_models.HEADS, 0, decoder_models.SIZE)
    for n in ("key", "value")
}
_TOKENS = [3, 17, 42, 9, 60, 1, 33, 8, 20, 5]


@pytest.mark.process
def test_generation_feeds_int8(tmp_path: Path) -> None:
    """One by one the tokens get the logits of the whole text, near those of the float model."""
    source, target = decoder_models.write("gqa", tmp_path / "gqa.onnx"), tmp_path / "int8.onnx"
    workload = workload_of_prompts(describe(source), lengths=(16,), shapes=_PAST)
    int8_caches.quantise(source, target, workload.calibration)
    made = [
        generation(onnxruntime.InferenceSession(path), shapes=_PAST) for path in (source, target)
    ]
    right, whole = (each.start(_TOKENS, 16).copy() for each in made)
    rows = [*made[1].start(_TOKENS[:4], 16).copy(), *(made[1].step(t).copy() for t in _TOKENS[4:])]
    np.testing.assert_allclose(np.stack(rows), whole, rtol=2e-3, atol=2e-3)
    assert 0 < np.abs(whole - right).max() < 0.05 * np.abs(right).max()
    assert made[1].shares
    # the caches of all tokens lie where the first ones did, a quarter as large
    sizes = [sum(value.numpy().nbytes for value in each.mark().values.values()) for each in made]
    assert sizes[0] == 4 * sizes[1]
    # the samples have the caches of the untouched model
    assert profile_session(target, SessionConfig(), workload).executed > 0
    with pytest.raises(StepRefusedError, match="no GroupQueryAttention has float caches"):
        int8_caches.quantise(target, tmp_path / "again.onnx", workload.calibration)


def test_other_attention_is_refused(tmp_path: Path) -> None:
    source = decoder_models.write("plain", tmp_path / "plain.onnx")
    with pytest.raises(StepRefusedError, match="no GroupQueryAttention"):
        int8_caches.quantise(source, tmp_path / "int8.onnx", [])
