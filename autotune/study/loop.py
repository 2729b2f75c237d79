"""The search loop: ask for a configuration, measure it, append it; until the budget is spent.

Other workers may take part in the same study, on machines of the same kind: the budget is that of
all together, and a worker that finds no trials left waits for running ones to finish.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import threadpoolctl

from autotune.measure.outcome import (
    NO_RUNTIME,
    SEARCH,
    Failure,
    Measurement,
    Measurer,
    Outcome,
    never_dominated,
)
from autotune.search import pareto
from autotune.search.objective import Values, complete, effort_for, is_dominated, values
from autotune.search.planner import Planner, Standing, Taken
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.storage.retry import FAULTS, Clock
from autotune.storage.store import Store
from autotune.study.progress import OnProgress, Progress

# How often a worker without a trial looks whether the others are done.
_POLL_S = 1.0
# After so many trials in a row on a noisy machine, trials hardly wait for a quiet one.
_NOISY_TRIALS = 5


@dataclass
class Search:
    """Measures the configurations that a strategy asks for."""

    strategy: Planner
    store: Store
    measurer: Measurer
    report: OnProgress
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self._objectives = self.strategy.objectives
        self._limits = self.strategy.limits
        self._noisy = 0
        self._gone: set[str] = set()
        self._budget = 0

    @property
    def trials(self) -> Sequence[Trial]:
        """The measured trials, in order."""
        return self.store.trials

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return self.store.baseline

    @property
    def ended(self) -> str:
        """Why the search ended before its budget was spent; empty if it did not."""
        return self.strategy.ended

    @property
    def best(self) -> Trial | None:
        """The trial within the limits that is best in the first objective."""
        first = self._objectives[0]
        admitted = [
            (first.cost(self._values(trial)[first.name]), trial.number, trial)
            for trial in self.trials
            if (m := trial.measurement) is not None and self._limits.admit_measurement(m)
        ]
        return min(admitted)[2] if admitted else None

    def run(self, budget: int, timeout_s: float | None) -> None:
        """Measures until the study has `budget` trials, time is up or nothing is left to measure.

        Raises:
            CannotMeasureError: the default fails.
        """
        self.store.recover()
        self._budget = budget
        began_s = self.clock.monotonic()
        before = len(self.trials)

        def left_s() -> float | None:
            """Returns how long the search will go on; None if that is unknown."""
            spent_s = self.clock.monotonic() - began_s
            fresh = len(self.trials) - before
            by_count = spent_s / fresh * (budget - len(self.trials)) if fresh else None
            by_time = None if timeout_s is None else timeout_s - spent_s
            return min((s for s in (by_count, by_time) if s is not None), default=None)

        def has_time() -> bool:
            spent_s = self.clock.monotonic() - began_s
            return timeout_s is None or spent_s <= timeout_s or self.baseline is None

        # the models are small: more threads take longer, and spin beside the measured processes
        with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
            self._tell(left_s())
            while has_time() and (configuration := self._next()) is not None:
                self._try(configuration)
                self._tell(left_s())
        self._await_others()
        self._tell(None)

    def _next(self) -> Configuration | None:
        """Returns the configuration to measure next; None if the search has come to its end."""
        while len(self.trials) < self._budget and not self._baseline_failed():
            if self.store.is_shared:
                self.store.refresh()
            others = len(self.store.claimed)
            # the last trials of other workers may be released yet
            if len(self.trials) + others < self._budget:
                configuration = self.strategy.ask(self._standing())
                if configuration is not None:
                    return configuration
            if not others:
                break
            self.clock.sleep(_POLL_S)
        return None

    def _baseline_failed(self) -> bool:
        return self.baseline is not None and self.baseline.measurement is None

    def _await_others(self) -> None:
        """Waits for the trials that other workers are measuring now: their numbers count too."""
        if not self.store.is_shared:
            return
        self.store.refresh()
        awaited = self.store.claimed
        while awaited & self.store.claimed:
            self.clock.sleep(_POLL_S)
            self.store.refresh()

    def _standing(self) -> Standing:
        store = self.store
        return Standing(
            trials=store.trials,
            front=self._front(),
            best=self.best,
            taken=Taken(store.measured, store.equal, store.claimed | store.exhausted, self._gone),
            released=store.released,
            budget=self._budget,
        )

    def _tell(self, remaining_s: float | None) -> None:
        self.report(
            Progress(
                stage="search",
                done=len(self.trials),
                total=self._budget,
                best=self.best,
                baseline=self.baseline,
                remaining_s=remaining_s,
                trials=tuple(self.trials),
            )
        )

    def _try(self, configuration: Configuration) -> None:
        """Measures a configuration, unless another worker does or another one equals it."""
        store = self.store
        # claimed before its model is made, which may take minutes
        if not store.begin(configuration, self._budget):
            return
        try:
            same = self.measurer.canonical(configuration)
            if same != configuration:
                store.append_duplicate(configuration, same)
                if same in store.measured or not store.begin(same, self._budget):
                    return
            store.check_room()
            outcome = self._measure(same)
            store.append(same, outcome)
        except BaseException:
            with contextlib.suppress(*FAULTS):
                store.abandon()
            raise
        self._note_noise(outcome)
        self._note_runtime(same, outcome)

    def _note_noise(self, outcome: Outcome) -> None:
        """Says that the machine is noisy, once it was for several trials in a row."""
        if isinstance(outcome, Measurement) and not outcome.stopped_early:
            self._noisy = 0 if outcome.is_undisturbed else self._noisy + 1
            if self._noisy == _NOISY_TRIALS:
                note = (
                    f"The machine was noisy for {_NOISY_TRIALS} trials in a row, so trials do not "
                    "wait for a quiet one now. The final comparison decides."
                )
                self.report(Progress(stage="search", note=note))

    def _note_runtime(self, configuration: Configuration, outcome: Outcome) -> None:
        """Goes on without an ONNX Runtime that is no longer there, and says so."""
        if isinstance(outcome, Failure) and outcome.kind == NO_RUNTIME:
            runtime = configuration.runtime
            self._gone.add(runtime)
            note = (
                f"{runtime} is no longer what was added, so the search goes on without it. Type "
                f"autotune runtimes add {runtime} and the same command to measure the rest of it."
            )
            self.report(Progress(stage="search", note=note))

    def _measure(self, configuration: Configuration) -> Outcome:
        """Measures; a configuration that the present front clearly dominates is stopped early."""
        rivals = [self._values(trial) for trial in self._front()]

        def dominated(measurement: Measurement) -> bool:
            fidelity = measurement.fidelity
            if not self._limits.admit_answers(fidelity.error, fidelity.drop):
                return True  # timed only to say what a looser limit would allow
            best_ms = measurement.latency_ms * measurement.ratio.low / measurement.ratio.value
            if self._limits.latency_excess(replace(measurement, latency_ms=best_ms)) > 0:
                return True
            return is_dominated(measurement, rivals, self._objectives)

        # a percentile needs all of its runs
        needs_all = any(objective.fewest_runs for objective in self._objectives)
        never = configuration == BASELINE or needs_all
        effort = effort_for(SEARCH, self._objectives, self._limits.fewest_runs)
        outcome = self.measurer.measure(
            configuration, effort, never_dominated if never else dominated
        )
        return complete(outcome, self._objectives)

    def _front(self) -> list[Trial]:
        """Returns the trials within the limits that no other dominates."""
        measured = [
            t for t in self.trials if (m := t.measurement) and self._limits.admit_measurement(m)
        ]
        return pareto.front(measured, self._values, self._objectives)

    def _values(self, trial: Trial) -> Values:
        assert trial.measurement is not None
        return values(trial.measurement, self._objectives)
