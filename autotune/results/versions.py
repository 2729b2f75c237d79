"""One model on several ONNX Runtimes: side by side, and which release changed something."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autotune.deploy.config import Interval
from autotune.facts.workload import Workload
from autotune.measure.leak import Leak, measure_leak
from autotune.measure.outcome import Failure
from autotune.results.compare import Compared, Comparison, compare
from autotune.results.final_comparison import OnNote, OnStep, RoundsPlan
from autotune.results.subjects import Lineup, Subject
from autotune.runtimes.environments import own_release, site_of
from autotune.runtimes.names import Release
from autotune.search.finalists import EXACT_ERROR

SPEED, LEAK, ANSWERS, FAILURE = "slowdown", "leak", "answers", "failure"
"""What a release may bring."""

# Everything is measured, however wrong its answers are: that is what is asked.
_ANY_ERROR = 1e6
# Enough rounds to see a slowdown of a few percent on a quiet machine.
_ROUNDS = RoundsPlan(fewest=8, enough=8, most=10)
# Other kernels round elsewhere.
_SAME_ERROR = 1.2
# An interval that holds the middle between good and bad says neither; then once more.
_MOST_LOOKS = 3

CompareFunction = Callable[..., Comparison]
LeakFunction = Callable[..., Leak | Failure]


@dataclass(frozen=True, kw_only=True)
class VersionComparison:
    """A model on several ONNX Runtimes.

    Attributes:
        leaks: How the memory grows with each run, by the names in the comparison.
    """

    comparison: Comparison
    leaks: dict[str, Leak | Failure]


def on_releases(subject: Subject, releases: Sequence[Release]) -> tuple[Subject, ...]:
    """Returns what a subject is on each of these ONNX Runtimes."""
    own = own_release()
    sites = {each: None if each == own else site_of(str(each)) for each in releases}
    return tuple(replace(subject, name=str(each), site=sites[each]) for each in releases)


def compare_versions(
    lineup: Lineup,
    workload: Workload,
    *,
    max_error: float | None = None,
    clients: int | None = None,
    on_step: OnStep,
) -> VersionComparison:
    """Returns how the subjects of a lineup compare, growth of memory included.

    Args:
        lineup: One subject for each ONNX Runtime, and the baseline.
        max_error: Largest error; None as :func:`autotune.results.compare.compare` has it.
    """
    comparison = compare(lineup, workload, max_error=max_error, clients=clients, on_step=on_step)
    field = (lineup.baseline, *lineup.subjects)
    leaks = {s.name: measure_leak(s.model, s.session, workload, s.site) for s in field}
    return VersionComparison(comparison=comparison, leaks=leaks)


@dataclass(frozen=True, kw_only=True)
class ReleaseChange:
    """What one release brought.

    Attributes:
        kind: ``slowdown``, ``leak``, ``answers`` or ``failure``.
        before: The last release without it.
        speedup: Its speed relative to the release before, where that is what changed.
        leak: How its memory grows, where that is what changed.
        error: Its error, and that of the release before, where answers changed.
        confirmed: Whether both releases, side by side, show it again.
    """

    kind: str
    before: str
    release: str
    speedup: Interval | None = None
    leak: Leak | None = None
    error: tuple[float, float] | None = None
    failure: str = ""
    confirmed: bool


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A release beside the first one."""

    beside: Compared | None
    first: Compared
    leak: Leak | Failure
    failure: str = ""


@dataclass
class Bisection:
    """Finds the release that brought a slowdown, a leak, another answer or a failure.

    Attributes:
        lineup: What the model is compared by; its subjects do not count.
        releases: The releases from the first to the last, in order.
        leak_function: Measures the growth of memory; tests bring their own.
    """

    subject: Subject
    lineup: Lineup
    workload: Workload
    releases: Sequence[Release]
    prepare: Callable[[Release], object]
    on_step: OnStep
    note: OnNote
    compare_function: CompareFunction = compare
    leak_function: LeakFunction = measure_leak
    _looks: dict[tuple[int, int], _Look] = field(default_factory=dict, init=False)
    _leaks: dict[int, Leak | Failure] = field(default_factory=dict, init=False)

    def changes(self) -> list[ReleaseChange]:
        """Returns what changed from the first release to the last, and with which release.

        Raises:
            CannotMeasureError: the first release does not run the model.
        """
        last = len(self.releases) - 1
        look = self._look(0, last)
        kinds = [kind for kind in (FAILURE, SPEED, LEAK, ANSWERS) if self._shows(kind, look)]
        return [self._found(kind, look) for kind in kinds]

    def _found(self, kind: str, last: _Look) -> ReleaseChange:
        good, bad = 0, len(self.releases) - 1
        while bad - good > 1:
            middle = (good + bad) // 2
            is_bad = self._is_bad(kind, middle, last)
            self.note(f"{self.releases[middle]}: {kind if is_bad else f'no {kind}'}")
            good, bad = (good, middle) if is_bad else (middle, bad)
        look = self._look(good, bad, again=good == 0)
        error = None
        if kind == ANSWERS and look.beside is not None:
            error = (look.beside.score.error, look.first.score.error)
        return ReleaseChange(
            kind=kind,
            before=str(self.releases[good]),
            release=str(self.releases[bad]),
            speedup=look.beside.score.speedup if kind == SPEED and look.beside else None,
            leak=look.leak if kind == LEAK and isinstance(look.leak, Leak) else None,
            error=error,
            failure=look.failure,
            confirmed=self._shows(kind, look),
        )

    def _shows(self, kind: str, look: _Look) -> bool:
        """Returns whether a look shows a change of some kind."""
        if look.beside is None:
            return kind == FAILURE
        if kind == SPEED:
            return look.beside.slower
        if kind == LEAK:
            first = self._leak_of(0)
            leaked = isinstance(first, Leak) and first.is_leak
            return isinstance(look.leak, Leak) and look.leak.is_leak and not leaked
        if kind == ANSWERS:
            own, first_error = look.beside.score.error, look.first.score.error
            return own > max(_SAME_ERROR * first_error, first_error + EXACT_ERROR)
        return False

    def _is_bad(self, kind: str, number: int, last: _Look) -> bool:
        """Returns whether a release is rather like the last one than like the first."""
        look = self._look(0, number)
        if kind != SPEED or look.beside is None or last.beside is None:
            return self._shows(kind, look)
        middle = float(last.beside.score.speedup.value**0.5)
        speedup = look.beside.score.speedup
        for _ in range(_MOST_LOOKS - 1):
            if not speedup.low <= middle <= speedup.high:
                break
            look = self._look(0, number, again=True)
            if look.beside is None:
                return True
            speedup = look.beside.score.speedup
        return speedup.value < middle

    def _look(self, good: int, other: int, *, again: bool = False) -> _Look:
        """Returns a release beside another one; measures only what was not seen, or `again`."""
        if again or (good, other) not in self._looks:
            self._looks[good, other] = self._fresh_look(good, other)
        return self._looks[good, other]

    def _fresh_look(self, good: int, other: int) -> _Look:
        for number in (good, other):
            self.prepare(self.releases[number])
        first, beside = on_releases(self.subject, [self.releases[n] for n in (good, other)])
        if first.name == beside.name:
            beside = replace(beside, name=f"{beside.name} again")
        lineup = replace(self.lineup, subjects=(beside,), baseline=first)
        comparison = self.compare_function(
            lineup, self.workload, max_error=_ANY_ERROR, on_step=self.on_step, plan=_ROUNDS
        )
        failure = comparison.failures.get(beside.name)
        return _Look(
            beside=comparison.configs[0] if comparison.configs else None,
            first=comparison.baseline,
            leak=self._leak_of(other) if failure is None else failure,
            failure="" if failure is None else failure.message,
        )

    def _leak_of(self, number: int) -> Leak | Failure:
        if number not in self._leaks:
            (subject,) = on_releases(self.subject, [self.releases[number]])
            self._leaks[number] = self.leak_function(
                subject.model, subject.session, self.workload, subject.site
            )
        return self._leaks[number]
