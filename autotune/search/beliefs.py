"""What the model of effects says of a study's trials, for people and for the final comparison."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.search.coding import Coding, Floats
from autotune.search.effects import Model
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space

_SWEEPS_TO_EXPLAIN = 6
_SWEEPS_TO_BELIEVE = 8
_FEWEST_TO_BELIEVE = 8
# Errors of numbers without outliers are rarely more than six times their median.
_ODD_MEDIANS = 6.0
_ODD_AT_LEAST = 0.05
_MOST_ODD = 8


@dataclass(frozen=True, kw_only=True)
class Effect:
    """How much one value alone changes an objective, all other parameters at their default.

    Attributes:
        factor: The factor on the objective, with its 95 % interval.
    """

    parameter: str
    value: Value
    objective: str
    factor: Interval
    trials: int

    @property
    def is_known(self) -> bool:
        """Whether the interval leaves out 1."""
        return not self.factor.low <= 1 <= self.factor.high


def believed(
    space: Space, trials: Sequence[tuple[Configuration, Mapping[str, float]]]
) -> list[dict[str, float]]:
    """Returns the values that the model gives each trial: without most of the luck of measuring.

    The best of a hundred noisy numbers was lucky. A number that contradicts all the others is
    replaced by what the others predict. Trials outside the space, and trials that are too few for a
    model, keep their measured values.

    Args:
        trials: Configurations with their measured objectives; the default must be among them.
    """
    coding = Coding(space)
    beliefs = [dict(values) for _, values in trials]
    covered = [i for i, (configuration, _) in enumerate(trials) if coding.covers(configuration)]
    base = next((values for configuration, values in trials if configuration == BASELINE), None)
    if base is None or len(covered) < _FEWEST_TO_BELIEVE:
        return beliefs
    rows = coding.rows([trials[i][0] for i in covered])
    for objective, scale in base.items():
        logs = np.log([max(trials[i][1][objective], 1e-9) / scale for i in covered])
        means, _ = _without_outliers(coding, rows, logs).predict(rows)
        for i, mean in zip(covered, means, strict=True):
            beliefs[i][objective] = float(np.exp(mean) * scale)
    return beliefs


def _without_outliers(coding: Coding, rows: Floats, logs: Floats) -> Model:
    """Returns a model of all numbers but the few that the others contradict.

    They are removed one after another, because an outlier makes its neighbours look odd as well.
    """
    kept = np.arange(len(rows))
    model = Model(coding, rows, logs, sweeps=_SWEEPS_TO_BELIEVE)
    for _ in range(_MOST_ODD):
        errors = np.abs(model.left_out_errors())
        # all others are relative to the default: it stays
        errors[~rows[kept].any(axis=1)] = 0.0
        worst = int(errors.argmax())
        if errors[worst] <= max(_ODD_MEDIANS * float(np.median(errors)), _ODD_AT_LEAST):
            break
        kept = np.delete(kept, worst)
        model = Model(coding, rows[kept], logs[kept], scales=model.scales, sweeps=0)
    if len(kept) == len(rows):
        return model
    return Model(coding, rows[kept], logs[kept], scales=model.scales, sweeps=_SWEEPS_TO_BELIEVE)


def explain(
    space: Space, trials: Sequence[tuple[Configuration, Mapping[str, float]]]
) -> tuple[Effect, ...]:
    """Returns the effects of all values that were tried, the strongest first.

    Args:
        trials: Configurations with their measured objectives; the default must be among them.
    """
    coding = Coding(space)
    covered = [
        (configuration, values) for configuration, values in trials if coding.covers(configuration)
    ]
    rows = coding.rows([configuration for configuration, _ in covered])
    counts = rows.sum(axis=0).astype(int)
    explained = []
    base = next(values for configuration, values in covered if configuration == BASELINE)
    for objective, scale in base.items():
        logs = np.log([max(values[objective], 1e-9) / scale for _, values in covered])
        effects = Model(coding, rows, logs, sweeps=_SWEEPS_TO_EXPLAIN).effects()
        for (name, value), word, (mean, deviation), count in zip(
            coding.columns, coding.providers, effects, counts, strict=True
        ):
            if count and not word:  # what a value does beside another provider is not its effect
                low, middle, high = np.exp(mean + 1.96 * deviation * np.asarray([-1.0, 0.0, 1.0]))
                explained.append(
                    Effect(
                        parameter=name,
                        value=value,
                        objective=objective,
                        factor=Interval(value=float(middle), low=float(low), high=float(high)),
                        trials=int(count),
                    )
                )
    return tuple(sorted(explained, key=lambda effect: -abs(np.log(effect.factor.value))))
