"""What is measured next, and when nothing more is to be expected."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.search.finalists import finalists
from autotune.search.objective import Objective
from autotune.search.portfolio import DEFAULT_SAMPLER, portfolio, unseen_neighbour
from autotune.search.proposer import Prior, Proposer
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space

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


class Taken:
    """What needs no measurement: known candidates, what others measure, halves with a twin.

    Args:
        known: What was measured, by all its names.
        claimed: What other drivers are measuring.
        twins: Candidates that come to the same as one that was measured.
    """

    def __init__(
        self,
        known: Mapping[Candidate, Trial],
        claimed: Collection[Candidate],
        twins: Mapping[Candidate, Trial],
    ) -> None:
        self._known = known
        self._claimed = claimed
        self._halves = {c.graph for c, trial in twins.items() if c.graph != trial.candidate.graph}

    def __contains__(self, candidate: object) -> bool:
        assert isinstance(candidate, Candidate)
        return (
            candidate in self._known
            or candidate in self._claimed
            or (bool(self._halves) and candidate.graph in self._halves)
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where a search stands.

    Attributes:
        trials: What was measured, in order.
        baseline: Trial 0, once it is measured.
        best: The trial within the limits that is best in the first objective.
        front: The trials within the limits that no other beats.
        taken: What needs no measurement.
        duplicates: How often in a row Optuna's sampler proposed what is known.
        budget: How many trials there may be.
    """

    trials: Sequence[Trial]
    baseline: Trial | None
    best: Trial | None
    front: Sequence[Trial]
    taken: Taken
    duplicates: int
    budget: int


@dataclass
class Planner:
    """Decides what a search measures next.

    Args:
        space: What may be tried.
        objectives: What is made small.
        limits: What a configuration must keep.
        sampler: What chooses, by name.
        seed: Of the sampler.
        first: Candidates that are measured right after the baseline.
        early_stop: Whether to end when nothing more is to be expected.
        prior: What relatives of the study let expect.

    Attributes:
        ended: Why there is nothing to measure although the budget is not spent.
    """

    space: Space
    objectives: Sequence[Objective]
    limits: Limits
    sampler: str
    seed: int
    first: Sequence[Candidate] = ()
    early_stop: bool = True
    prior: Prior = field(default_factory=dict)
    ended: str = ""

    def __post_init__(self) -> None:
        self._planned = list(dict.fromkeys([BASELINE, *self.first, *portfolio(self.space)]))
        self._proposer: Proposer | None = None
        if self.sampler == DEFAULT_SAMPLER:
            self._proposer = Proposer(
                self.space, self.objectives, self.limits, self.seed, self.prior
            )
        self._still_proposals = 0
        self._unseen_planned = False

    def plan(self, candidates: Sequence[Candidate]) -> None:
        """Puts candidates before all others."""
        self._planned = list(dict.fromkeys([*candidates, *self._planned]))

    def decide(self, standing: Standing) -> Candidate | None:
        """Returns what to measure next; None if there is nothing, or Optuna's sampler is to choose.

        `ended` tells one from the other.
        """
        self.ended = ""
        if self._proposer is not None:
            self._plan_ahead(self._proposer, standing)
        planned = self._next_planned(standing)
        if planned is not None:
            return planned
        if self._proposer is not None:
            return self._proposed(self._proposer, standing)
        if standing.duplicates < _MOST_DUPLICATES:
            return None
        around = [trial.candidate for trial in standing.front]
        candidate = unseen_neighbour(self.space, standing.taken, around)
        if candidate is None:
            self.ended = "every candidate is known"
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
            self.ended = "another driver is measuring the baseline"
            return None
        proposal = proposer.propose(standing.trials, standing.taken)
        if proposal is None:
            self.ended = "every candidate is known"
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

    def _is_still(self, standing: Standing) -> bool:
        """Returns whether nothing more is to be expected."""
        everything = self.space.candidates
        if everything is not None and len(everything) <= standing.budget:
            return False  # few enough to know all of them
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
        """Plans the best so far with another value of each parameter of which one alone was seen.

        The model may take a value for the best that came with every trial that is good.
        """
        best = standing.best or standing.baseline
        if best is None or self._unseen_planned:
            return
        self._unseen_planned = True
        chosen = [self.space.assignment(trial.candidate) for trial in standing.trials]
        for parameter in self.space.parameters:
            seen = {values[parameter.name] for values in chosen if parameter.name in values}
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
        """Plans what the best would be without the values that are worth nothing."""
        if standing.baseline is None or standing.baseline.measurement is None:
            return
        best = finalists(standing.trials, self.limits, self.objectives, self.space)
        self._planned += [proposer.simpler(standing.trials, t.candidate) for t in best]


def _trials_since_front(standing: Standing) -> int:
    newest = max((trial.number for trial in standing.front), default=0)
    return sum(trial.number > newest for trial in standing.trials)
