"""Which configuration is measured next, and when the search has nothing more to gain."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.deploy.options import Value
from autotune.search.objective import Objective
from autotune.search.proposer import Observation, Proposer, observe
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space

# The search ends early when for so many trials nothing came onto the front, and for so many in a
# row no configuration promised that much more hypervolume.
_STILL_TRIALS = 25
_STILL_PROPOSALS = 10
_WORTH_A_TRIAL = 0.004
# By this share of the budget more than one value of each parameter was tried.
_SEEN_BY = 0.6


class Taken:
    """The configurations that need no measurement.

    Args:
        equal: Duplicates: configurations with the other one that opens the same session.
    """

    def __init__(
        self,
        measured: Collection[Configuration],
        equal: Mapping[Configuration, Configuration] | None = None,
        claimed: Collection[Configuration] = (),
        gone: Collection[str] = (),
    ) -> None:
        self._measured = measured
        self._equal = equal or {}
        self._claimed = claimed
        self._gone = gone
        # graph parameters that equal others do so in every session
        self._repeated_graphs = {
            configuration.graph
            for configuration, other in self._equal.items()
            if configuration.graph != other.graph
        }

    def __contains__(self, configuration: object) -> bool:
        assert isinstance(configuration, Configuration)
        return (
            configuration in self._measured
            or configuration in self._equal
            or configuration in self._claimed
            or (bool(self._gone) and configuration.runtime in self._gone)
            or (bool(self._repeated_graphs) and configuration.graph in self._repeated_graphs)
        )


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The state of a search.

    Attributes:
        trials: The measured trials, in order.
        front: The trials within the limits that no other dominates.
        best: The trial within the limits that is best in the first objective.
        taken: The configurations that need no measurement.
        released: Configurations of workers that died, which are measured first.
    """

    trials: Sequence[Trial]
    front: Sequence[Trial]
    best: Trial | None
    taken: Taken
    released: Sequence[Configuration] = ()
    budget: int

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return next((trial for trial in self.trials if trial.configuration == BASELINE), None)


@dataclass
class Planner:
    """The strategy of a study: decides which configuration is measured next.

    Args:
        early_stop: Whether to end when nothing more is to be expected.

    Attributes:
        ended: Why nothing is left to measure although the budget is not spent; empty otherwise.
    """

    space: Space
    objectives: Sequence[Objective]
    limits: Limits
    proposer: Proposer
    first: Sequence[Configuration] = ()
    early_stop: bool = True
    ended: str = ""
    _observations: dict[int, Observation] = field(default_factory=dict)
    _still_proposals: int = 0
    _unseen_planned: bool = False

    def __post_init__(self) -> None:
        self._planned = list(dict.fromkeys([BASELINE, *self.first, *portfolio(self.space)]))

    def ask(self, standing: Standing) -> Configuration | None:
        """Returns the next configuration; None if none is left, and `ended` says why."""
        self.ended = ""
        self._planned = list(dict.fromkeys([*standing.released, *self._planned]))
        self._plan_ahead(standing)
        return self._next_planned(standing) or self._proposed(standing)

    def _next_planned(self, standing: Standing) -> Configuration | None:
        while self._planned:
            configuration = self._planned.pop(0)
            if configuration not in standing.taken:
                return configuration
        return None

    def _proposed(self, standing: Standing) -> Configuration | None:
        """Returns the proposal, or what is left to try before the end."""
        if standing.baseline is None:
            self.ended = "another worker is measuring the default"
            return None
        proposal = self.proposer.propose(self._observed(standing), standing.taken)
        if proposal is None:
            self.ended = "every configuration is measured"
            return None
        promising = proposal.gain >= _WORTH_A_TRIAL
        self._still_proposals = 0 if promising else self._still_proposals + 1
        if not self.early_stop or not self._is_still(standing):
            return proposal.configuration
        self._plan_unseen_values(standing)
        planned = self._next_planned(standing)
        if planned is None:
            still = _trials_since_front(standing)
            self.ended = (
                f"the front has not moved for {still} trials, and no configuration promises over "
                f"{100 * _WORTH_A_TRIAL:.1f} %"
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
        if not standing.front:
            return False  # nothing keeps the limits yet
        configurations = self.space.configurations
        if configurations is not None and len(configurations) <= standing.budget:
            return False  # few enough to measure all of them
        still = _trials_since_front(standing)
        return still >= _STILL_TRIALS and self._still_proposals >= _STILL_PROPOSALS

    def _plan_ahead(self, standing: Standing) -> None:
        if not self._planned and len(standing.trials) >= standing.budget * _SEEN_BY:
            self._plan_unseen_values(standing)

    def _plan_unseen_values(self, standing: Standing) -> None:
        """Plans the best so far with another value of each parameter that had one value alone.

        Where every good trial had the same value, the model may take that value for the reason.
        """
        best = standing.best or standing.baseline
        if best is None or self._unseen_planned:
            return
        self._unseen_planned = True
        assignments = [self.space.assignment(trial.configuration) for trial in standing.trials]
        for parameter in self.space.parameters:
            seen = {chosen[parameter.name] for chosen in assignments if parameter.name in chosen}
            unseen = [value for value in parameter.values if value not in seen]
            if len(seen) > 1:
                continue
            holds = {name: wanted[0] for name, wanted in parameter.when.items()}
            for value in reversed(unseen):
                wanted = {**best.configuration.to_json(), **holds, parameter.name: value}
                other = self.space.nearest(wanted)
                # some values cannot be chosen beside the others
                if self.space.assignment(other).get(parameter.name) == value:
                    self._planned.append(other)
                    break


def _trials_since_front(standing: Standing) -> int:
    newest = max((trial.number for trial in standing.front), default=0)
    return sum(trial.number > newest for trial in standing.trials)


# The settings that experts of ONNX Runtime try first, each as changes from the default. A value
# that a space does not offer falls back to the default. The list is short, and each entry changes
# several values that hardly ever harm: with one change each, and thirty of them, the search knew
# less after forty trials (`benchmarks/dev/search.py`), because most of them do nothing.
_OUTSIDE: Mapping[str, Value] = {"weight_storage": "external_data"}


_STATIC: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}
# Where eight bits saturate, seven are hardly slower, and the error of transformers falls to between
# two thirds and a sixth. Unsigned weights, which never saturate, took 1.2 times as long on AVX2.
_SEVEN_BITS: Mapping[str, Value] = {"reduce_range": True}


_WELL_KNOWN: tuple[Mapping[str, Value], ...] = (
    {"pre_pass": "algebra", **_OUTSIDE},
    {**_STATIC, "pre_pass": "algebra", **_OUTSIDE},
    {**_STATIC, "pre_pass": "algebra", "slow_in_float": True, **_OUTSIDE},
    {"pre_pass": "onnxscript", **_OUTSIDE},
    {**_STATIC, **_SEVEN_BITS, "quantized_operators": "products", "float_outputs": True},
    {"precision": "int8_nncf", **_OUTSIDE},
    {"precision": "int8_dynamic", "per_channel": True, **_SEVEN_BITS, **_OUTSIDE},
    {"intra_op_num_threads": 1},
    {"pre_pass": "ort_transformers", **_OUTSIDE},
    {"precision": "int8_weight_only", **_OUTSIDE},
    {"precision": "fp16_mixed", **_OUTSIDE},
)


def portfolio(space: Space) -> list[Configuration]:
    """Returns the first configurations of a study: the default, then the well-known settings."""
    configurations = (space.nearest(values) for values in ({}, *_WELL_KNOWN))
    return list(dict.fromkeys((BASELINE, *configurations)))
