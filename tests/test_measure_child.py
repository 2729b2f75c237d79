"""The measuring child: what it imports, and what it reports of a session."""

import math
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.facts.feeds import load_samples, save_samples
from autotune.measure import measure_child, memory
from autotune.measure.clients import Burst
from autotune.measure.measure_child import Worker
from autotune.measure.replies import FirstRuns, Opened, SliceTimes


@pytest.fixture
def message(tmp_path: Path) -> dict[str, object]:
    """The message that opens a small model with two samples."""
    model, samples = tmp_path / "cnn.onnx", tmp_path / "samples.npz"
    sample_models.write("cnn", model)
    save_samples([{"image": np.full((1, 3, 96, 96), i, np.float32)} for i in (1, 2)], samples)
    return {
        "model": str(model),
        "samples": str(samples),
        "session": SessionConfig().to_json(),
        "one_shape": True,
        "history": 0,
        "process": None,
    }


def test_it_reports_each_phase(message: dict[str, object], tmp_path: Path) -> None:
    worker = Worker()
    opened = worker.open(message)
    assert isinstance(opened, Opened)
    assert opened.loaded.peak_mib >= opened.base.resident_mib > 0
    runs = worker.first_runs({})
    assert isinstance(runs, FirstRuns)
    assert runs.run_ms > 0
    held = worker.held({})
    assert isinstance(held, memory.Usage)
    assert held.resident_mib > 0
    worker.answers({"samples": message["samples"], "to": str(tmp_path / "outputs.npz")})
    outputs = load_samples(tmp_path / "outputs.npz")
    assert [output["logits"].shape for output in outputs] == [(1, 10), (1, 10)]


def test_a_peak_that_is_not_reset_is_said(
    message: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Worker().open(message).peak_was_reset
    monkeypatch.setattr(memory, "reset_peak", lambda: False)
    assert not Worker().open(message).peak_was_reset


def test_a_slice_leaves_cold_runs_out(message: dict[str, object]) -> None:
    worker = Worker()
    worker.open(message)
    worker.first_runs({})
    time_slice = worker.time_slice({"seconds": 0.0, "unrecorded_runs": 2, "fewest_runs": 3})
    assert isinstance(time_slice, SliceTimes)
    assert len(time_slice.run_ns) == 3
    assert min(time_slice.run_ns) > 0


@pytest.mark.parametrize(
    ("session", "clients", "rounds"),
    [
        (SessionConfig(), 1, 5),
        (SessionConfig(options={"enable_cpu_mem_arena": False}), 1, 20),
        (SessionConfig(run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"}), 1, 20),
        (SessionConfig(), 2, 20),
    ],
)
def test_first_runs_end_where_later_ones_allocate_nothing(
    message: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    session: SessionConfig,
    clients: int,
    rounds: int,
) -> None:
    """Twenty runs of a slow model would be half of the time of a trial."""
    monkeypatch.setattr(measure_child, "_SETTLED_MEMORY_S", 0.0)
    monkeypatch.setattr(measure_child, "_MEMORY_S", math.inf)
    worker = Worker()
    worker.open({**message, "session": session.to_json(), "clients": clients})
    with patch.object(worker, "_run_of_all", wraps=worker._run_of_all) as run:
        worker.first_runs({})
    assert run.call_count == rounds


@pytest.mark.parametrize("sessions", [1, 2])
def test_several_clients_run_at_once(message: dict[str, object], sessions: int) -> None:
    worker = Worker()
    opened = worker.open({**message, "clients": 2, "sessions": sessions})
    runs = worker.first_runs({})
    assert runs.after.peak_mib >= opened.base.resident_mib
    burst = worker.burst({"seconds": 0.0, "unrecorded_runs": 1, "fewest_runs": 2})
    assert isinstance(burst, Burst)
    assert burst.clients == 2
    assert min(burst.client.count(0), burst.client.count(1)) >= 2


def test_a_run_of_a_client_goes_over_samples_of_several_shapes(message: dict[str, object]) -> None:
    worker = Worker()
    worker.open({**message, "one_shape": False, "clients": 2})
    burst = worker.burst({"seconds": 0.0, "unrecorded_runs": 0, "fewest_runs": 1})
    assert burst.runs_per_call == 2
