"""Answers beside other samples of a batch, and in padded sequences."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import made_results
import numpy as np
import onnx
import pytest
from factories import normal, save_onnx
from fakes import FakeWorld
from onnx import TensorProto, helper

from autotune.deploy.session import SessionConfig
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload
from autotune.graph import int8
from autotune.measure.companions import cases_of
from autotune.measure.judging import AllSamples, JudgedConfiguration, Judgement
from autotune.report.remarks import judgement_remarks
from autotune.report.view import Line
from autotune.space.configuration import Configuration
from autotune.study.judging import JudgeOnAllSamples

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore")]

_WIDTH = 16


@pytest.fixture
def model(tmp_path: Path) -> Model:
    """A text model: it multiplies tokens by a matrix, and hides those that a mask hides."""
    path = save_onnx(
        tmp_path / "tokens.onnx",
        "[product] product = MatMul (tokens, weight) [column] column = Unsqueeze (mask, last) "
        "[hide] answer = Mul (product, column)",
        {"weight": normal(1, _WIDTH, _WIDTH), "last": np.asarray([2], np.int64)},
        x=f"float[batch,length,{_WIDTH}] tokens, float[batch,length] mask",
        y=f"float[batch,length,{_WIDTH}] answer",
    )
    return describe(path)


@pytest.fixture
def workload() -> Workload:
    """Samples of very different sizes, none of which is around zero."""
    random = np.random.default_rng(2)
    feeds = tuple(
        {
            "tokens": ((1 + random.random((1, 3, _WIDTH))) * 2.0**i).astype(np.float32),
            "mask": np.ones((1, 3), np.float32),
        }
        for i in range(8)
    )
    return Workload(feeds=feeds, source="user", notes=())


def _judged(model: Model, workload: Workload, path: Path, max_error: float = 1.0) -> Judgement:
    samples = AllSamples(
        model=model,
        workload=workload,
        metric=None,
        max_drop=None,
        max_error=max_error,
        cases=cases_of(model, workload, {}),
        limit_s=60.0,
    )
    return samples.judge(
        JudgedConfiguration(trial=7, words="int8", path=path, config=SessionConfig())
    )


def _differences(judgement: Judgement) -> Sequence[float | None]:
    return [item.difference for item in judgement.companions]


def test_dynamic_int8_is_reported_with_the_difference(
    model: Model, workload: Workload, tmp_path: Path
) -> None:
    """A small sample beside a large one loses its digits; padding changes no scale here."""
    int8.dynamic(model.path, tmp_path / "int8.onnx", workload.feeds)
    judgement = _judged(model, workload, tmp_path / "int8.onnx")
    batched, padded = judgement.companions
    assert (batched.batch, padded.padding) == (4, 8)
    assert batched.difference is not None
    assert batched.difference > 0.01
    result = made_results.result(judgements=(judgement,))
    (line,) = judgement_remarks(result)
    assert isinstance(line, Line)
    assert (
        f"in batches of 4 with other samples they differ by {batched.difference:.1g}" in line.text
    )


def test_the_difference_is_limited(model: Model, workload: Workload, tmp_path: Path) -> None:
    int8.dynamic(model.path, tmp_path / "int8.onnx", workload.feeds)
    judgement = _judged(model, workload, tmp_path / "int8.onnx", max_error=0.001)
    assert (judgement.decision, judgement.admitted) == ("beyond", False)
    assert "depend on what else" in judgement.reason


def test_static_int8_does_not_depend_on_companions(
    model: Model, workload: Workload, tmp_path: Path
) -> None:
    """Its scales are those of calibration; nothing is reported of it, nor of floats."""
    int8.static(model.path, tmp_path / "int8.onnx", workload.feeds)
    for path in (tmp_path / "int8.onnx", model.path):
        judgement = _judged(model, workload, path, max_error=0.001)
        assert judgement.admitted
        assert max(d for d in _differences(judgement) if d is not None) < 1e-5
        assert not list(judgement_remarks(made_results.result(judgements=(judgement,))))


def test_a_model_that_counts_padding_is_judged_by_its_error(
    model: Model, workload: Workload, tmp_path: Path
) -> None:
    proto = onnx.load(model.path)
    proto.graph.node.append(
        helper.make_node("ReduceMean", ["answer"], ["mean"], axes=[1], keepdims=0)
    )
    del proto.graph.output[:]
    proto.graph.output.append(
        helper.make_tensor_value_info("mean", TensorProto.FLOAT, ["batch", _WIDTH])
    )
    onnx.save(proto, tmp_path / "mean.onnx")
    mean = describe(tmp_path / "mean.onnx")
    judgement = _judged(mean, workload, mean.path)
    batched, padded = judgement.companions
    assert batched.difference is not None
    assert padded.difference is None
    assert padded.error < 1e-5


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("max_error", "words"), [(0.001, "the default"), (0.9, "int8 dynamic")])
def test_a_study_selects_none_that_depends_on_batch_mates_beyond_the_limit(
    model: Model, workload: Workload, tmp_path: Path, max_error: float, words: str
) -> None:
    """The measurer of this study finds it right and fast; alone, it is."""
    for number, feed in enumerate(workload.feeds):
        samples: dict[str, Any] = dict(feed)
        (tmp_path / "data").mkdir(exist_ok=True)
        np.savez(tmp_path / "data" / f"{number}.npz", **samples)

    def cost(configuration: Configuration) -> tuple[float, float]:
        return (5.0, 90.0) if configuration.graph.values else (10.0, 100.0)

    result = FakeWorld(cost).tune(
        model.path,
        space="quantize",
        fix={"precision": "int8_dynamic", "weight_storage": "inline"},
        trials=3,
        max_error=max_error,
        data=tmp_path / "data",
        out=tmp_path / "out",
        seams={"judge": JudgeOnAllSamples},
    )
    assert words in result.best.words
    assert result.judgements[0].admitted == (max_error == 0.9)
