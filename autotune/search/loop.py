"""The loop: ask for a candidate, measure it, tell Optuna; until the budget is spent."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import optuna

from autotune.measure.outcome import SEARCH, Failure, Measurement, Measurer, Outcome, never_beaten
from autotune.search import pareto, storage
from autotune.search.objective import Objective, Values, complete, is_beaten, values
from autotune.search.runoff import effort_for
from autotune.search.sampler import make_sampler, portfolio, unseen_neighbour
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Parameter, Space

# A sampler that proposes only what is known gets a neighbour of the front instead.
_MOST_DUPLICATES = 5


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a study stands; given to the progress callback.

    Attributes:
        stage: ``"model"``, ``"baseline"``, ``"search"``, ``"run-off"`` or ``"done"``.
        done: Steps of this stage that are done: trials in the search, measurements in the run-off.
        total: How many there will be at most.
        best: The trial within the limits that is best in the first objective so far.
        baseline: Trial 0, once it is measured.
        latest: The trial that was just measured.
        remaining_s: About how long this stage will still take; None where nothing is known.
        note: Something to tell the user, once.
    """

    stage: str
    done: int = 0
    total: int = 0
    best: Trial | None = None
    baseline: Trial | None = None
    latest: Trial | None = None
    remaining_s: float | None = None
    note: str = ""


OnProgress = Callable[[Progress], None]


class Search:
    """Asks for candidates and measures them, in Optuna's study.

    Args:
        study: Optuna's study.
        space: What may be tried.
        objectives: What is made small.
        limits: What a configuration must keep.
        measurer: What measures.
        seed: Of the sampler.
        report: Called as the search goes on.
        racing: Whether a candidate that is clearly beaten is given up early.

    Attributes:
        trials: What is measured, in order.
        twins: Candidates that come to the same as one that was measured, with its trial.
    """

    def __init__(
        self,
        *,
        study: optuna.Study,
        space: Space,
        objectives: Sequence[Objective],
        limits: Limits,
        measurer: Measurer,
        seed: int,
        report: OnProgress,
        racing: bool = True,
    ) -> None:
        self.trials = [t for t in storage.trials(study) if not _is_forgiven(t, limits)]
        self.twins: dict[Candidate, Trial] = {}
        self._study = study
        self._space = space
        self._objectives = objectives
        self._limits = limits
        self._racing = racing
        self._measurer = measurer
        self._report = report
        self._record = {trial.candidate: trial for trial in self.trials}
        self._planned = [c for c in portfolio(space) if c not in self._record]
        self._duplicates = 0
        study.sampler = make_sampler(seed, len(study.get_trials(deepcopy=False)))
        self._give_up_running()

    @property
    def baseline(self) -> Trial | None:
        """Trial 0, once it is measured."""
        return self._record.get(BASELINE)

    @property
    def best(self) -> Trial | None:
        """The trial within the limits that is best in the first objective."""
        first = self._objectives[0].name
        admitted = [
            (self._values(trial)[first], trial.number, trial)
            for trial in self.trials
            if (m := trial.measurement) is not None and self._admits(m)
        ]
        return min(admitted)[2] if admitted else None

    def run(self, count: int, timeout_s: float | None) -> None:
        """Measures until the study has `count` trials, time is up or nothing is left to measure.

        Raises:
            CannotMeasureError: the baseline fails.
        """
        began = time.monotonic()
        before = len(self.trials)
        while len(self.trials) < count:
            spent_s = time.monotonic() - began
            if timeout_s is not None and spent_s > timeout_s and self.baseline is not None:
                return
            fresh = len(self.trials) - before
            by_count = spent_s / fresh * (count - len(self.trials)) if fresh else None
            by_time = None if timeout_s is None else timeout_s - spent_s
            known = [s for s in (by_count, by_time) if s is not None]
            self._tell(count, min(known) if known else None)
            if not self._plan_next():
                return
            self._study.optimize(self._objective, n_trials=1)
        self._tell(count, None)

    def _tell(self, count: int, remaining_s: float | None) -> None:
        self._report(
            Progress(
                stage="search",
                done=len(self.trials),
                total=count,
                best=self.best,
                baseline=self.baseline,
                latest=self.trials[-1] if self.trials else None,
                remaining_s=remaining_s,
            )
        )

    def _plan_next(self) -> bool:
        """Enqueues a candidate where the sampler is not to choose; False if nothing is left."""
        candidate: Candidate | None = None
        if self._planned:
            candidate = self._planned.pop(0)
        elif self._duplicates >= _MOST_DUPLICATES:
            measured = [t for t in self.trials if (m := t.measurement) and self._admits(m)]
            best = pareto.front(measured, self._values, self._objectives)
            around = [trial.candidate for trial in best]
            candidate = unseen_neighbour(self._space, self._record, around)
            if candidate is None:
                return False
        if candidate is not None:
            self._study.enqueue_trial(
                self._space.assignment(candidate), user_attrs={"candidate": candidate.to_json()}
            )
        return True

    def _objective(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Measures what the sampler proposes; what is known is answered from the record."""

        def choose(parameter: Parameter) -> optuna.distributions.CategoricalChoiceType:
            return trial.suggest_categorical(parameter.name, parameter.values)

        proposed = self._space.candidate(choose)  # type: ignore[arg-type]  # ours are all choices
        # planned: the baseline lies outside a space with fixed parameters
        told = trial.user_attrs.get("candidate")
        candidate = proposed if told is None else Candidate.of(told)
        asked, known = candidate, self._record.get(candidate)
        if known is None:  # one that is known needs no file to be made
            candidate = self._measurer.canonical(candidate)
            known = self._record.get(candidate)
        if known is None:
            self._duplicates = 0
            outcome = self._measure(candidate)
            known = Trial(number=trial.number, candidate=candidate, outcome=outcome)
            for key, value in storage.describe(known).items():
                trial.set_user_attr(key, value)
            self._record[candidate] = known
            self.trials.append(known)
        else:
            self._duplicates += 1
            trial.set_user_attr("duplicate_of", known.number)
        if asked != known.candidate:
            # known by this name as well from now on, or it would be asked for again
            self._record[asked] = self.twins[asked] = known
        for name, violation in self._limits.violations(known.outcome).items():
            trial.set_constraint(name, violation)
        if known.measurement is None:
            # pruned, not failed: samplers learn nothing from failed trials and propose them again
            raise optuna.TrialPruned
        return tuple(self._values(known).values())

    def _measure(self, candidate: Candidate) -> Outcome:
        """Measures; what is clearly beaten by the front of today is given up early."""
        measured = [t for t in self.trials if (m := t.measurement) and self._admits(m)]
        best = pareto.front(measured, self._values, self._objectives)
        rivals = [self._values(trial) for trial in best]

        def beaten(measurement: Measurement) -> bool:
            fidelity = measurement.fidelity
            if not self._limits.admit_answers(fidelity.error, fidelity.drop):
                return True  # timed at all only to say what a looser limit would buy
            return is_beaten(measurement, rivals, self._objectives)

        never = candidate == BASELINE or not self._racing
        effort = effort_for(SEARCH, self._objectives)
        outcome = self._measurer.measure(candidate, effort, never_beaten if never else beaten)
        return complete(outcome, self._objectives)

    def _admits(self, measurement: Measurement) -> bool:
        return self._limits.admit(
            measurement.latency_ms,
            measurement.peak_memory_mib,
            measurement.fidelity.error,
            measurement.fidelity.drop,
        )

    def _values(self, trial: Trial) -> Values:
        assert trial.measurement is not None
        return values(trial.measurement, self._objectives)

    def _give_up_running(self) -> None:
        """Tells Optuna that what a killed driver had begun or planned has failed."""
        waiting, running = optuna.trial.TrialState.WAITING, optuna.trial.TrialState.RUNNING
        for _ in self._study.get_trials(deepcopy=False, states=(waiting,)):
            self._study.ask()  # only running trials can be told
        for frozen in self._study.get_trials(deepcopy=False, states=(running,)):
            self._study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)


def _is_forgiven(trial: Trial, limits: Limits) -> bool:
    """Returns whether a trial was rejected for an error that is within the limit by now."""
    outcome = trial.outcome
    return (
        isinstance(outcome, Failure)
        and outcome.error is not None
        and outcome.error <= limits.max_error
    )
