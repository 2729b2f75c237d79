"""The expected gain of configurations that were not measured, by the models of the objectives."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.coding import Floats
from autotune.search.effects import Model
from autotune.space.configuration import Configuration

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

    model: Model
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

    Args:
        hurdles: Quantities that must stay below a limit.

    Attributes:
        front: The measured configurations that no other beats, by the means of the models.
    """

    def __init__(
        self,
        targets: Sequence[Model],
        hurdles: Sequence[Hurdle],
        rows: Floats,
        configurations: Sequence[Configuration],
        admitted: NDArray[np.bool_],
    ) -> None:
        self._targets = targets
        self._hurdles = hurdles
        # the model's means, not the numbers themselves: the best measured of them promises too much
        means = np.stack([target.predict(rows)[0] for target in targets], axis=1)[admitted]
        kept = [c for c, keeps in zip(configurations, admitted, strict=True) if keeps]
        best = [i for i, mine in enumerate(means) if not (means < mine).all(axis=1).any()]
        self.front = [kept[i] for i in best]
        values = means[best]
        worst = values.max(axis=0, initial=0.0)
        self._reference = np.minimum(worst, _FARTHEST) + _MARGIN
        count = len(targets)
        fixed = np.random.default_rng(0)
        self._draws = fixed.normal(size=(_DRAWS, 1, count))
        towards = np.abs(fixed.normal(size=(_DIRECTIONS, count)))
        self._directions = towards / np.linalg.norm(towards, axis=1, keepdims=True)
        self._best = self._scalarised(values).max(axis=0, initial=0.0)
        self._ends = values.min(axis=0, initial=0.0)
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
