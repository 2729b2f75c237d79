"""Faults of a measuring process: each a typed outcome with its phase, and the study goes on."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from brief_studies import workers_of

from autotune.facts.generated import generate
from autotune.facts.model import Model, describe
from autotune.measure.configuration_run import TimeLimits
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Failure, Measurement
from autotune.process import scratch
from autotune.process.child import memory_limit
from autotune.space.configuration import BASELINE

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

_SHORT = Effort(time_cap_s=0.02, patience_s=0.05, half_width=1.0)
_PHASES = {
    "open": "open",
    "first_runs": "run",
    "answers": "answers",
    "held": "turns",
    "slice": "turns",
}


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return describe(tiny_model)


@pytest.fixture(scope="module")
def measurer(model: Model) -> Iterator[DuetMeasurer]:
    """A measurer whose workers misbehave when told to."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("autotune.measure.measurer._WORKER", "faulty_worker")
        patched.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        opened = DuetMeasurer(model, generate(model, {}), max_error=0.05)
        yield opened
        opened.close()


Inject = Callable[..., Failure]


def _held() -> tuple[object, int, int]:
    """Returns the processes, descriptors and threads that the measurer holds."""
    return (
        workers_of(scratch.root()),
        psutil.Process().num_fds(),
        threading.active_count(),
    )


@pytest.fixture
def inject(measurer: DuetMeasurer) -> Iterator[Inject]:
    """Gives a function that measures with a fault, which nobody but that configuration notices."""
    plan = scratch.root() / "fault.json"

    def measure(do: str, fault: str, **more: object) -> Failure:
        plan.write_text(json.dumps({"do": do, "fault": fault, **more}), encoding="utf-8")
        before = _held()
        outcome = measurer.measure(BASELINE, _SHORT)
        plan.unlink()
        assert isinstance(outcome, Failure)
        assert outcome.phase == _PHASES[do]
        assert _held() == before
        assert measurer._reference is not None
        assert measurer._reference.is_running()
        return outcome

    yield measure
    plan.unlink(missing_ok=True)


@pytest.mark.parametrize("do", _PHASES)
def test_a_crash_is_told_with_its_phase(inject: Inject, do: str) -> None:
    outcome = inject(do, "segfault")
    assert outcome.kind == "crashed"
    assert outcome.message.startswith("SIGSEGV")


@pytest.mark.parametrize(
    ("do", "limits"),
    [("open", TimeLimits(load_s=1.0, run_s=60.0)), ("slice", TimeLimits(load_s=60.0, run_s=0.5))],
    ids=["open", "slice"],
)
def test_a_hang_is_a_timeout(
    inject: Inject,
    measurer: DuetMeasurer,
    monkeypatch: pytest.MonkeyPatch,
    do: str,
    limits: TimeLimits,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(measurer, "_limits", limits)
        assert inject(do, "hang").kind == "timeout"


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux does it")
def test_too_much_memory(inject: Inject, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("autotune.measure.measurer.memory_limit", lambda: 512)
        assert inject("first_runs", "allocate", mib=1024).kind == "out_of_memory"


def test_the_limit_is_below_what_is_free() -> None:
    assert memory_limit() < 0.9 * (psutil.virtual_memory().available >> 20)


_LIES: list[tuple[str, dict[str, object]]] = [
    ("open", {"base": {"resident_mib": -1, "peak_mib": 1, "anonymous_mib": None}}),
    ("first_runs", {"run_ms": 0}),
    ("held", {"resident_mib": [1]}),
    ("slice", {"run_ns": [1, 0]}),
]


@pytest.mark.parametrize(("do", "fields"), _LIES, ids=range(len(_LIES)))
def test_numbers_that_cannot_be(inject: Inject, do: str, fields: dict[str, object]) -> None:
    outcome = inject(do, "lie", fields=fields, without=[])
    assert outcome.kind == "protocol"
    assert next(iter(fields)) in outcome.message


@pytest.mark.parametrize(
    ("fault", "more"),
    [
        ("no_file", {}),
        ("pipe", {}),
        ("other_file", {"text": ""}),
        ("other_file", {"text": "PK\x03\x04 this is no archive"}),
    ],
)
def test_outputs_that_cannot_be_read(inject: Inject, fault: str, more: dict[str, str]) -> None:
    """Outputs that are missing, or are something else, are no outputs; older ones do not count."""
    assert inject("answers", fault, **more).kind == "protocol"


def test_a_reference_that_dies_in_a_duet_is_started_again(measurer: DuetMeasurer) -> None:
    plan = scratch.root() / "fault.json"
    fault = {"do": "slice", "fault": "segfault", "after": 2}
    plan.write_text(json.dumps(fault), encoding="utf-8")
    measurer._running_reference().renew()  # alone: the next process would have the fault too
    plan.unlink()
    assert measurer._reference is not None
    before = measurer._reference.pid
    assert isinstance(measurer.measure(BASELINE, _SHORT), Measurement)
    assert measurer._reference.pid != before


def test_a_reference_that_keeps_dying_ends_the_trial_only(measurer: DuetMeasurer) -> None:
    """A second death in the same duet is a failure of that trial; the next one goes well."""
    plan = scratch.root() / "fault.json"
    fault = {"do": "slice", "fault": "segfault", "after": 2}
    plan.write_text(json.dumps(fault), encoding="utf-8")
    measurer.renew()
    outcome = measurer.measure(BASELINE, _SHORT)
    plan.unlink()
    assert isinstance(outcome, Failure)
    assert outcome.phase == "turns"
    measurer.renew()
    assert isinstance(measurer.measure(BASELINE, _SHORT), Measurement)


def test_the_wall_clock_does_not_matter(
    measurer: DuetMeasurer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that steps by years, here and in the child, changes no outcome and no limit."""
    plan = scratch.root() / "fault.json"
    plan.write_text(json.dumps({"do": "open", "fault": "wild_clock"}), encoding="utf-8")
    steps = iter(range(10**9))
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 1e9 * (next(steps) % 3))
        outcome = measurer.measure(BASELINE, _SHORT)
    plan.unlink()
    assert isinstance(outcome, Measurement)
    assert outcome.load_ms < 60_000
    assert outcome.p50_ms < 60_000
