"""A Bayesian linear model of what each value changes in the logarithm of a quantity.

The logarithm of a configuration's latency, or memory, is modelled as the default's plus an effect
of each of its values that differ from the default, plus an effect of each pair of them, plus one of
its graph parameters as a whole. All effects are Gaussian around zero. How large they tend to be,
and how much each parameter matters, is chosen by the evidence (the marginal likelihood; Rasmussen
and Williams, Gaussian Processes for Machine Learning, 2006, 5.4.1). The model is computed as the
Gaussian process that it is equal to, because there are more pairs than trials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.search.coding import Coding, Floats
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space

# The choice of scales needs so many trials, and looks at no more than that: it costs their cube.
_FEWEST_FOR_SCALES = 4
_MOST_FOR_SCALES = 160
_JITTER = 1e-9


@dataclass(frozen=True, kw_only=True)
class Scales:
    """How large effects tend to be: variances, in squared logarithms.

    Attributes:
        single: Variance of the effect of one value, before the relevance of its parameter.
        pair_graph: Variance of a pair of values of the graph parameters, before both relevances.
        pair_mixed: Variance of a pair with a value of each half, before both relevances.
        pair_session: Variance of a pair of values of the session parameters, before both
            relevances.
        graph_set: Variance of a set of graph parameters as a whole, beyond its values and pairs.
    """

    single: float = 0.04
    pair_graph: float = 0.01
    pair_mixed: float = 0.01
    pair_session: float = 0.003
    graph_set: float = 0.003
    noise: float = 2e-4
    relevance: tuple[float, ...] = ()


START = Scales()
"""The scales of latency and memory before any trial: one value changes them by a fifth or so."""

# How far the evidence may move the scales from their start: standard deviations of logarithms. If
# the few values tried so far do little, that says much about their parameters and little about all
# others.
_FREEDOM = {"single": 0.3, "pair_graph": 0.7, "pair_mixed": 0.7, "pair_session": 0.7}
_OTHER_FREEDOM = 1.5


Mean = Callable[[Floats], Floats]
"""Maps rows to their expected values before any trial, one number for each row."""


def _nothing(rows: Floats) -> Floats:
    return np.zeros(len(rows))


class Posterior:
    """The posterior of one quantity after some trials.

    Args:
        values: Logarithm of the quantity over the default's, one for each trial.
        start: How large the effects of such a quantity tend to be before any trial.
        scales: The scales of an earlier model, where the choice goes on; `start` if None.
        sweeps: How often, at most, the choice of scales goes over all of them.
        mean: The expected values of rows before any trial; zero if None.
    """

    def __init__(
        self,
        coding: Coding,
        rows: Floats,
        values: Floats,
        *,
        start: Scales = START,
        scales: Scales | None = None,
        sweeps: int = 1,
        mean: Mean | None = None,
    ) -> None:
        self._coding = coding
        self._rows = rows
        self._mean = mean or _nothing
        self._values = values = values - self._mean(rows)
        self._start = start
        count = len(set(coding.parameter))
        self.scales = scales or replace(start, relevance=(1.0,) * count)
        if sweeps and len(values) >= _FEWEST_FOR_SCALES:
            self._choose_scales(sweeps)
        covariance = _of_measurements(coding, self.scales, rows)
        self._inverse: Floats = np.asarray(np.linalg.inv(covariance), dtype=np.float64)
        self._weights: Floats = self._inverse @ values

    def _choose_scales(self, sweeps: int) -> None:
        """Moves the scales to where the trials are likelier, by coordinate search."""
        rows, values = self._rows, self._values
        if len(values) > _MOST_FOR_SCALES:
            some = np.random.default_rng(len(values)).permutation(len(values))[:_MOST_FOR_SCALES]
            rows, values = rows[some], values[some]

        def worth(scales: Scales) -> float:
            fit = _log_evidence(self._coding, rows, values, scales)
            return fit + _log_prior(scales, self._start)

        best, best_worth = self.scales, worth(self.scales)
        tried = {int(number) for number in self._coding.parameter[rows.any(axis=0)]}
        for _ in range(sweeps):
            worth_before = best_worth
            moves: list[str | int] = [*_SCALARS, *tried]
            for move in moves:
                for factor in (2.0, 0.5):
                    other = _moved(best, move, factor)
                    other_worth = worth(other)
                    if other_worth > best_worth:
                        best, best_worth = other, other_worth
                        break
            if best_worth == worth_before:
                break
        self.scales = best

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """Returns mean and standard deviation for other rows, without the noise of measuring."""
        across = _covariance(self._coding, self.scales, rows, self._rows)
        variance = _variance(self._coding, self.scales, rows)
        variance -= np.einsum("ij,ij->i", across @ self._inverse, across)
        means = self._mean(rows) + across @ self._weights
        return means, np.sqrt(np.maximum(variance, 1e-12))

    def left_out_errors(self) -> tuple[Floats, Floats]:
        """Returns how far each trial is above its prediction from all others, and the deviation.

        The deviation is the standard deviation of that prediction: it is large where no other trial
        has the same values (Rasmussen and Williams, 5.4.2).
        """
        variance = 1 / np.diag(self._inverse)
        return self._weights * variance, np.sqrt(variance)

    def effects(self) -> list[tuple[float, float]]:
        """Returns mean and standard deviation of each column's effect by itself."""
        relevance = np.asarray(self.scales.relevance)[self._coding.parameter]
        prior = self.scales.single * relevance
        across = self._rows * prior
        mean = across.T @ self._weights
        variance = prior - np.einsum("ji,jk,ki->i", across, self._inverse, across)
        return list(zip(mean.tolist(), np.sqrt(np.maximum(variance, 0.0)).tolist(), strict=True))


def _covariance(coding: Coding, scales: Scales, left: Floats, right: Floats) -> Floats:
    """Returns the prior covariance of two sets of rows."""
    relevance = np.asarray(scales.relevance)[coding.parameter]
    graph, session = coding.is_graph * relevance, ~coding.is_graph * relevance
    in_graph = (left * graph) @ right.T
    in_session = (left * session) @ right.T
    halves = coding.graph_sets(left)[:, None]
    same_half = (halves == coding.graph_sets(right)) & (halves != 0.0)
    # the sum over pairs is half of the square of the sum less the squares
    pairs_graph = (in_graph**2 - (left * graph**2) @ right.T) / 2
    pairs_session = (in_session**2 - (left * session**2) @ right.T) / 2
    total: Floats = (
        scales.single * (in_graph + in_session)
        + scales.pair_graph * pairs_graph
        + scales.pair_mixed * in_graph * in_session
        + scales.pair_session * pairs_session
        + scales.graph_set * same_half
    )
    return total


def _of_measurements(coding: Coding, scales: Scales, rows: Floats) -> Floats:
    """Returns the prior covariance of measurements of these rows, with their noise."""
    covariance = _covariance(coding, scales, rows, rows)
    covariance[np.diag_indices_from(covariance)] += scales.noise + _JITTER
    return covariance


def _variance(coding: Coding, scales: Scales, rows: Floats) -> Floats:
    """Returns the prior variance of each row."""
    relevance = np.asarray(scales.relevance)[coding.parameter]
    graph, session = coding.is_graph * relevance, ~coding.is_graph * relevance
    in_graph, in_session = rows @ graph, rows @ session
    total: Floats = (
        scales.single * (in_graph + in_session)
        + scales.pair_graph * (in_graph**2 - rows @ graph**2) / 2
        + scales.pair_mixed * in_graph * in_session
        + scales.pair_session * (in_session**2 - rows @ session**2) / 2
        + scales.graph_set * (coding.graph_sets(rows) != 0.0)
    )
    return total


def _moved(scales: Scales, move: str | int, factor: float) -> Scales:
    """Returns the scales with one of them, by name or number of its parameter, multiplied."""
    if isinstance(move, str):
        return replace(scales, **{move: getattr(scales, move) * factor})
    relevance = list(scales.relevance)
    relevance[move] *= factor
    return replace(scales, relevance=tuple(relevance))


_SCALARS = ("single", "pair_graph", "pair_mixed", "pair_session", "graph_set", "noise")


def _log_evidence(coding: Coding, rows: Floats, values: Floats, scales: Scales) -> float:
    """Returns the logarithm of the evidence, but for a constant."""
    try:
        lower = np.linalg.cholesky(_of_measurements(coding, scales, rows))
    except np.linalg.LinAlgError:
        return -np.inf
    whitened = np.linalg.solve(lower, values)
    return -0.5 * float(whitened @ whitened) - float(np.log(np.diag(lower)).sum())


def _log_prior(scales: Scales, start: Scales) -> float:
    """Returns the logarithm of the prior of the scales, but for a constant."""
    moved = [
        np.log(getattr(scales, n) / getattr(start, n)) / _FREEDOM.get(n, _OTHER_FREEDOM)
        for n in _SCALARS
    ]
    moved += list(np.log(scales.relevance) / _OTHER_FREEDOM)
    return -0.5 * float(np.square(moved).sum())


_SWEEPS_TO_EXPLAIN = 6
_SWEEPS_TO_BELIEVE = 8
_FEWEST_TO_BELIEVE = 8
# Errors of numbers without outliers, in deviations of their predictions, are rarely more than six
# times their median, and more than three.
_ODD_MEDIANS = 6.0
_ODD_DEVIATIONS = 3.0
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


def _without_outliers(coding: Coding, rows: Floats, logs: Floats) -> Posterior:
    """Returns a model of all numbers but the few that the others contradict.

    They are removed one after another, because an outlier makes its neighbours look odd as well.
    """
    kept = np.arange(len(rows))
    model = Posterior(coding, rows, logs, sweeps=_SWEEPS_TO_BELIEVE)
    for _ in range(_MOST_ODD):
        errors, deviations = model.left_out_errors()
        # all others are relative to the default: it stays
        errors[~rows[kept].any(axis=1)] = 0.0
        standardised = np.abs(errors / deviations)
        worst = int(standardised.argmax())
        odd = max(_ODD_MEDIANS * float(np.median(standardised)), _ODD_DEVIATIONS)
        if standardised[worst] <= odd or abs(errors[worst]) <= _ODD_AT_LEAST:
            break
        kept = np.delete(kept, worst)
        model = Posterior(coding, rows[kept], logs[kept], scales=model.scales, sweeps=0)
    if len(kept) == len(rows):
        return model
    return Posterior(coding, rows[kept], logs[kept], scales=model.scales, sweeps=_SWEEPS_TO_BELIEVE)


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
        effects = Posterior(coding, rows, logs, sweeps=_SWEEPS_TO_EXPLAIN).effects()
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
