"""The real measurer on a tiny model: kinds of outcomes and processes, never times."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from factories import onnx_model
from test_config import make_config
from test_loader import write_config

from autotune.deploy.config import Coverage
from autotune.deploy.records import from_plain, to_plain
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.facts.batches import Batching
from autotune.facts.generated import generate
from autotune.facts.model import Model, describe
from autotune.measure.answers import OutputJudge, Outputs
from autotune.measure.configuration_run import ConfigurationRun
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Failure, Fidelity, Measurement
from autotune.space.configuration import BASELINE, Configuration

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

_SHORT = Effort(time_cap_s=0.05, patience_s=0.2, half_width=1.0)


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return describe(tiny_model)


@pytest.fixture(scope="module")
def measurer(model: Model) -> Iterator[DuetMeasurer]:
    opened = DuetMeasurer(model, generate(model, {}), max_error=0.05)
    yield opened
    opened.close()


def _references(measurer: DuetMeasurer) -> Sequence[Outputs]:
    judge = measurer._sets[1].judge
    assert isinstance(judge, OutputJudge)
    return judge._references


def _children() -> set[int]:
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if child.status() != psutil.STATUS_ZOMBIE
    }


def test_a_measurement_is_whole(measurer: DuetMeasurer) -> None:
    outcome = measurer.measure(BASELINE, _SHORT)
    assert isinstance(outcome, Measurement)
    assert 0 < outcome.ratio.low <= outcome.ratio.value <= outcome.ratio.high
    assert outcome.latency_ms == pytest.approx(outcome.ratio.value * measurer.reference_ms)
    assert outcome.peak_memory_mib > 0
    assert outcome.memory.base_mib > 1
    assert 0 <= outcome.fidelity.error < 1e-3
    assert outcome.fidelity.coverage == Coverage(
        samples=4, share=1.0, constant_outputs=(), repeat_error=0.0
    )
    assert outcome.runs >= outcome.turns >= 3
    assert 0 <= outcome.undisturbed_turns <= outcome.turns
    assert math.isfinite(outcome.cpu_s)
    assert from_plain(Measurement, to_plain(outcome)) == outcome


def test_wrong_answers_are_not_timed(
    measurer: DuetMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    doubled = [{name: 2 * a for name, a in feed.items()} for feed in _references(measurer)]
    monkeypatch.setattr(measurer._sets[1].judge, "_references", doubled)
    outcome = measurer.measure(BASELINE, _SHORT)
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.phase) == ("wrong_answers", "answers")
    assert outcome.error == pytest.approx(0.5, rel=1e-3)
    monkeypatch.setattr(measurer, "_timed_error", 0.6)
    outcome = measurer.measure(BASELINE, _SHORT)
    assert isinstance(outcome, Measurement)
    assert outcome.fidelity.error == pytest.approx(0.5, rel=1e-3)


def test_answers_are_compared_once_where_that_is_enough(
    measurer: DuetMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = replace(_SHORT, compares_answers=False)
    first = measurer.measure(BASELINE, _SHORT)
    assert isinstance(first, Measurement)
    doubled = [{name: 2 * a for name, a in feed.items()} for feed in _references(measurer)]
    monkeypatch.setattr(measurer._sets[1].judge, "_references", doubled)
    second = measurer.measure(BASELINE, once)
    assert isinstance(second, Measurement)
    assert second.fidelity == first.fidelity
    assert isinstance(measurer.measure(BASELINE, _SHORT), Failure)
    assert isinstance(measurer.measure(Configuration.of({"arena": "off"}), once), Failure)


def test_another_interface_is_wrong_whatever_the_answers(tmp_path: Path) -> None:
    """An application may feed inputs by their places, and give a value to an optional one."""
    added = onnx_model("c = Sub(a, b) y = Add(c, d)", x="float[4] a, float[4] b, float[4] d")
    added.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(4, np.float32), "d"))
    onnx.save(added, tmp_path / "m.onnx")
    inputs = list(added.graph.input)
    files = {"order": [inputs[1], inputs[0], inputs[2]], "optional": inputs[:2], "same": inputs}
    for name, items in files.items():
        other = onnx.ModelProto.FromString(added.SerializeToString())
        del other.graph.input[:]
        other.graph.input.extend(items)
        onnx.save(other, tmp_path / f"{name}.onnx")
    model = describe(tmp_path / "m.onnx")
    with closing(DuetMeasurer(model, generate(model, {}), max_error=0.05)) as opened:
        for name in files:
            path = tmp_path / f"{name}.onnx"
            outcome = opened.measure_session(path, SessionConfig(), _SHORT, name=name)
            if name == "same":
                assert isinstance(outcome, Measurement)
            else:
                assert isinstance(outcome, Failure)
                assert outcome.kind == "wrong_answers"
                assert name in outcome.message


def test_weights_that_are_inputs_may_become_constants(tmp_path: Path) -> None:
    """As an exporter makes all of them, and nobody means to feed one."""
    model = onnx_model("y = MatMul(a, w)", x="float[2,4] a, float[4,3] w")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    del model.graph.input[1]
    onnx.save(model, tmp_path / "made.onnx")
    source = describe(tmp_path / "m.onnx")
    with closing(DuetMeasurer(source, generate(source, {}), max_error=0.05)) as opened:
        made = opened.measure_session(tmp_path / "made.onnx", SessionConfig(), _SHORT)
    assert isinstance(made, Measurement)


def test_a_refused_model_is_a_failure(measurer: DuetMeasurer, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x08\x08this is no model")
    outcome = measurer.measure_session(damaged, SessionConfig(), _SHORT)
    assert isinstance(outcome, Failure)
    assert (outcome.kind, outcome.phase) == ("refused", "open")
    assert isinstance(measurer.measure(BASELINE, _SHORT), Measurement)


def test_renewing_takes_another_process(measurer: DuetMeasurer) -> None:
    """The process of the next measurement imports its packages meanwhile."""
    (before,) = _children()
    measurer.renew()
    after = _children()
    assert before not in after
    assert len(after) == 2
    assert isinstance(measurer.measure(BASELINE, _SHORT), Measurement)


def test_each_round_has_another_history_of_the_heap(
    measurer: DuetMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    histories: list[int] = []

    def refuse(*arguments: Any) -> Failure:
        histories.append(arguments[4])
        return Failure(kind="refused", phase="open", message="not today")

    monkeypatch.setattr(ConfigurationRun, "open", refuse)
    for _ in range(2):
        measurer.measure(BASELINE, _SHORT)
        measurer.measure(BASELINE, _SHORT)
        measurer.renew()
    assert np.diff(histories).tolist() == [0, 1, 0]


def test_close_leaves_nothing(model: Model) -> None:
    """And the known time of the reference is kept."""
    before = _children()
    opened = DuetMeasurer(model, generate(model, {}), max_error=0.05, reference_ms=123.0)
    assert opened.reference_ms == 123.0
    opened.measure(BASELINE, _SHORT)
    assert len(_children() - before) == 1
    opened.close()
    assert _children() <= before
    assert not opened._sets[1].files.timing.exists()
    opened.close()


def test_a_model_that_does_not_run_cannot_be_measured(model: Model, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(b"\x08\x08this is no model")
    before = _children()
    with pytest.raises(CannotMeasureError, match=r"damaged\.onnx does not run on these inputs"):
        DuetMeasurer(replace(model, path=damaged), generate(model, {}), max_error=0.05)
    assert _children() <= before


def test_an_emitted_config_is_judged_as_an_application_loads_it(
    measurer: DuetMeasurer, model: Model
) -> None:
    """Its answers are compared; files and machine are checked strictly, in a process that ends."""
    config = write_config(model.path, make_config(session=SessionConfig()))
    before = _children()
    fidelity = measurer.answers_of(config)
    assert isinstance(fidelity, Fidelity)
    assert fidelity.error < 1e-3
    assert fidelity.coverage is not None
    data = json.loads(config.read_text("utf-8"))
    data["model"]["sha256"] = "0" * 64
    config.write_text(json.dumps(data), encoding="utf-8")
    failure = measurer.answers_of(config)
    assert isinstance(failure, Failure)
    assert failure.kind == "refused"
    assert "is not the file that was tuned" in failure.message
    assert _children() <= before


def test_configurations_are_measured_in_their_batches(model: Model) -> None:
    workload = generate(model, {})
    batching = Batching.of(model, workload, [1, 4])
    opened = DuetMeasurer(model, workload, max_error=0.05, batching=batching)
    try:
        single = opened.measure(BASELINE, _SHORT)
        batched = opened.measure(Configuration.of({"batch": 4, "fixed_dimensions": True}), _SHORT)
        failed = opened.measure_session(
            model.path, SessionConfig(free_dimensions={"batch": 1}), _SHORT, batch=4
        )
    finally:
        opened.close()
    assert isinstance(single, Measurement)
    assert isinstance(batched, Measurement)
    assert (single.batch, batched.batch) == (1, 4)
    assert batched.sample_ms == batched.latency_ms / 4
    assert batched.throughput_per_s == pytest.approx(4e3 / batched.latency_ms)
    assert batched.fidelity.error < 1e-3
    assert batched.fidelity.coverage is not None
    assert batched.fidelity.coverage.samples == len(workload.validation)
    assert isinstance(failed, Failure)
    assert failed.kind == "refused"


def test_several_clients_are_measured_on_every_kind_of_sessions(model: Model) -> None:
    before = _children()
    opened = DuetMeasurer(model, generate(model, {}), max_error=0.05, clients=2)
    try:
        for sessions in ("shared", "per_client"):
            configuration = Configuration.of({"sessions": sessions, "intra_op_num_threads": 1})
            outcome = opened.measure(configuration, _SHORT)
            assert isinstance(outcome, Measurement), outcome
            assert outcome.clients == 2
            assert outcome.throughput_per_s == pytest.approx(2e3 / outcome.latency_ms)
            assert outcome.mean_ms is not None
            assert outcome.runs >= 4 * min(
                outcome.turns, outcome.undisturbed_turns or outcome.turns
            )
    finally:
        opened.close()
    assert _children() == before
