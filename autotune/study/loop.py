"""The loop: ask for a candidate, measure it, tell Optuna; until the budget is spent.

Other drivers may take part in the same study, on machines of the same kind: the budget is that of
all, and whoever finds it spent waits for the last measurements of the others.
"""

import time
from collections.abc import Sequence

import optuna
import threadpoolctl

from autotune.measure.outcome import SEARCH, Failure, Measurement, Measurer, Outcome, never_beaten
from autotune.search import pareto
from autotune.search.objective import Objective, Values, complete, effort_for, is_beaten, values
from autotune.search.planner import Planner, Standing, Taken
from autotune.search.portfolio import DEFAULT_SAMPLER
from autotune.search.proposer import Prior
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Parameter, Space
from autotune.storage.database import FAULTS, fault_behind
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, describe, outcome_of
from autotune.study.progress import OnProgress, Progress
from autotune.study.sampler import make_sampler

# How long a storage may be away, and how often others are looked for who are still measuring.
_PATIENCE_S = 180.0
_LONGEST_PAUSE_S = 8.0
_POLL_S = 1.0


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
        sampler: What chooses, by name.
        first: Candidates that are measured right after the baseline.
        early_stop: Whether the search ends when nothing more is to be expected.
        record: The trials of the study; one that this driver has for itself if None.
        spool: Where measurements are kept until the storage has them.
        prior: What relatives of the study let expect.

    Attributes:
        twins: Candidates that come to the same as one that was measured, with its trial.
        ended: Why the search ended before its budget; empty where it did not.
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
        sampler: str = DEFAULT_SAMPLER,
        first: Sequence[Candidate] = (),
        early_stop: bool = True,
        record: Record | None = None,
        spool: Spool | None = None,
        prior: Prior | None = None,
    ) -> None:
        self.twins: dict[Candidate, Trial] = {}
        self.ended = ""
        self._study = study
        self._space = space
        self._objectives = objectives
        self._limits = limits
        self._racing = racing
        self._measurer = measurer
        self._report = report
        self._record = record or Record(study)
        self._spool = spool
        self._known: dict[Candidate, Trial] = {}
        self._catch_up()
        self._duplicates = 0
        self._budget = 0
        self._asked: Candidate | None = None
        self._stands_for: Candidate | None = None
        so_far = len(study.get_trials(deepcopy=False))
        self._planner = Planner(
            space=space,
            objectives=objectives,
            limits=limits,
            sampler=sampler,
            seed=seed + so_far,
            first=first,
            early_stop=early_stop,
            prior=prior or {},
        )
        self._sampler = study.sampler = make_sampler(sampler, seed, so_far)

    @property
    def trials(self) -> list[Trial]:
        """What is measured, in order."""
        return [t for t in self._record.trials if not _is_forgiven(t, self._limits)]

    @property
    def baseline(self) -> Trial | None:
        """Trial 0, once it is measured."""
        return self._known.get(BASELINE)

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
        # the models are small: more threads take longer, and spin on beside what is measured
        with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
            self._run(count, timeout_s)

    def _run(self, count: int, timeout_s: float | None) -> None:
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
            try:
                if self._baseline_failed() or not self._step(count):
                    break
            except Exception as error:
                fault = fault_behind(error)
                if fault is None:
                    raise
                if not self._record.shared:
                    raise fault from None  # a disk that is full stays full
                self._outlast(fault)
        self._tell(count, None)

    def _baseline_failed(self) -> bool:
        return self.baseline is not None and self.baseline.measurement is None

    def _step(self, count: int) -> bool:
        """Measures one candidate, or waits for others who do; False if nothing is left."""
        if self._record.shared:
            self._look_around()
        others = len(self._record.claimed)
        # the last ones may yet be given back by a driver that dies
        if len(self.trials) + others < count and self._decide(count):
            self._study.optimize(self._objective, n_trials=1, catch=(_LateClaimError,))
        elif others:
            time.sleep(_POLL_S)
        else:
            return False
        return True

    def _look_around(self) -> None:
        """Takes note of what other drivers have measured, are measuring, and have given back."""
        optuna.storages.fail_stale_trials(self._study)
        for trial in self._record.refresh():
            self._known.setdefault(trial.candidate, trial)
        self._planner.plan(self._record.given_back)

    def _outlast(self, fault: Exception) -> None:
        """Waits for a storage that is away, and tells it what it missed.

        Raises:
            Exception: the fault; it is still away after minutes.
        """
        began = time.monotonic()
        pause_s = 0.5
        self._report(Progress(stage="search", note="The storage is away; waiting for it."))
        while time.monotonic() - began < _PATIENCE_S:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            try:
                self._catch_up()
            except FAULTS as again:
                fault = again
            else:
                self._report(Progress(stage="search", note="The storage is back."))
                return
        raise fault

    def _catch_up(self) -> None:
        """Reads the record, and adds to it what was measured and never told."""
        self._record.reload()
        stored = {trial.candidate for trial in self._record.trials}
        for told in self._spool.kept() if self._spool else []:
            outcome = outcome_of(told)
            if outcome is not None and Candidate.of(told["candidate"]) not in stored:
                numbers = None
                if isinstance(outcome, Measurement):
                    numbers = tuple(values(outcome, self._objectives).values())
                self._record.insert(told, self._space, self._limits, numbers)
        self._record.refresh()
        self._known = {trial.candidate: trial for trial in self.trials} | self.twins

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

    def _decide(self, count: int) -> bool:
        """Decides what the next trial measures, or leaves it to Optuna's sampler; False to end."""
        standing = Standing(
            trials=self.trials,
            baseline=self.baseline,
            best=self.best,
            front=self._front(),
            taken=Taken(self._known, self._record.claimed, self.twins),
            duplicates=self._duplicates,
            budget=count,
        )
        asked = self._asked = self._planner.decide(standing)
        self.ended = self._planner.ended
        self._budget = count
        self._sampler.told = self._stands_for = None
        if asked is not None:
            # Optuna's record knows no value outside the space; ours has what was measured
            self._sampler.told = self._space.assignment(self._space.nearest(asked.to_json()))
            # a model may have to be made for it; before the trial begins, as others wait for those
            # who have a number and no claim
            self._stands_for = self._canonical(asked)
        return not self.ended

    def _canonical(self, candidate: Candidate) -> Candidate:
        """Returns the candidate that stands for this one; of one that is known no file is made."""
        known = self._known.get(candidate)
        return known.candidate if known is not None else self._measurer.canonical(candidate)

    def _objective(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Measures what the sampler proposes; what is known is answered from the record."""

        def choose(parameter: Parameter) -> optuna.distributions.CategoricalChoiceType:
            return trial.suggest_categorical(parameter.name, parameter.values)

        proposed = self._space.candidate(choose)  # type: ignore[arg-type]  # ours are all choices
        # what was decided may lie outside the space: the baseline, beside fixed parameters
        asked = proposed if self._asked is None else self._asked
        candidate = self._stands_for or self._canonical(asked)
        known = self._known.get(candidate)
        if known is None:
            self._duplicates = 0
            if self._record.shared and not self._record.claim(trial, candidate, self._budget):
                raise _LateClaimError
            known = self._measured(trial, candidate)
        else:
            self._duplicates += 1
            trial.set_user_attr("duplicate_of", known.number)
        if asked != known.candidate:
            # known by this name as well from now on, or it would be asked for again
            self._known[asked] = self.twins[asked] = known
        for name, violation in self._limits.violations(known.outcome).items():
            trial.set_constraint(name, violation)
        if known.measurement is None:
            # pruned, not failed: samplers learn nothing from failed trials and propose them again
            raise optuna.TrialPruned
        return tuple(self._values(known).values())

    def _measured(self, trial: optuna.Trial, candidate: Candidate) -> Trial:
        """Measures, and keeps the outcome: on this disk first, then in the storage."""
        if self._spool is not None:
            self._spool.check_room()
        outcome = self._measure(candidate)
        found = Trial(number=trial.number, candidate=candidate, outcome=outcome)
        told = describe(found)
        if self._spool is not None:
            self._spool.keep(told)
        for key, value in told.items():
            trial.set_user_attr(key, value)
        self._record.add(found)
        self._known[candidate] = found
        return found

    def _measure(self, candidate: Candidate) -> Outcome:
        """Measures; what is clearly beaten by the front of today is given up early."""
        rivals = [self._values(trial) for trial in self._front()]

        def beaten(measurement: Measurement) -> bool:
            fidelity = measurement.fidelity
            if not self._limits.admit_answers(fidelity.error, fidelity.drop):
                return True  # timed at all only to say what a looser limit would buy
            return is_beaten(measurement, rivals, self._objectives)

        never = candidate == BASELINE or not self._racing
        effort = effort_for(SEARCH, self._objectives)
        outcome = self._measurer.measure(candidate, effort, never_beaten if never else beaten)
        return complete(outcome, self._objectives)

    def _front(self) -> list[Trial]:
        """Returns the trials that no other within the limits beats."""
        measured = [t for t in self.trials if (m := t.measurement) and self._admits(m)]
        return pareto.front(measured, self._values, self._objectives)

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


class _LateClaimError(Exception):
    """Another driver was faster to claim the candidate."""


def _is_forgiven(trial: Trial, limits: Limits) -> bool:
    """Returns whether a trial was rejected for an error that is within the limit by now."""
    outcome = trial.outcome
    return (
        isinstance(outcome, Failure)
        and outcome.error is not None
        and outcome.error <= limits.max_error
    )
