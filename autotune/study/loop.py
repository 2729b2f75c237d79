"""The search loop: ask for a candidate, measure it, tell Optuna; until the budget is spent.

Other workers may take part in the same study, on machines of the same kind: the budget is that of
all together, and a worker that finds no trials left waits for running ones to finish.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
import threadpoolctl

from autotune.measure.outcome import SEARCH, Failure, Measurement, Measurer, Outcome, never_beaten
from autotune.search import pareto
from autotune.search.objective import Objective, Values, complete, effort_for, is_beaten, values
from autotune.search.planner import Standing, Taken
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Parameter, Space
from autotune.storage.clock import Clock
from autotune.storage.faults import fault_behind, is_given_up
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, describe, read_trials, trial_in
from autotune.study.outage import Outage
from autotune.study.progress import OnProgress, Progress
from autotune.study.sampler import OUTSIDE, PlannedSampler

# How often a worker without a trial looks whether the others are done.
_POLL_S = 1.0
# After so many trials in a row on a loud machine, trials hardly wait for a quiet one.
_LOUD_TRIALS = 5


class Search:
    """Measures the candidates that a sampler suggests, in Optuna's study.

    Args:
        study: Optuna's study; its sampler is replaced.
        sampler: Suggests the candidates.
        space: The search space.
        objectives: The objectives.
        limits: The limits.
        measurer: Measures candidates.
        record: The trials of the study.
        report: Called before each trial.
        spool: Keeps measurements until the storage has them; None in a study in memory.
        clock: Time and waiting.
        racing: Whether a candidate that is clearly beaten is given up early.

    Attributes:
        ended: Why the search ended before its budget was spent; empty if it did not.
    """

    def __init__(
        self,
        *,
        study: optuna.Study,
        sampler: PlannedSampler,
        space: Space,
        objectives: Sequence[Objective],
        limits: Limits,
        measurer: Measurer,
        record: Record,
        report: OnProgress,
        spool: Spool | None = None,
        clock: Clock | None = None,
        racing: bool = True,
    ) -> None:
        self.ended = ""
        self._study = study
        self._sampler = sampler
        self._space = space
        self._objectives = objectives
        self._limits = limits
        self._measurer = measurer
        self._record = record
        self._report = report
        self._spool = spool
        self._clock = clock or Clock()
        self._racing = racing
        self._duplicates = 0
        self._loud = 0
        self._budget = 0
        self._outage = Outage(self._clock, report)

    @property
    def trials(self) -> Sequence[Trial]:
        """The measured trials, in order."""
        return self._record.trials

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return self._record.baseline

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
        self.heal()
        self._study.sampler = self._sampler
        self._budget = budget
        # the models are small: more threads take longer, and spin beside the measured processes
        with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
            self._run(timeout_s)

    def heal(self) -> None:
        """Reads the trials, and adds those that were measured and never reached the storage.

        They are added before the trials that this worker did not end are given up: other workers
        would measure their candidates again in between.
        """
        if entries := self._spool.entries() if self._spool else []:
            self._record.read_anew()
            self._insert(entries)
        self._record.heal()

    def _insert(self, entries: Sequence[Mapping[str, Any]]) -> None:
        """Adds the spooled trials that the storage lacks."""
        counted = {trial.candidate for trial in self._record.trials}
        # a failure that does not count is there already; what came of measuring it again may not be
        stored = [(trial.candidate, trial.outcome) for trial in read_trials(self._study)]
        for trial in filter(None, map(trial_in, entries)):
            if trial.candidate in counted or (trial.candidate, trial.outcome) in stored:
                continue
            numbers = None
            if trial.measurement is not None:
                numbers = tuple(self._values(trial).values())
            self._record.insert(describe(trial), self._space, self._limits, numbers)

    def _run(self, timeout_s: float | None) -> None:
        began = self._clock.monotonic()
        before = len(self.trials)
        while len(self.trials) < self._budget:
            spent_s = self._clock.monotonic() - began
            if timeout_s is not None and spent_s > timeout_s and self.baseline is not None:
                return
            fresh = len(self.trials) - before
            by_count = spent_s / fresh * (self._budget - len(self.trials)) if fresh else None
            by_time = None if timeout_s is None else timeout_s - spent_s
            self._tell(min((s for s in (by_count, by_time) if s is not None), default=None))
            try:
                if self._baseline_failed() or not self._step():
                    break
            except Exception as error:
                fault = fault_behind(error)
                if fault is not None and self._record.shared:
                    self._outage.outlast(fault, self.heal)
                elif fault is not None:
                    raise fault from None  # a disk that is full stays full
                elif self._record.shared and is_given_up(error):
                    self._outage.surely(self.heal)
                else:
                    raise
        self._tell(None)

    def _baseline_failed(self) -> bool:
        return self.baseline is not None and self.baseline.measurement is None

    def _step(self) -> bool:
        """Measures one candidate, or waits for other workers; returns False if nothing is left."""
        if self._record.shared:
            optuna.storages.fail_stale_trials(self._study)
            self._record.refresh()
        others = len(self._record.claimed)
        # the last trials of other workers may be given back yet
        if len(self.trials) + others < self._budget and self._plan_next():
            self._study.optimize(self._objective, n_trials=1, catch=(_LateClaimError,))
        elif others:
            self._clock.sleep(_POLL_S)
        else:
            return False
        return True

    def _plan_next(self) -> bool:
        standing = Standing(
            trials=self.trials,
            front=self._front(),
            best=self.best,
            taken=Taken(self._record.measured, self._record.claimed),
            claimed_again=self._record.given_back if self._record.shared else (),
            budget=self._budget,
        )
        has_next = self._sampler.plan_next(standing, self._duplicates)
        self.ended = self._sampler.ended
        return has_next

    def _tell(self, remaining_s: float | None) -> None:
        self._report(
            Progress(
                stage="search",
                done=len(self.trials),
                total=self._budget,
                best=self.best,
                baseline=self.baseline,
                latest=self.trials[-1] if self.trials else None,
                remaining_s=remaining_s,
                trials=self.trials,
            )
        )

    def _objective(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Measures the candidate that the sampler suggests, unless it is known."""
        suggested = self._suggested(trial)
        known = self._record.measured.get(suggested)
        if known is None:
            known = self._measured(trial, suggested)
        if known.number != trial.number:
            self._duplicates += 1
            trial.set_user_attr("duplicate_of", known.number)
        else:
            self._duplicates = 0
        for name, violation in self._limits.violations(known.outcome).items():
            trial.set_constraint(name, violation)
        if known.measurement is None:
            # pruned, not failed: samplers learn nothing from failed trials and propose them again
            raise optuna.TrialPruned
        return tuple(self._values(known).values())

    def _suggested(self, trial: optuna.Trial) -> Candidate:
        def choose(parameter: Parameter) -> optuna.distributions.CategoricalChoiceType:
            return trial.suggest_categorical(parameter.name, parameter.values)

        inside = self._space.candidate(choose)  # type: ignore[arg-type]  # ours are all choices
        outside = trial.user_attrs.get(OUTSIDE)
        return inside if outside is None else Candidate.from_json(outside)

    def _measured(self, trial: optuna.Trial, suggested: Candidate) -> Trial:
        """Returns the trial that this worker measures, or that of a twin of the candidate."""
        # claimed before its model is made, which may take minutes
        self._claim(trial, suggested)
        candidate = self._measurer.canonical(suggested)
        if candidate == suggested:
            return self._measure_and_keep(trial, candidate)
        twin = self._record.measured.get(candidate)
        if twin is None:
            self._claim(trial, candidate)
            twin = self._measure_and_keep(trial, candidate)
        self._record.add_twin(suggested, twin)
        return twin

    def _claim(self, trial: optuna.Trial, candidate: Candidate) -> None:
        if self._record.shared and not self._record.claim(trial, candidate, self._budget):
            raise _LateClaimError

    def _measure_and_keep(self, trial: optuna.Trial, candidate: Candidate) -> Trial:
        """Measures, and keeps the outcome: on this disk first, then in the storage."""
        if self._spool is not None:
            self._spool.check_room()
        measured = Trial(number=trial.number, candidate=candidate, outcome=self._measure(candidate))
        entry = describe(measured)
        if self._spool is not None:
            self._spool.keep(entry)

        def store() -> None:
            for key, value in entry.items():
                trial.set_user_attr(key, value)

        if self._record.shared:
            # a trial that Optuna saw fail would be measured again by another worker
            self._outage.surely(store)
        else:
            store()
        self._record.add(measured)
        self._note_noise(measured.outcome)
        return measured

    def _note_noise(self, outcome: Outcome) -> None:
        """Says that the machine is loud, once it was for several trials in a row."""
        if isinstance(outcome, Measurement) and not outcome.raced:
            self._loud = 0 if outcome.is_quiet else self._loud + 1
            if self._loud == _LOUD_TRIALS:
                note = (
                    f"The machine was loud for {_LOUD_TRIALS} trials in a row, so trials do not "
                    "wait for a quiet one now. The final comparison decides."
                )
                self._report(Progress(stage="search", note=note))

    def _measure(self, candidate: Candidate) -> Outcome:
        """Measures; a candidate that the present front clearly beats is given up early."""
        rivals = [self._values(trial) for trial in self._front()]

        def beaten(measurement: Measurement) -> bool:
            fidelity = measurement.fidelity
            if not self._limits.admit_answers(fidelity.error, fidelity.drop):
                return True  # timed only to say what a looser limit would allow
            if self._limits.latency_excess(measurement) > 0:
                return True
            return is_beaten(measurement, rivals, self._objectives)

        # a percentile needs all of its runs
        needs_all = any(objective.fewest_runs for objective in self._objectives)
        never = candidate == BASELINE or not self._racing or needs_all
        effort = effort_for(SEARCH, self._objectives, self._limits.fewest_runs)
        outcome = self._measurer.measure(candidate, effort, never_beaten if never else beaten)
        return complete(outcome, self._objectives)

    def _front(self) -> list[Trial]:
        """Returns the trials within the limits that no other beats."""
        measured = [
            t for t in self.trials if (m := t.measurement) and self._limits.admit_measurement(m)
        ]
        return pareto.front(measured, self._values, self._objectives)

    def _values(self, trial: Trial) -> Values:
        assert trial.measurement is not None
        return values(trial.measurement, self._objectives)


class _LateClaimError(Exception):
    """Another worker was faster to claim the candidate."""


def counts_within(limits: Limits, trial: Trial) -> bool:
    """Returns whether a trial counts; one that does not is measured again.

    A failure of the default may have passed. An error that was refused may be within the limit now.
    """
    outcome = trial.outcome
    if not isinstance(outcome, Failure):
        return True
    has_right_answers = outcome.error is not None and outcome.error <= limits.max_error
    return trial.candidate != BASELINE and not has_right_answers
