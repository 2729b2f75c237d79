"""The loop: ask for a candidate, measure it, tell Optuna; until the budget is spent."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import optuna

from autotune.measure.outcome import SEARCH, Failure, Measurement, Measurer, Outcome, never_beaten
from autotune.search import pareto, storage
from autotune.search.objective import Objective, Values, complete, is_beaten, values
from autotune.search.proposer import Proposer
from autotune.search.runoff import effort_for, finalists
from autotune.search.sampler import DEFAULT_SAMPLER, make_sampler, portfolio, unseen_neighbour
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Parameter, Space

# A sampler that proposes only what is known gets a neighbour of the front instead.
_MOST_DUPLICATES = 5
# The search ends early when for so many trials nothing came onto the front, and for so many in a
# row no candidate promised that much more hypervolume.
_STILL_TRIALS = 25
_STILL_PROPOSALS = 10
_WORTH_A_TRIAL = 0.004
# By this share of the budget more than one value of each parameter was tried.
_SEEN_BY = 0.6
# The last trials of a budget see whether the best needs all that it changes.
_FOR_SIMPLER = 4


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
        sampler: What chooses, by name.
        first: Candidates that are measured right after the baseline.
        early_stop: Whether the search ends when nothing more is to be expected.

    Attributes:
        trials: What is measured, in order.
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
    ) -> None:
        self.trials = [t for t in storage.trials(study) if not _is_forgiven(t, limits)]
        self.twins: dict[Candidate, Trial] = {}
        self.ended = ""
        self._study = study
        self._space = space
        self._objectives = objectives
        self._limits = limits
        self._racing = racing
        self._measurer = measurer
        self._report = report
        self._record = {trial.candidate: trial for trial in self.trials}
        begin = dict.fromkeys([BASELINE, *first, *portfolio(space)])
        self._planned = [c for c in begin if c not in self._record]
        self._duplicates = 0
        self._asked: Candidate | None = None
        so_far = len(study.get_trials(deepcopy=False))
        self._proposer = None
        if sampler == DEFAULT_SAMPLER:
            self._proposer = Proposer(space, objectives, limits, seed=seed + so_far)
        self._early_stop = early_stop
        self._still_proposals = 0
        self._unseen_planned = False
        self._sampler = study.sampler = make_sampler(sampler, seed, so_far)
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
            if not self._decide(count):
                break
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

    def _decide(self, count: int) -> bool:
        """Decides what the next trial measures, or leaves it to Optuna's sampler; False to end."""
        candidate: Candidate | None = None
        done = len(self.trials)
        if self._proposer is not None and not self._planned:
            if done >= count * _SEEN_BY:
                self._plan_unseen_values()
            if done >= count - _FOR_SIMPLER:
                self._plan_simpler()
        if self._planned:
            candidate = self._planned.pop(0)
        elif self._proposer is not None:
            proposal = self._proposer.propose(self.trials, _Taken(self._record, self.twins))
            if proposal is None:
                self.ended = "every candidate is known"
                return False
            candidate = proposal.candidate
            promising = proposal.gain >= _WORTH_A_TRIAL
            self._still_proposals = 0 if promising else self._still_proposals + 1
            if self._early_stop and self._is_still(count):
                self._plan_unseen_values()
                self._plan_simpler()
                if not self._planned:
                    return False
                candidate = self._planned.pop(0)
        elif self._duplicates >= _MOST_DUPLICATES:
            around = [trial.candidate for trial in self._front()]
            candidate = unseen_neighbour(self._space, self._record, around)
            if candidate is None:
                self.ended = "every candidate is known"
                return False
        self._asked = candidate
        self._sampler.told = None
        if candidate is not None:
            # Optuna's record knows no value outside the space; ours has what was measured
            inside = self._space.nearest(candidate.to_json())
            self._sampler.told = self._space.assignment(inside)
        return True

    def _plan_unseen_values(self) -> None:
        """Plans the best so far with another value of each parameter of which one alone was seen.

        The model may take a value for the best that came with every trial that is good.
        """
        best = self.best or self.baseline
        if best is None or self._unseen_planned:
            return
        self._unseen_planned = True
        chosen = [self._space.assignment(trial.candidate) for trial in self.trials]
        for parameter in self._space.parameters:
            seen = {values[parameter.name] for values in chosen if parameter.name in values}
            unseen = [value for value in parameter.values if value not in seen]
            if len(seen) > 1 or not unseen:
                continue
            holds = {name: wanted[0] for name, wanted in parameter.when.items()}
            wanted = {**best.candidate.to_json(), **holds, parameter.name: unseen[-1]}
            candidate = self._space.nearest(wanted)
            if candidate not in self._record and candidate not in self._planned:
                self._planned.append(candidate)

    def _plan_simpler(self) -> None:
        """Plans what the best would be without the values that are worth nothing."""
        assert self._proposer is not None
        if self.baseline is None or self.baseline.measurement is None:
            return
        best = finalists(self.trials, self._limits, self._objectives)
        simpler = [self._proposer.simpler(self.trials, trial.candidate) for trial in best]
        known = _Taken(self._record, self.twins)
        self._planned += [c for c in dict.fromkeys(simpler) if c not in known]

    def _is_still(self, count: int) -> bool:
        """Returns whether nothing more is to be expected, and says so in `ended`."""
        everything = self._space.candidates
        if everything is not None and len(everything) <= count:
            return False  # few enough to know all of them
        newest = max((trial.number for trial in self._front()), default=0)
        still = sum(trial.number > newest for trial in self.trials)
        if still < _STILL_TRIALS or self._still_proposals < _STILL_PROPOSALS:
            return False
        self.ended = (
            f"the front has not moved for {still} trials, and no candidate promises more than "
            f"{_WORTH_A_TRIAL:.1%}"
        )
        return True

    def _objective(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Measures what the sampler proposes; what is known is answered from the record."""

        def choose(parameter: Parameter) -> optuna.distributions.CategoricalChoiceType:
            return trial.suggest_categorical(parameter.name, parameter.values)

        proposed = self._space.candidate(choose)  # type: ignore[arg-type]  # ours are all choices
        # what was decided may lie outside the space: the baseline, beside fixed parameters
        candidate = proposed if self._asked is None else self._asked
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

    def _give_up_running(self) -> None:
        """Tells Optuna that what a killed driver had begun or planned has failed."""
        waiting, running = optuna.trial.TrialState.WAITING, optuna.trial.TrialState.RUNNING
        for _ in self._study.get_trials(deepcopy=False, states=(waiting,)):
            self._study.ask()  # only running trials can be told
        for frozen in self._study.get_trials(deepcopy=False, states=(running,)):
            self._study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)


class _Taken:
    """The candidates that need no measurement: known ones, and all of a graph half with a twin."""

    def __init__(self, record: Mapping[Candidate, Trial], twins: Mapping[Candidate, Trial]) -> None:
        self._record = record
        self._halves = {c.graph for c, trial in twins.items() if c.graph != trial.candidate.graph}

    def __contains__(self, candidate: object) -> bool:
        assert isinstance(candidate, Candidate)
        return candidate in self._record or (bool(self._halves) and candidate.graph in self._halves)


def _is_forgiven(trial: Trial, limits: Limits) -> bool:
    """Returns whether a trial was rejected for an error that is within the limit by now."""
    outcome = trial.outcome
    return (
        isinstance(outcome, Failure)
        and outcome.error is not None
        and outcome.error <= limits.max_error
    )
