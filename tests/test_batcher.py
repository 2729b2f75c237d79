"""Inputs of many lengths become batches of like lengths, and outputs go back to their places."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from autotune.applications.traffic import write_traffic
from autotune.deploy.batcher import Batcher, Batches, batcher
from autotune.errors import ConfigError, RequestError
from autotune.facts import sample_models
from autotune.facts.model import describe

_BATCHES = Batches(axes={"ids": 1, "mask": 1}, sizes=(4, 8), tokens=16)


def _samples(*lengths: int) -> list[dict[str, NDArray[np.generic]]]:
    return [
        {"ids": np.full(length, number + 1), "mask": np.ones(length, np.int64)}
        for number, length in enumerate(lengths)
    ]


def test_samples_of_like_lengths_share_a_batch() -> None:
    """Each is padded with zeros to the next size; what is longer than all sizes is not."""
    shapes = {}
    for numbers, feed in Batcher(_BATCHES).batches(_samples(3, 8, 20, 1, 4, 5, 7, 2, 4)):
        assert feed["ids"].shape == feed["mask"].shape
        assert (feed["ids"].max(axis=1) == np.asarray(numbers) + 1).all()
        shapes[tuple(numbers)] = feed["mask"].shape
        for number, row in zip(numbers, feed["mask"], strict=True):
            assert row.sum() == [3, 8, 20, 1, 4, 5, 7, 2, 4][number]
    assert shapes == {
        (3, 7, 0, 4): (4, 4),
        (8,): (1, 4),
        (5, 6): (2, 8),
        (1,): (1, 8),
        (2,): (1, 20),
    }


def test_sizes_by_the_longest() -> None:
    """At most a fifth of a batch is padding, but for multiples of eight."""
    batches = Batches.for_longest({"ids": 1}, 500)
    assert batches.sizes[-1] == 500
    for size, larger in zip(batches.sizes, batches.sizes[1:], strict=False):
        assert larger <= 1.25 * size + 8
    assert Batches.for_longest({"ids": 1}, 1).sizes == (1,)


def _encoder(folder: Path, *, pools_padding: bool) -> Path:
    """Writes a text encoder that answers the mean of all positions, or the first one."""
    model = sample_models.transformer(width=16, heads=2, layers=1, words=50)
    if not pools_padding:
        last = model.graph.node.pop()
        model.graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
        first = helper.make_node("Gather", [last.input[0], "first"], ["embedding"], axis=1)
        model.graph.node.append(first)
    onnx.save(model, folder / "encoder.onnx")
    return folder / "encoder.onnx"


@pytest.mark.process
@pytest.mark.parametrize("pools_padding", [False, True])
def test_answers_are_those_of_the_samples_alone(pools_padding: bool, tmp_path: Path) -> None:
    """Traffic says how to group where padding is harmless; outputs are in the samples' order."""
    path = _encoder(tmp_path, pools_padding=pools_padding)
    lengths = tmp_path / "lengths.json"
    lengths.write_text(json.dumps({"dimension": "sequence", "lengths": [3, 30, 7]}))
    is_harmless = write_traffic(describe(path), lengths, tmp_path / "out" / "traffic")
    assert is_harmless is not pools_padding
    if pools_padding:
        with pytest.raises(ConfigError, match=r"batches\.json"):
            batcher(tmp_path / "out" / "best.json")
        return
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    chance = np.random.default_rng(0)
    samples = [
        {"input_ids": chance.integers(0, 50, n), "attention_mask": np.ones(n, np.int64)}
        for n in (3, 30, 7, 12, 30, 1)
    ]
    found = batcher(tmp_path / "out" / "best.json").run(session, samples)
    for sample, outputs in zip(samples, found, strict=True):
        alone = session.run(None, {name: array[None] for name, array in sample.items()})
        np.testing.assert_allclose(np.asarray(outputs[0], np.float32), alone[0][0], 1e-3, 1e-4)


@pytest.mark.parametrize(
    ("data", "phrase"),
    [
        (None, "--traffic"),
        ({"format": "autotune-batches/1", "axes": {"x": 0}, "sizes": [1], "tokens": 1}, "batch"),
        ({"format": "else", "axes": {"x": 1}, "sizes": [1], "tokens": 1}, "format"),
        ({"format": "autotune-batches/1", "axes": {"x": 1}, "sizes": [0], "tokens": 1}, "sizes"),
    ],
)
def test_a_wrong_file_is_refused(data: Any, phrase: str, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "batches.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=phrase):
        batcher(tmp_path / "best.json")


def test_a_wrong_sample_is_named() -> None:
    whole = _samples(3)[0]
    with pytest.raises(RequestError, match="sample 0"):
        list(Batcher(_BATCHES).batches([{"ids": whole["ids"]}]))
    with pytest.raises(RequestError, match="lengths"):
        list(Batcher(_BATCHES).batches([{**whole, "mask": np.ones(4)}]))
