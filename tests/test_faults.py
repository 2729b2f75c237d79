"""Faults of a measuring process: each a typed outcome with its phase, and the study goes on."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import optuna
import psutil
import pytest
from brief_studies import Program

from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.model import Model, describe
from autotune.measure.configuration_run import TimeLimits
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Failure, Measurement
from autotune.process import scratch
from autotune.process.child import ChildLimits, memory_limit
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
_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="as Linux does it")


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


@pytest.fixture
def inject(measurer: DuetMeasurer) -> Iterator[Inject]:
    """Gives a function that measures with a fault, which nobody but that configuration notices."""
    plan = scratch.root() / "fault.json"

    def measure(do: str, fault: str, **more: object) -> Failure:
        plan.write_text(json.dumps({"do": do, "fault": fault, **more}), encoding="utf-8")
        before = _family()
        outcome = measurer.measure(BASELINE, _SHORT)
        plan.unlink()
        assert isinstance(outcome, Failure)
        assert outcome.phase == _PHASES[do]
        assert _family() == before
        assert measurer._reference is not None
        assert measurer._reference.is_running()
        return outcome

    yield measure
    plan.unlink(missing_ok=True)


def _family() -> set[int]:
    """Returns the processes that work for this one, wherever they are."""
    return set(_workers(scratch.root()))


def _workers(folder: Path) -> list[int]:
    pids = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(scratch.MARK)
        except psutil.Error:
            continue
        if mark is not None and Path(mark).is_relative_to(folder):
            pids.append(process.pid)
    return pids


@pytest.mark.parametrize(
    ("do", "fault", "sign"),
    [
        *((do, "segfault", "SIGSEGV") for do in _PHASES),
        ("open", "abort", "SIGABRT"),
        ("slice", "illegal_instruction", "SIGILL"),
    ],
)
def test_a_crash_is_told_with_its_phase(inject: Inject, do: str, fault: str, sign: str) -> None:
    outcome = inject(do, fault)
    assert outcome.kind == "crashed"
    assert outcome.message.startswith(sign)


@pytest.mark.parametrize("do", list(_PHASES))
def test_a_hang_is_a_timeout(
    inject: Inject, measurer: DuetMeasurer, monkeypatch: pytest.MonkeyPatch, do: str
) -> None:
    with monkeypatch.context() as patched:
        hangs_in_open = do == "open"
        limits = TimeLimits(
            load_s=1.0 if hangs_in_open else 60.0, run_s=60.0 if hangs_in_open else 0.5
        )
        patched.setattr(measurer, "_limits", limits)
        assert inject(do, "hang").kind == "timeout"


@_LINUX
@pytest.mark.parametrize("do", ["open", "first_runs"])
def test_too_much_memory(inject: Inject, monkeypatch: pytest.MonkeyPatch, do: str) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("autotune.measure.measurer.memory_limit", _half_a_gib)
        assert inject(do, "allocate", mib=1024).kind == "out_of_memory"


def _half_a_gib() -> ChildLimits:
    return ChildLimits(memory_mib=512)


def test_the_limit_is_below_what_is_free() -> None:
    limit = memory_limit().memory_mib
    assert limit is not None
    assert limit < 0.9 * (psutil.virtual_memory().available >> 20)


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
    measurer.renew()
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


class Study(Program):
    """A study of 400 trials."""

    def __init__(self, place: Path, *, measuring: bool) -> None:
        super().__init__(place, "--trials", "400", measuring=measuring)
        self._measuring = measuring

    def wait(self, for_s: float) -> None:
        """Waits that long; before that until it measures trials, if it is to be measuring."""
        if self._measuring:
            self.wait_for_trials()
            assert self.process.poll() is None, self.words()
        time.sleep(for_s)

    def end(self, number: int) -> int:
        """Returns the exit code after it was sent the signal `number`."""
        self.process.send_signal(number)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()  # a test after this one would hear that it still runs
            self.process.wait()
            raise


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a model and a folder for temporary files."""
    sample_models.write("lstm", tmp_path / "model.onnx")
    (tmp_path / "tmp").mkdir()
    return tmp_path


def _measured(place: Path) -> int:
    """Returns how many trials the record of the study in `place` holds."""
    database = place / "model.autotune" / "study.db"
    if not database.exists():
        return 0
    storage = optuna.storages.RDBStorage(f"sqlite:///{database}")
    done = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED)
    return sum(
        bool(trial.user_attrs.keys() & {"measurement", "failure"})
        for study in storage.get_all_studies()
        for trial in storage.get_all_trials(study._study_id, states=done)
    )


@pytest.mark.stress
def test_signals_at_any_moment(place: Path) -> None:
    moments = random.Random(3)
    before = 0
    for attempt in range(4):
        study = Study(place, measuring=attempt % 2 == 0)
        # every other one while it starts, when the baseline is measured, or early in the search
        study.wait(moments.uniform(0.1, 1.5))
        number = (signal.SIGINT, signal.SIGTERM)[attempt // 2 % 2]
        # until the program listens, a signal ends it at once, and there is nothing to keep
        assert study.end(number) in (128 + number, -number), study.words()
        assert _workers(place / "tmp") == []
        assert _left(place) == []
        now = _measured(place)
        assert now >= max(before, study.reported())
        before = now
    assert before > 0


@pytest.mark.slow
@_LINUX
def test_a_killed_driver_leaves_no_process(place: Path) -> None:
    moments = random.Random(4)
    before = 0
    for attempt in range(2):
        study = Study(place, measuring=attempt % 2 == 0)
        study.wait(moments.uniform(0.1, 1.5))
        assert study.end(signal.SIGKILL) == -signal.SIGKILL
        _wait_until(lambda: not _workers(place / "tmp"))
        now = _measured(place)
        assert now >= max(before, study.reported())
        before = now
    assert before > 0
    scratch.sweep(place / "tmp")
    assert _left(place) == []


def _left(place: Path) -> list[Path]:
    """Returns what the program left in the folder for temporary files.

    But for the locks of the cores: whoever removed one would let two others hold it at once.
    """
    return [path for path in (place / "tmp").iterdir() if path.name != "autotune-cores"]


def _wait_until(done: Callable[[], bool]) -> None:
    for _ in range(600):
        if done():
            return
        time.sleep(0.1)
    pytest.fail("a minute was not enough")
