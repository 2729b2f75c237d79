"""The duet on an imagined machine: processes whose speed a script decides, and no time passes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest

from autotune.measure.clients import Burst
from autotune.measure.configuration_run import FIRST_LIMITS, ConfigurationRun
from autotune.measure.duet import Duet, Reference, TimeSlice, play, stolen_s, take_slice
from autotune.measure.memory import Usage
from autotune.measure.outcome import FINAL_COMPARISON, SEARCH, Effort, Fidelity
from autotune.measure.replies import FirstRuns, Opened, SliceTimes
from autotune.measure.requests import SampleFiles
from autotune.process.child import Child, ChildFailure

_EFFORT = Effort(time_cap_s=1.6, patience_s=4.0, half_width=0.01)


@dataclass
class _Machine:
    """A machine with its own clock; `noisy` tells by the time whether a neighbour is at work."""

    noisy: Callable[[float], bool] = lambda _: False
    now_s: float = 0.0
    paused_s: float = 0.0
    others: Callable[[float], float] | None = None  # cores that others hold by the time
    running: set[str] = field(default_factory=set)

    def busy_s(self) -> tuple[float, float]:
        """Returns what the system counts so far: both cores are full, and others hold some."""
        if self.others is None:
            return 2 * self.now_s, 0.0
        steps = np.arange(0, self.now_s, 0.01)
        return 2 * self.now_s, float(sum(map(self.others, steps.tolist()))) * 0.01

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.paused_s += seconds


class _Process(Child):
    """A child that runs in no time of ours; `slowed` is what a neighbour makes of its runs."""

    def __init__(
        self, machine: _Machine, name: str, run_ms: float, slowed: float = 2.0, drift: float = 0.0
    ) -> None:
        self.machine, self.name, self.run_ms = machine, name, run_ms
        self.slowed, self.drift = slowed, drift
        self.turns = 0
        self.stopped = False
        self._noise = np.random.default_rng(len(name))

    @property
    def pid(self) -> int:
        return 1

    def thaw(self) -> None:
        self.machine.running.add(self.name)
        assert self.machine.running == {self.name}, "two processes at once"

    def freeze(self) -> None:
        self.machine.running.discard(self.name)

    def stop(self) -> None:
        self.stopped = True

    def is_running(self) -> bool:
        return not self.stopped

    def request(self, message: dict[str, Any], timeout_s: float, reply: type[Any]) -> Any:
        assert reply is SliceTimes
        assert self.machine.running == {self.name}
        self.turns += 1
        run_ms = self.run_ms * (1 + self.drift * self.turns)
        run_ms *= self.slowed if self.machine.noisy(self.machine.now_s) else 1.0
        count = max(message["fewest_runs"], round(message["seconds"] * 1e3 / run_ms))
        runs = [int(1e6 * run_ms * (1 + 0.01 * self._noise.random())) for _ in range(count)]
        self.machine.now_s += (sum(runs) / 1e9) + message["unrecorded_runs"] * run_ms / 1e3
        return SliceTimes(run_ns=tuple(runs), cpu_ns=2 * sum(runs))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> _Machine:
    """A quiet machine that the modules under test take for the real one."""
    made = _Machine()
    monkeypatch.setattr("time.sleep", made.sleep)
    monkeypatch.setattr("time.monotonic", lambda: made.now_s)
    monkeypatch.setattr("autotune.measure.duet.busy_s", lambda _: made.busy_s())
    monkeypatch.setattr("autotune.measure.other_programs.usable_cores", lambda: 2)
    return made


def _reference(machine: _Machine, run_ms: float = 2.0, slowed: float = 2.0) -> Reference:
    """Returns a reference that knows the machine, as after a calibration."""
    noisy, machine.noisy = machine.noisy, lambda _: False
    reference = Reference(
        lambda: (_Process(machine, "reference", run_ms, slowed), run_ms), lambda: 1.0
    )
    reference.calibrate(40, 1.0)
    machine.noisy = noisy
    return reference


def _play(
    machine: _Machine,
    configuration: _Process,
    effort: Effort = _EFFORT,
    is_dominated: Callable[[Duet], bool] = lambda _: False,
) -> Duet:
    reference = _reference(machine)
    machine.now_s = machine.paused_s = 0.0
    return play(
        reference,
        configuration,
        run_ms=configuration.run_ms,
        effort=effort,
        limit_s=1.0,
        is_dominated=is_dominated,
    )


def test_a_quiet_duet_is_short_and_right(machine: _Machine) -> None:
    duet = _play(machine, _Process(machine, "configuration", 3.0))
    assert duet.ratio.value == pytest.approx(1.5, rel=0.01)
    assert all(duet.quiet)
    assert duet.noisiness == 1.0
    assert duet.contaminated == 0
    assert machine.paused_s == 0
    assert machine.now_s < _EFFORT.time_cap_s


def test_a_neighbour_that_comes_and_goes_does_no_harm(machine: _Machine) -> None:
    """One thread does not feel the neighbour that halves the baseline's speed: no bias from it."""
    machine.noisy = lambda now_s: now_s % 0.5 < 0.3
    duet = _play(machine, _Process(machine, "configuration", 3.0, slowed=1.0))
    assert duet.ratio.value == pytest.approx(1.5, rel=0.02)
    assert duet.contaminated > 0
    assert machine.paused_s > 0


def test_a_machine_that_is_never_quiet_is_told(machine: _Machine) -> None:
    machine.noisy = lambda _: True
    duet = _play(machine, _Process(machine, "configuration", 3.0))
    assert not any(duet.quiet)
    assert duet.ratio.value == pytest.approx(1.5, rel=0.02)
    assert machine.now_s >= _EFFORT.patience_s
    # three time slices after four seconds of waiting are off by a third
    assert len(duet.configuration) >= 12


def test_a_machine_that_stays_loud_is_not_waited_for_again_and_again(machine: _Machine) -> None:
    """The waits become shorter, and the time slices no fewer."""
    reference = _reference(machine)
    machine.noisy = lambda _: True
    configuration = _Process(machine, "configuration", 3.0)
    lengths = []
    for _ in range(6):
        began_s = machine.now_s
        duet = play(reference, configuration, run_ms=3.0, effort=_EFFORT, limit_s=1.0)
        lengths.append(machine.now_s - began_s)
        assert len(duet.configuration) >= 12
    assert lengths[0] >= _EFFORT.patience_s
    assert lengths[-1] < _EFFORT.patience_s / 4


def test_what_is_beaten_on_a_loud_machine_is_not_waited_for(machine: _Machine) -> None:
    """One look at a few disturbed time slices ends it, and teaches no impatience."""
    reference = _reference(machine)
    machine.noisy = lambda _: True
    configuration = _Process(machine, "configuration", 20.0)
    looks: list[float] = []

    def is_dominated(duet: Duet) -> bool:
        looks.append(duet.noisiness)
        return True

    began_s = machine.now_s
    play(
        reference,
        configuration,
        run_ms=20.0,
        effort=_EFFORT,
        limit_s=1.0,
        is_dominated=is_dominated,
    )
    assert machine.now_s - began_s < _EFFORT.patience_s / 4
    assert looks == [pytest.approx(2.0, rel=0.05)]
    assert reference.patience_s(_EFFORT) == _EFFORT.patience_s


def test_who_is_clearly_beaten_stops_early(machine: _Machine) -> None:
    looks: list[int] = []

    def is_dominated(duet: Duet) -> bool:
        looks.append(len(duet.configuration))
        return True

    duet = _play(machine, _Process(machine, "configuration", 20.0), is_dominated=is_dominated)
    assert looks == [len(duet.configuration)] == [4]


_PERCENTILE = Effort(time_cap_s=0.1, patience_s=0.2, half_width=1.0, fewest_runs=662)


class _WarmingUp(_Process):
    """The first runs take twice as long."""

    def request(self, message: dict[str, Any], timeout_s: float, reply: type[Any]) -> Any:
        self.run_ms = 6.0 if self.turns < 40 else 3.0
        return super().request(message, timeout_s, reply)


@pytest.mark.parametrize(
    ("kind", "run_ms", "known_ms"),
    [
        (_Process, 3.0, 3.0),
        # runs of the warm-up give no evidence, and others take their place
        (_WarmingUp, 3.0, 3.0),
        # a timed run of samples of several shapes takes as long as all of them, and not as one
        (_Process, 30.0, 1.0),
    ],
)
def test_a_percentile_takes_its_runs(
    machine: _Machine, kind: type[_Process], run_ms: float, known_ms: float
) -> None:
    configuration = kind(machine, "configuration", run_ms)
    duet = play(
        _reference(machine), configuration, run_ms=known_ms, effort=_PERCENTILE, limit_s=1.0
    )
    assert bool(duet.settled_from) == (kind is _WarmingUp)
    assert sum(len(time_slice.run_ns) for time_slice in duet.evidence) >= 662


def test_a_percentile_is_not_waited_for_without_end(machine: _Machine) -> None:
    """A machine that is never quiet is given up after about twice the runs that are needed."""
    machine.noisy = lambda _: True
    duet = _play(machine, _Process(machine, "configuration", 3.0), _PERCENTILE)
    assert sum(len(time_slice.run_ns) for time_slice in duet.configuration) < 2.1 * 662


def test_a_percentile_on_a_machine_that_is_seldom_quiet_is_that_of_a_busy_one(
    machine: _Machine,
) -> None:
    """Quiet time slices that suffice for a median lack the runs of a percentile."""
    machine.noisy = lambda now_s: now_s % 1.0 > 0.1
    duet = _play(machine, _Process(machine, "configuration", 3.0), _PERCENTILE)
    assert replace(duet, fewest_runs=0).is_undisturbed
    assert not duet.is_undisturbed
    assert sum(len(time_slice.run_ns) for time_slice in duet.evidence) >= 662


@pytest.mark.parametrize("run_ms", [0.02, 5_000.0])
def test_slices_are_sized_to_the_model(machine: _Machine, run_ms: float) -> None:
    """Twenty microseconds or five seconds a run: measured well, in few turns."""
    machine.noisy = lambda _: False
    reference = Reference(lambda: (_Process(machine, "reference", run_ms), run_ms), lambda: 60.0)
    reference.calibrate(10, 1.0)
    machine.now_s = 0.0
    configuration = _Process(machine, "configuration", run_ms * 1.2)
    duet = play(reference, configuration, run_ms=run_ms * 1.2, effort=_EFFORT, limit_s=60.0)
    assert duet.ratio.value == pytest.approx(1.2, rel=0.01)
    assert machine.now_s < max(2.0, 8 * run_ms / 1e3)


def test_a_configuration_that_never_settles_is_told(machine: _Machine) -> None:
    duet = _play(machine, _Process(machine, "configuration", 3.0, drift=0.02))
    assert duet.settled_from is None
    assert machine.now_s >= _EFFORT.time_cap_s


def test_stolen_slices_are_not_quiet() -> None:
    """A time slice in which the host took a core away does not count, however fast it looks."""
    quick = TimeSlice(run_ns=(1_000_000,), cpu_ns=1, stolen=False)
    stolen = TimeSlice(run_ns=(1_000_000,), cpu_ns=1, stolen=True)
    duet = Duet(
        reference=(quick, quick, stolen, quick, quick),
        configuration=(quick, quick, stolen),
        before=(0, 1, 3),
        undisturbed_ms=1.1,
        spent_s={},
    )
    assert duet.quiet == [True, False, False]
    assert duet.contaminated == 3


def test_what_runs_on_a_device_is_compared_with_the_quiet_reference(machine: _Machine) -> None:
    """Neighbours slow the reference on the processor, and not a configuration that leaves it."""
    reference = _reference(machine)
    quiet_ms = reference.undisturbed_ms
    machine.noisy = lambda _: True
    began_s = machine.now_s
    duet = play(
        reference,
        _Process(machine, "configuration", 0.5, slowed=1.0),
        run_ms=0.5,
        effort=_EFFORT,
        limit_s=1.0,
        quiet_ms=quiet_ms,
    )
    assert duet.ratio.value == pytest.approx(0.5 / quiet_ms, rel=0.02)
    assert len(duet.reference) == 1
    assert machine.now_s - began_s < 2 * _EFFORT.time_cap_s
    assert not reference.is_undisturbed(reference.time_slice())


def test_the_quiet_speed_outlives_the_process(machine: _Machine) -> None:
    reference = _reference(machine)
    before_ms = reference.undisturbed_ms
    machine.noisy = lambda _: True
    reference.renew()
    assert not reference.is_undisturbed(reference.time_slice())
    assert reference.undisturbed_ms == pytest.approx(before_ms, rel=0.05)


def test_a_lasting_change_of_the_machine_is_learnt(machine: _Machine) -> None:
    reference = _reference(machine)
    machine.noisy = lambda _: True
    for _ in range(2000):
        reference.time_slice()
    assert reference.is_undisturbed(reference.time_slice())


@pytest.mark.parametrize("cores", [1.0, 2.0])
def test_who_holds_the_cores_from_the_start_is_seen(machine: _Machine, cores: float) -> None:
    """The baseline never was faster, so it cannot tell; and one thread suffers less than two."""
    machine.noisy = lambda _: True
    reference = Reference(lambda: (_Process(machine, "reference", 2.0, 4.0), 2.0), lambda: 1.0)
    reference.calibrate(40, 1.0)
    configuration = _Process(machine, "configuration", 3.0, slowed=1.1)
    given = {"run_ms": 3.0, "effort": _EFFORT, "limit_s": 1.0}
    fooled = play(reference, configuration, **given)  # type: ignore[arg-type]
    assert fooled.is_undisturbed
    assert fooled.ratio.value < 0.5  # in truth 1.5
    machine.others = lambda _: cores
    duet = play(reference, configuration, **given)  # type: ignore[arg-type]
    assert not duet.is_undisturbed
    assert not any(duet.quiet)
    assert len(duet.chosen) == len(duet.configuration)


def test_who_holds_the_cores_half_of_the_time_costs_time_alone(machine: _Machine) -> None:
    """The estimate rests on the time slices in which they were free."""
    machine.others = lambda now_s: float(now_s % 2 < 1)
    machine.noisy = lambda now_s: now_s % 2 < 1
    reference = Reference(lambda: (_Process(machine, "reference", 2.0, 1.1), 2.0), lambda: 1.0)
    reference.calibrate(40, 1.0)
    configuration = _Process(machine, "configuration", 3.0, slowed=2.0)
    duet = play(reference, configuration, run_ms=3.0, effort=_EFFORT, limit_s=1.0)
    assert duet.is_undisturbed
    assert duet.ratio.value == pytest.approx(1.5, rel=0.03)


def test_a_large_sample_is_a_run_of_its_own() -> None:
    """The estimate compares rounds of all samples; a percentile looks at each run."""
    slices = TimeSlice(run_ns=(1_000_000, 9_000_000) * 3, cpu_ns=1, stolen=False, round=2)
    assert slices.ms == pytest.approx(5.0)


def test_a_child_that_fails_is_told(machine: _Machine) -> None:
    class Dead(_Process):
        def request(self, message: dict[str, Any], timeout_s: float, reply: type[Any]) -> Any:
            raise ChildFailure("crashed", "SIGSEGV")

    with pytest.raises(ChildFailure, match="SIGSEGV"):
        take_slice(Dead(machine, "configuration", 1.0), 1.0, 1.0)


@pytest.mark.parametrize(("run_ms", "unrecorded"), [(14.0, 1), (16.0, 0)])
def test_a_long_run_of_a_trial_is_not_repeated_for_warmth(
    machine: _Machine, run_ms: float, unrecorded: int
) -> None:
    """Neither of the configuration nor of the reference; the final comparison repeats it."""
    asked: list[int] = []

    class Asked(_Process):
        def request(self, message: dict[str, Any], timeout_s: float, reply: type[Any]) -> Any:
            asked.append(message["unrecorded_runs"])
            return super().request(message, timeout_s, reply)

    def unrecorded_runs(effort: Effort) -> set[int]:
        asked.clear()
        configuration = Asked(machine, "configuration", run_ms)
        play(reference, configuration, run_ms=run_ms, effort=effort, limit_s=1.0)
        return set(asked)

    reference = Reference(lambda: (Asked(machine, "reference", run_ms), run_ms), lambda: 1.0)
    reference.calibrate(10, 1.0)
    assert unrecorded_runs(SEARCH) == {unrecorded}
    assert unrecorded_runs(FINAL_COMPARISON) == {1}


class _Served(_Process):
    """A process with two clients; the second one's runs take twice as long as the first one's."""

    asked: dict[str, Any]

    def request(self, message: dict[str, Any], timeout_s: float, reply: type[Any]) -> Any:
        assert reply is Burst
        self.asked = message
        run_ns = int(1e6 * self.run_ms)
        self.machine.now_s += 4 * self.run_ms / 1e3
        return Burst(
            client=(0, 0, 0, 0, 1, 1),
            start_ns=(0, run_ns, 2 * run_ns, 3 * run_ns, 0, 2 * run_ns),
            call_ns=(run_ns,) * 4 + (2 * run_ns,) * 2,
            cpu_ns=8 * run_ns,
        )


def test_a_slice_under_load_is_as_long_as_a_client_waits_in_the_mean(machine: _Machine) -> None:
    """Six runs of two clients in 4 ms are a mean latency of 4/3 ms, whatever their median is."""
    process = _Served(machine, "configuration", 1.0)
    time_slice = take_slice(process, 1.0, 1.0, clients=2)
    assert time_slice.ms == pytest.approx(4 / 3)
    assert len(time_slice.run_ns) == 6
    assert process.asked["fewest_runs"] >= 2


def test_a_duet_under_load_compares_throughputs(machine: _Machine) -> None:
    reference = Reference(lambda: (_Served(machine, "reference", 1.0), 1.0), lambda: 1.0, clients=2)
    reference.calibrate(10, 1.0)
    configuration = _Served(machine, "configuration", 2.0)
    duet = play(reference, configuration, run_ms=2.0, effort=_EFFORT, limit_s=1.0, clients=2)
    assert duet.ratio.value == pytest.approx(2.0)


def test_runs_of_other_clients_break_the_protocol(machine: _Machine) -> None:
    """A child must not count two clients as three."""
    with pytest.raises(ChildFailure, match="runs of 2 clients, not 3"):
        take_slice(_Served(machine, "configuration", 1.0), 1.0, 1.0, clients=3)


def test_stolen_time_never_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a sum; a system that does not know it has none."""
    first_s = stolen_s()
    assert stolen_s() >= first_s >= 0
    monkeypatch.setattr(psutil, "cpu_times", lambda: SimpleNamespace(user=1.0))
    assert stolen_s() == 0


def test_a_quiet_machine_restores_the_patience(machine: _Machine) -> None:
    """Step by step: a single quiet measurement is no quiet machine."""
    reference = _reference(machine)
    for _ in range(10):
        reference.learn(is_undisturbed=False)
    reference.learn(is_undisturbed=True)
    assert reference.patience_s(_EFFORT) == 0.25
    for _ in range(10):
        reference.learn(is_undisturbed=True)
    assert reference.patience_s(_EFFORT) == 4.0


def test_the_clock_of_samples_that_differ_is_their_mean() -> None:
    """The median of single runs is that of a small sample; a limit holds for the slowest one."""
    run = ConfigurationRun(
        cast("Child", None), cast("SampleFiles", SimpleNamespace(batch=None)), FIRST_LIMITS
    )
    used = Usage(resident_mib=50.0, peak_mib=60.0, anonymous_mib=None)
    run._opened = Opened(load_ms=1.0, base=used, loaded=used)
    run._first_runs = FirstRuns(first_run_ms=1.0, run_ms=1.0, after=used)
    run._held_before = run._held_after = used
    run._fidelity = Fidelity(error=0.0, cosine=1.0, max_difference=0.0, agreement=None)
    slices = (
        TimeSlice(run_ns=(1_000_000, 1_000_000, 7_000_000), cpu_ns=1, stolen=False, round=3),
    ) * 9
    duet = Duet(
        reference=slices,
        configuration=slices[1:],
        before=tuple(range(8)),
        undisturbed_ms=4.0,
        spent_s={},
    )
    measured = run.measurement(duet, 3.0)
    assert measured.p50_ms == 1.0
    assert (measured.clock_ms, measured.latency_ms) == (3.0, 3.0)
    assert measured.longest_ms == pytest.approx(7.0)
    assert measured.memory.device_mib is None  # nobody knows yet whether it has a device
