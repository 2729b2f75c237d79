"""Which candidate is measured next, and when the search has nothing more to gain."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.search.finalists import finalists
from autotune.search.objective import Objective
from autotune.search.observation import Observation, observe
from autotune.search.portfolio import portfolio, unseen_neighbour
from autotune.search.proposer import Proposer
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space

# After so many repeated proposals in a row, an unseen neighbour of the front is measured instead.
_MOST_DUPLICATES = 5
# The search ends early when for so many trials nothing came onto the front, and for so many in a
# row no candidate promised that much more hypervolume.
_STILL_TRIALS = 25
_STILL_PROPOSALS = 10
_WORTH_A_TRIAL = 0.004
# By this share of the budget more than one value of each parameter was tried.
_SEEN_BY = 0.6
# The last trials of a budget see whether the best candidates need all that they change.
_FOR_SIMPLER = 4


class Taken:
    """The candidates that need no measurement.

    Args:
        measured: The measured candidates and their twins, with their trials.
        claimed: The candidates that other workers are measuring.
    """

    def __init__(
        self, measured: Mapping[Candidate, Trial], claimed: Collection[Candidate] = ()
    ) -> None:
        self._measured = measured
        self._claimed = claimed
        # a graph half that equals another one is the same in every session
        self._repeated_halves = {
            candidate.graph
            for candidate, trial in measured.items()
            if candidate.graph != trial.candidate.graph
        }

    def __contains__(self, candidate: object) -> bool:
        assert isinstance(candidate, Candidate)
        return (
            candidate in self._measured
            or candidate in self._claimed
            or (bool(self._repeated_halves) and candidate.graph in self._repeated_halves)
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state of a search.

    Attributes:
        trials: The measured trials, in order.
        front: The trials within the limits that no other beats.
        best: The trial within the limits that is best in the first objective.
        taken: The candidates that need no measurement.
        claimed_again: Candidates of workers that died, which are measured first.
        budget: How many trials there may be.
    """

    trials: Sequence[Trial]
    front: Sequence[Trial]
    best: Trial | None
    taken: Taken
    claimed_again: Sequence[Candidate] = ()
    budget: int

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return next((trial for trial in self.trials if trial.candidate == BASELINE), None)


@dataclass
class Planner:
    """Decides the next candidate of a study.

    Args:
        space: The search space.
        objectives: The objectives of the study.
        limits: The limits of the study.
        first: Candidates that are measured right after the default.
        proposer: Proposes candidates once the planned ones are measured; None leaves that to a
            sampler of Optuna's.
        early_stop: Whether to end when nothing more is to be expected.

    Attributes:
        ended: Why nothing is left to measure although the budget is not spent; empty otherwise.
    """

    space: Space
    objectives: Sequence[Objective]
    limits: Limits
    first: Sequence[Candidate] = ()
    proposer: Proposer | None = None
    early_stop: bool = True
    ended: str = ""
    _observations: dict[int, Observation] = field(default_factory=dict)
    _still_proposals: int = 0
    _unseen_planned: bool = False

    def __post_init__(self) -> None:
        self._planned = list(dict.fromkeys([BASELINE, *self.first, *portfolio(self.space)]))

    def decide(self, standing: Standing, duplicates: int = 0) -> Candidate | None:
        """Returns the next candidate; None if there is none, or if Optuna's sampler is to choose.

        `ended` tells one from the other.

        Args:
            standing: The state of the search.
            duplicates: How often in a row Optuna's sampler proposed a measured candidate.
        """
        self.ended = ""
        self._planned = list(dict.fromkeys([*standing.claimed_again, *self._planned]))
        if self.proposer is not None:
            self._plan_ahead(self.proposer, standing)
        planned = self._next_planned(standing)
        if planned is not None:
            return planned
        if self.proposer is not None:
            return self._proposed(self.proposer, standing)
        if duplicates < _MOST_DUPLICATES:
            return None
        around = [trial.candidate for trial in standing.front]
        candidate = unseen_neighbour(self.space, standing.taken, around)
        if candidate is None:
            self.ended = "every candidate is measured"
        return candidate

    def _next_planned(self, standing: Standing) -> Candidate | None:
        while self._planned:
            candidate = self._planned.pop(0)
            if candidate not in standing.taken:
                return candidate
        return None

    def _proposed(self, proposer: Proposer, standing: Standing) -> Candidate | None:
        """Returns the proposal, or what is left to try before the end."""
        if standing.baseline is None:
            self.ended = "another worker is measuring the default"
            return None
        proposal = proposer.propose(self._observed(standing), standing.taken)
        if proposal is None:
            self.ended = "every candidate is measured"
            return None
        promising = proposal.gain >= _WORTH_A_TRIAL
        self._still_proposals = 0 if promising else self._still_proposals + 1
        if not self.early_stop or not self._is_still(standing):
            return proposal.candidate
        self._plan_unseen_values(standing)
        self._plan_simpler(proposer, standing)
        planned = self._next_planned(standing)
        if planned is None:
            still = _trials_since_front(standing)
            self.ended = (
                f"the front has not moved for {still} trials, and no candidate promises more than "
                f"{_WORTH_A_TRIAL:.1%}"
            )
        return planned

    def _observed(self, standing: Standing) -> list[Observation]:
        for trial in standing.trials:
            if trial.number not in self._observations:
                observation = observe(trial, self.objectives, self.limits)
                self._observations[trial.number] = observation
        return [self._observations[trial.number] for trial in standing.trials]

    def _is_still(self, standing: Standing) -> bool:
        """Returns whether nothing more is to be expected."""
        candidates = self.space.candidates
        if candidates is not None and len(candidates) <= standing.budget:
            return False  # few enough to measure all of them
        still = _trials_since_front(standing)
        return still >= _STILL_TRIALS and self._still_proposals >= _STILL_PROPOSALS

    def _plan_ahead(self, proposer: Proposer, standing: Standing) -> None:
        done = len(standing.trials)
        if self._planned:
            return
        if done >= standing.budget * _SEEN_BY:
            self._plan_unseen_values(standing)
        if done >= standing.budget - _FOR_SIMPLER:
            self._plan_simpler(proposer, standing)

    def _plan_unseen_values(self, standing: Standing) -> None:
        """Plans the best so far with another value of each parameter that had one value alone.

        Where every good trial had the same value, the model may take that value for the reason.
        """
        best = standing.best or standing.baseline
        if best is None or self._unseen_planned:
            return
        self._unseen_planned = True
        assignments = [self.space.assignment(trial.candidate) for trial in standing.trials]
        for parameter in self.space.parameters:
            seen = {chosen[parameter.name] for chosen in assignments if parameter.name in chosen}
            unseen = [value for value in parameter.values if value not in seen]
            if len(seen) > 1:
                continue
            holds = {name: wanted[0] for name, wanted in parameter.when.items()}
            for value in reversed(unseen):
                wanted = {**best.candidate.to_json(), **holds, parameter.name: value}
                other = self.space.nearest(wanted)
                # some values cannot be chosen beside the others
                if self.space.assignment(other).get(parameter.name) == value:
                    self._planned.append(other)
                    break

    def _plan_simpler(self, proposer: Proposer, standing: Standing) -> None:
        """Plans the finalists without the values that change nothing."""
        if standing.baseline is None or standing.baseline.measurement is None:
            return
        observations = self._observed(standing)
        for trial in finalists(standing.trials, self.limits, self.objectives, self.space):
            self._planned.append(proposer.simpler(observations, trial.candidate))


def _trials_since_front(standing: Standing) -> int:
    newest = max((trial.number for trial in standing.front), default=0)
    return sum(trial.number > newest for trial in standing.trials)
