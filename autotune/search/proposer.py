"""The configuration to measure next, by what the trials so far say about all the others.

Each objective is modelled (:mod:`autotune.search.effects`), and so are the answers' error and
whether a configuration runs at all. The next configuration is the one with the largest expected
improvement of the front's hypervolume in logarithms, where a tenth less of each objective counts
the same. The hypervolume is taken as the mean of scalarisations over random directions (Zhang and
Golovin, Random Hypervolume Scalarizations, ICML 2020), which holds for any number of objectives.
"""

import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.measure.outcome import Failure
from autotune.search.coding import Coding, Floats
from autotune.search.effects import START, Mean, Posterior, Scales
from autotune.search.objective import Objective, values
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space

_DRAWS = 16
_DIRECTIONS = 16
# The hypervolume reaches from the front to a little beyond the default, or to the front's own ends
# where these are worse in one objective, but not far: with a reach of twice the default, a third of
# the trials went to configurations that few would use.
_MARGIN = math.log(1.1)
_FARTHEST = math.log(1.25)
# A gain is relative to the hypervolume, or to one that reaches so far in each objective.
_LEAST_VOLUME = math.log(1.5)
# The ends of the front count by themselves as well: most users take the fastest.
_ENDS = 0.3


@dataclass(frozen=True, kw_only=True)
class Hurdle:
    """A modelled quantity that must stay below a limit.

    Attributes:
        limit: The limit, in the units of the model.
        columns: The columns that the quantity depends on; 1 means all.
    """

    model: Posterior
    limit: float
    columns: NDArray[np.bool_] | int = 1

    def shares_cleared(self, rows: Floats) -> Floats:
        """Returns the probability of each row to stay below the limit."""
        mean, deviation = self.model.predict(rows * self.columns)
        deviations = (self.limit - mean) / deviation
        shares: Floats = np.asarray([0.5 * math.erfc(-d / math.sqrt(2)) for d in deviations])
        return shares


class Outlook:
    """The prospects of configurations that were not measured, after the trials so far.

    Attributes:
        front: The measured configurations that no other dominates, by the means of the models.
    """

    def __init__(
        self,
        targets: Sequence[Posterior],
        hurdles: Sequence[Hurdle],
        rows: Floats,
        configurations: Sequence[Configuration],
        admitted: NDArray[np.bool_],
    ) -> None:
        self._targets = targets
        self._hurdles = hurdles
        # the model's means, not the numbers themselves: the best measured of them promises too much
        every = np.stack([target.predict(rows)[0] for target in targets], axis=1)
        means = every[admitted]
        kept = [c for c, keeps in zip(configurations, admitted, strict=True) if keeps]
        best = [i for i, mine in enumerate(means) if not (means < mine).all(axis=1).any()]
        self.front = [kept[i] for i in best]
        values = means[best]
        # the default counts, unless it breaks a limit: then what does not may be worse than it
        known = values if admitted.any() else every
        has_default = bool(admitted[~rows.any(axis=1)].any())
        origin = np.zeros(len(targets)) if has_default else known.max(axis=0)
        worst = np.maximum(known.max(axis=0), origin)
        self._reference = np.minimum(worst, origin + _FARTHEST) + _MARGIN
        count = len(targets)
        fixed = np.random.default_rng(0)
        self._draws = fixed.normal(size=(_DRAWS, 1, count))
        towards = np.abs(fixed.normal(size=(_DIRECTIONS, count)))
        self._directions = towards / np.linalg.norm(towards, axis=1, keepdims=True)
        self._best = self._scalarised(values).max(axis=0, initial=0.0)
        self._ends = np.vstack([values, origin]).min(axis=0)
        self._volume = max(float((self._best**count).mean()), _LEAST_VOLUME**count)

    def gains(self, rows: Floats) -> Floats:
        """Returns the expected relative improvement of the hypervolume by each row."""
        predictions = [target.predict(rows) for target in self._targets]
        means = np.stack([mean for mean, _ in predictions], axis=1)
        deviations = np.stack([deviation for _, deviation in predictions], axis=1)
        drawn = means + deviations * self._draws
        power = drawn.shape[-1]
        volume = np.maximum(self._scalarised(drawn), self._best) ** power - self._best**power
        gains = volume.mean(axis=-1) / self._volume
        gains += _ENDS * np.maximum(self._ends - drawn, 0.0).sum(axis=-1)
        expected: Floats = gains.mean(axis=0)
        for hurdle in self._hurdles:
            expected *= hurdle.shares_cleared(rows)
        return expected

    def _scalarised(self, values: Floats) -> Floats:
        """Returns how far values reach from the reference in each direction; [..., directions]."""
        reach = np.maximum(self._reference - values, 0.0)
        # objective by objective: numpy is slow along a short last axis
        shortest: Floats = reach[..., 0, None] / self._directions[:, 0]
        for i in range(1, reach.shape[-1]):
            np.minimum(shortest, reach[..., i, None] / self._directions[:, i], out=shortest)
        return shortest


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one trial tells the models.

    Attributes:
        values: Its positive numbers, each smaller the better it is, by the name of the quantity;
            None where it failed.
        violations: How far it breaks each limit; above 0 is a violation. ``valid`` and ``error``
            are always there.
        is_unmade: Whether its model file could not be made.
    """

    configuration: Configuration
    values: Mapping[str, float] | None
    violations: Mapping[str, float]
    is_unmade: bool = False

    @property
    def is_admitted(self) -> bool:
        """Whether it keeps all limits."""
        return max(self.violations.values()) <= 0


def observe(trial: Trial, objectives: Sequence[Objective], limits: Limits) -> Observation:
    """Returns the observation of a trial of a study with these objectives and limits."""
    measurement, outcome = trial.measurement, trial.outcome
    numbers = None
    if measurement is not None:
        own = values(measurement, objectives)
        numbers = {
            "p99_ms": measurement.tail_ms,
            **{o.name: o.cost(own[o.name]) for o in objectives if o.name in own},
            "latency_ms": measurement.latency_ms,
            "peak_memory_mib": measurement.peak_memory_mib,
            "held_memory_mib": measurement.held_memory_mib,
        }
    return Observation(
        configuration=trial.configuration,
        values=numbers,
        violations=limits.violations(outcome),
        is_unmade=isinstance(outcome, Failure) and outcome.phase == "prepare",
    )


# So many configurations are drawn at random, beside those around the front; and so often the
# neighbourhoods of the best of these follow.
_RANDOM = 150
_ROUNDS = 3
_CENTRES = 4
_LEAST_EXCESS, _LARGEST_EXCESS = 1e-3, 30.0
# Whether a configuration runs is 0 or 1, and one value alone may decide it. Errors span decades.
_YES_OR_NO = Scales(
    single=0.5,
    pair_graph=0.1,
    pair_mixed=0.05,
    pair_session=0.05,
    graph_set=0.3,
    noise=0.001,
)
_STARTS = {
    "made": _YES_OR_NO,
    "valid": _YES_OR_NO,
    "error": Scales(
        single=4.0,
        pair_graph=1.0,
        pair_mixed=0.1,
        pair_session=0.01,
        graph_set=0.5,
        noise=0.001,
    ),
}
# Models look at so many trials; what more of them would add is small.
_MOST_TRIALS = 400
# The scales of a model are chosen anew whenever there are so many times more trials.
_ANEW = 1.1


Prior = Mapping[str, Mean]
"""By objective, the expected values of rows by an earlier study of the same model."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A configuration to measure next.

    Attributes:
        gain: Expected improvement of the front's hypervolume, relative to what it is.
    """

    configuration: Configuration
    gain: float


class Proposer:
    """Proposes configurations of a space.

    Args:
        bounds: Upper bounds of quantities, by name.
    """

    def __init__(
        self,
        space: Space,
        objectives: Sequence[str],
        bounds: Mapping[str, float],
        seed: int | None,
        prior: Prior | None = None,
    ) -> None:
        self._space = space
        self._objectives = objectives
        self._bounds = bounds
        self._random = np.random.default_rng(seed)
        self._prior = prior or {}
        self._coding = Coding(space)
        self._scales: dict[str, Scales] = {}
        self._chosen_at: dict[str, int] = {}
        self._neighbours: dict[Configuration, list[Configuration]] = {}

    def propose(
        self, observations: Sequence[Observation], taken: Container[Configuration]
    ) -> Proposal | None:
        """Returns the configuration to measure next; None if every configuration is taken.

        Args:
            observations: The trials so far; the default must be among them.
        """
        outlook = self._outlook(observations)
        best: Proposal | None = None
        looked_at: set[Configuration] = set()
        around = [*self._near(outlook.front), *self._crossed(outlook.front), *self._drawn()]
        for _ in range(_ROUNDS):
            pool = [c for c in dict.fromkeys(around) if c not in taken and c not in looked_at]
            if not pool:
                break
            looked_at.update(pool)
            gains = outlook.gains(self._coding.rows(pool))
            order = np.argsort(-gains)[:_CENTRES]
            if best is None or gains[order[0]] > best.gain:
                best = Proposal(configuration=pool[order[0]], gain=float(gains[order[0]]))
            around = self._near([pool[i] for i in order])
        if best is None:
            left = next((c for c in self._space.configurations or () if c not in taken), None)
            best = None if left is None else Proposal(configuration=left, gain=0.0)
        return best

    def _near(self, centres: Sequence[Configuration]) -> list[Configuration]:
        """Returns the neighbours of the centres."""
        for centre in centres:
            if centre not in self._neighbours:
                self._neighbours[centre] = self._space.neighbours(centre)
        return [other for centre in centres for other in self._neighbours[centre]]

    def _crossed(self, front: Sequence[Configuration]) -> list[Configuration]:
        """Returns each member's graph parameters with each other's session parameters."""
        return [
            self._space.nearest({**one.session.to_json(), **other.graph.to_json()})
            for one, other in itertools.permutations(front, 2)
        ]

    def _drawn(self) -> list[Configuration]:
        everything = self._space.configurations
        if everything is not None:
            count = min(_RANDOM, len(everything))
            chosen = self._random.choice(len(everything), count, replace=False)
            return [everything[i] for i in chosen]
        return [
            self._space.configuration(lambda p: p.values[self._random.integers(len(p.values))])
            for _ in range(_RANDOM)
        ]

    def _outlook(self, observations: Sequence[Observation]) -> Outlook:
        # a configuration that the user asked for may have values outside the space
        covered = [o for o in observations if self._coding.covers(o.configuration)]
        chosen = self._informative(covered)
        base = next(o.values for o in chosen if o.configuration == BASELINE)
        assert base is not None
        measured = [(o, o.values) for o in chosen if o.values is not None]
        configurations = [observation.configuration for observation, _ in measured]
        rows = self._coding.rows(configurations)

        def log_of(name: str) -> Posterior:
            scale = base.get(name) or 1.0
            logs = [math.log((numbers.get(name) or scale) / scale) for _, numbers in measured]
            return self._model(name, rows, logs)

        targets = [log_of(name) for name in self._objectives]
        hurdles = [
            Hurdle(model=log_of(name), limit=math.log(bound / base[name]))
            for name, bound in self._bounds.items()
        ]
        hurdles += self._hurdles_of_failures(chosen)
        admitted = [observation.is_admitted for observation, _ in measured]
        return Outlook(targets, hurdles, rows, configurations, np.asarray(admitted))

    def _hurdles_of_failures(self, observations: Sequence[Observation]) -> Iterator[Hurdle]:
        """Yields whether a model can be made, whether it runs, and whether its answers are right.

        The first two are 0 for yes and 1 for no: a prediction below a half means yes.
        """
        rows = self._coding.rows([observation.configuration for observation in observations])
        excess = np.asarray([observation.violations["error"] for observation in observations])
        wrong = excess > 0
        unmade = np.asarray([observation.is_unmade for observation in observations])
        failed = np.asarray([o.violations["valid"] > 0 for o in observations]) & ~unmade
        failed |= wrong & self._is_broken(rows, wrong)
        if unmade.any():
            # a set of graph parameters that cannot be made fails in every session
            mask = self._coding.is_graph
            model = self._model("made", rows * mask, 1.0 * unmade)
            yield Hurdle(model=model, limit=0.5, columns=mask)
        if failed.any():
            yield Hurdle(model=self._model("valid", rows, 1.0 * failed), limit=0.5)
        ran = ~unmade & ~failed
        if wrong[ran].any():
            # a precision has one error in every session, storage form and pre-pass
            mask = self._coding.is_of_answers
            logs = np.log(np.clip(1 + excess, _LEAST_EXCESS, _LARGEST_EXCESS))
            base_log = logs[
                next(i for i, o in enumerate(observations) if o.configuration == BASELINE)
            ]
            model = self._model("error", (rows * mask)[ran], (logs - base_log)[ran])
            yield Hurdle(model=model, limit=-base_log, columns=mask)

    def _is_broken(self, rows: Floats, wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns which models are wrong without any change of precision.

        Their pre-pass or storage form is at fault then, with every precision.
        """
        mask = self._coding.is_of_answers
        rest = rows * (self._coding.is_graph & ~mask)
        at_fault = wrong & rest.any(axis=1) & ~(rows * mask).any(axis=1)
        broken = {row.tobytes() for row in rest[at_fault]}
        return np.asarray([row.tobytes() in broken for row in rest])

    def _informative(self, observations: Sequence[Observation]) -> Sequence[Observation]:
        """Returns the trials that the models look at: all, up to :data:`_MOST_TRIALS`.

        Of more trials, these are the default, the best in each objective, the latest, those that
        failed or were wrong, and others evenly from the rest: the cost of a model is the cube of
        their number.
        """
        if len(observations) <= _MOST_TRIALS:
            return observations
        chosen = {i for i, o in enumerate(observations) if o.configuration == BASELINE}
        for name in self._objectives:
            numbers = [(o.values.get(name) if o.values else None) for o in observations]
            ranked = sorted((value, i) for i, value in enumerate(numbers) if value is not None)
            chosen |= {i for _, i in ranked[: _MOST_TRIALS // 8]}
        wrong = [i for i, observation in enumerate(observations) if not observation.is_admitted]
        chosen |= set(wrong[-_MOST_TRIALS // 4 :])
        chosen |= set(range(len(observations) - _MOST_TRIALS // 4, len(observations)))
        rest = [i for i in range(len(observations)) if i not in chosen]
        left = _MOST_TRIALS - len(chosen)
        chosen |= {rest[i * len(rest) // left] for i in range(left)}
        return [observations[i] for i in sorted(chosen)]

    def _model(self, name: str, rows: Floats, values: Sequence[float] | Floats) -> Posterior:
        count = len(values)
        anew = count >= _ANEW * self._chosen_at.get(name, 0)
        model = Posterior(
            self._coding,
            rows,
            np.asarray(values, dtype=np.float64),
            start=_STARTS.get(name, START),
            scales=self._scales.get(name),
            sweeps=1 if anew else 0,
            mean=self._prior.get(name),
        )
        if anew:
            self._chosen_at[name] = count
            self._scales[name] = model.scales
        return model
