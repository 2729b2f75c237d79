"""What each choice is worth: a Bayesian linear model of the logarithm of a quantity.

The logarithm of a candidate's latency, or memory, is modelled as the baseline's plus an effect of
each of its values that differ from the default, plus an effect of each pair of them, plus one of
its graph half as a whole. All effects are Gaussian around zero. How large they tend to be, and how
much each parameter matters, is chosen by the evidence (the marginal likelihood; Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, 5.4.1). It is written as the Gaussian
process that it is the same as, because there are more pairs than trials.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.graph.parameters import ANSWER_PARAMETERS, GRAPH_PARAMETERS
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space

Floats = NDArray[np.float64]

# Choosing the scales takes so many trials, and looks at no more than that: it costs their cube.
_FEWEST_FOR_SCALES = 4
_MOST_FOR_SCALES = 160
_JITTER = 1e-9
_SWEEPS_TO_EXPLAIN = 6
_SWEEPS_TO_BELIEVE = 8
_FEWEST_TO_BELIEVE = 8
# Errors of numbers without outliers are rarely more than six times their median.
_ODD_MEDIANS = 6.0
_ODD_AT_LEAST = 0.05
_MOST_ODD = 8


class Coding:
    """Candidates of one space as rows of zeros and ones: one column for each value but the default.

    Attributes:
        columns: Parameter and value that each column stands for.
        parameter: By column, the number of its parameter.
        is_graph: By column, whether the parameter belongs to the graph half.
        is_of_answers: By column, whether the parameter decides the answers.
    """

    def __init__(self, space: Space) -> None:
        self.columns: tuple[tuple[str, Value], ...] = tuple(
            (parameter.name, value)
            for parameter in space.parameters
            for value in parameter.values
            if value != parameter.default
        )
        self._column = {pair: i for i, pair in enumerate(self.columns)}
        names = list(dict.fromkeys(name for name, _ in self.columns))
        self.parameter = np.asarray([names.index(name) for name, _ in self.columns], dtype=int)
        self.is_graph = np.asarray([name in GRAPH_PARAMETERS for name, _ in self.columns], bool)
        self.is_of_answers = np.asarray(
            [name in ANSWER_PARAMETERS for name, _ in self.columns], bool
        )
        # a random number for each column: their sum tells graph halves apart
        self._marks = np.random.default_rng(0).normal(size=len(self.columns)) * self.is_graph

    def rows(self, candidates: Sequence[Candidate]) -> Floats:
        """Returns the rows of these candidates, as [candidates, columns].

        Raises:
            KeyError: one has a value that the space does not offer.
        """
        found = np.zeros((len(candidates), len(self.columns)))
        for row, candidate in zip(found, candidates, strict=True):
            for pair in candidate.values:
                row[self._column[pair]] = 1.0
        return found

    def covers(self, candidate: Candidate) -> bool:
        """Returns whether all values of the candidate are of this space."""
        return all(pair in self._column for pair in candidate.values)

    def graph_halves(self, rows: Floats) -> Floats:
        """Returns a number for each row that is the same where the graph half is; 0 for none."""
        found: Floats = np.round(rows @ self._marks, 9)
        return found


@dataclass(frozen=True, kw_only=True)
class Scales:
    """How large effects tend to be: variances, in squared logarithms.

    Attributes:
        single: Of a value by itself, times the relevance of its parameter.
        pair_graph: Of two values of the graph half, times the relevance of both.
        pair_mixed: Of one of each half, likewise.
        pair_session: Of two of the session half, likewise.
        graph_half: Of a graph half as a whole, beyond its values and pairs.
        noise: Of a measurement.
        relevance: Of each parameter.
    """

    single: float = 0.04
    pair_graph: float = 0.01
    pair_mixed: float = 0.01
    pair_session: float = 0.003
    graph_half: float = 0.003
    noise: float = 2e-4
    relevance: tuple[float, ...] = ()


START = Scales()
"""What is expected of latency and memory: a value by itself changes them by a fifth or so."""

# How far the evidence may pull them from where they start: standard deviations of logarithms. That
# the few values tried so far do little says much of their parameters and little of all others.
_FREEDOM = {"single": 0.3, "pair_graph": 0.7, "pair_mixed": 0.7, "pair_session": 0.7}
_OTHER_FREEDOM = 1.5


Mean = Callable[[Floats], Floats]
"""What is expected of rows, one number for each."""


def _nothing(rows: Floats) -> Floats:
    return np.zeros(len(rows))


class Model:
    """The posterior of one quantity after some trials.

    Args:
        coding: Of the space.
        rows: Of the trials.
        values: Logarithm of the quantity over the baseline's, one for each trial.
        start: How large effects of such a quantity tend to be, before anything is known.
        scales: Where the choice of scales goes on: those of an earlier model; `start` if None.
        sweeps: How often at most the choice of scales goes over all of them.
        mean: What is expected of rows before anything is measured; nothing if None.

    Attributes:
        scales: What was chosen.
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

        best, known = self.scales, worth(self.scales)
        seen = {int(number) for number in self._coding.parameter[rows.any(axis=0)]}
        for _ in range(sweeps):
            before = known
            moves: list[str | int] = [*_SCALARS, *seen]
            for move in moves:
                for factor in (2.0, 0.5):
                    other = _moved(best, move, factor)
                    found = worth(other)
                    if found > known:
                        best, known = other, found
                        break
            if known == before:
                break
        self.scales = best

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        """Returns mean and standard deviation for other rows, without the noise of measuring."""
        across = _covariance(self._coding, self.scales, rows, self._rows)
        variance = _variance(self._coding, self.scales, rows)
        variance -= np.einsum("ij,ij->i", across @ self._inverse, across)
        means = self._mean(rows) + across @ self._weights
        return means, np.sqrt(np.maximum(variance, 1e-12))

    def left_out_errors(self) -> Floats:
        """Returns by how much each trial is above what all the others let expect."""
        found: Floats = self._weights / np.diag(self._inverse)
        return found

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
    halves = coding.graph_halves(left)[:, None]
    same_half = (halves == coding.graph_halves(right)) & (halves != 0.0)
    # the sum over pairs is half of the square of the sum less the squares
    pairs_graph = (in_graph**2 - (left * graph**2) @ right.T) / 2
    pairs_session = (in_session**2 - (left * session**2) @ right.T) / 2
    found: Floats = (
        scales.single * (in_graph + in_session)
        + scales.pair_graph * pairs_graph
        + scales.pair_mixed * in_graph * in_session
        + scales.pair_session * pairs_session
        + scales.graph_half * same_half
    )
    return found


def _of_measurements(coding: Coding, scales: Scales, rows: Floats) -> Floats:
    """Returns the prior covariance of measurements of these rows, with their noise."""
    found = _covariance(coding, scales, rows, rows)
    found[np.diag_indices_from(found)] += scales.noise + _JITTER
    return found


def _variance(coding: Coding, scales: Scales, rows: Floats) -> Floats:
    """Returns the prior variance of each row."""
    relevance = np.asarray(scales.relevance)[coding.parameter]
    graph, session = coding.is_graph * relevance, ~coding.is_graph * relevance
    in_graph, in_session = rows @ graph, rows @ session
    found: Floats = (
        scales.single * (in_graph + in_session)
        + scales.pair_graph * (in_graph**2 - rows @ graph**2) / 2
        + scales.pair_mixed * in_graph * in_session
        + scales.pair_session * (in_session**2 - rows @ session**2) / 2
        + scales.graph_half * (coding.graph_halves(rows) != 0.0)
    )
    return found


def _moved(scales: Scales, move: str | int, factor: float) -> Scales:
    """Returns the scales with one of them, by name or number of its parameter, multiplied."""
    if isinstance(move, str):
        return replace(scales, **{move: getattr(scales, move) * factor})
    relevance = list(scales.relevance)
    relevance[move] *= factor
    return replace(scales, relevance=tuple(relevance))


_SCALARS = ("single", "pair_graph", "pair_mixed", "pair_session", "graph_half", "noise")


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


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What a value is worth by itself, beside the default of everything else.

    Attributes:
        parameter: The parameter.
        value: Its value.
        objective: Of which quantity.
        factor: What the quantity is multiplied with, and its 95 % interval.
        trials: How many trials had the value.
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
    space: Space, trials: Sequence[tuple[Candidate, Mapping[str, float]]]
) -> list[dict[str, float]]:
    """Returns what the model believes of each trial: its numbers without most of their luck.

    The best of a hundred noisy numbers was lucky. A number that is far from what all the others let
    expect is not believed at all, but what they do. What the space does not cover, and what are too
    few trials for a model, is believed as it was measured.

    Args:
        space: What could be tried.
        trials: What was measured, with a value for each objective; the baseline among it.
    """
    coding = Coding(space)
    found = [dict(values) for _, values in trials]
    known = [i for i, (candidate, _) in enumerate(trials) if coding.covers(candidate)]
    base = next((values for candidate, values in trials if candidate == BASELINE), None)
    if base is None or len(known) < _FEWEST_TO_BELIEVE:
        return found
    rows = coding.rows([trials[i][0] for i in known])
    for objective, scale in base.items():
        logs = np.log([max(trials[i][1][objective], 1e-9) / scale for i in known])
        means, _ = _without_the_odd(coding, rows, logs).predict(rows)
        for i, mean in zip(known, means, strict=True):
            found[i][objective] = float(np.exp(mean) * scale)
    return found


def _without_the_odd(coding: Coding, rows: Floats, logs: Floats) -> Model:
    """Returns a model of all but the few numbers that the others contradict.

    One after another: what is odd makes its neighbours look odd as well.
    """
    kept = np.arange(len(rows))
    model = Model(coding, rows, logs, sweeps=_SWEEPS_TO_BELIEVE)
    for _ in range(_MOST_ODD):
        errors = np.abs(model.left_out_errors())
        # the baseline is what all others are relative to
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
    space: Space, trials: Sequence[tuple[Candidate, Mapping[str, float]]]
) -> tuple[Effect, ...]:
    """Returns the effects of all values that were tried, the strongest first.

    Args:
        space: What could be tried.
        trials: What was measured, with a value for each objective; the baseline among it.
    """
    coding = Coding(space)
    known = [(candidate, values) for candidate, values in trials if coding.covers(candidate)]
    rows = coding.rows([candidate for candidate, _ in known])
    counts = rows.sum(axis=0).astype(int)
    found = []
    base = next(values for candidate, values in known if candidate == BASELINE)
    for objective, scale in base.items():
        logs = np.log([max(values[objective], 1e-9) / scale for _, values in known])
        effects = Model(coding, rows, logs, sweeps=_SWEEPS_TO_EXPLAIN).effects()
        for (name, value), (mean, deviation), count in zip(
            coding.columns, effects, counts, strict=True
        ):
            if count:
                low, middle, high = np.exp(mean + 1.96 * deviation * np.asarray([-1.0, 0.0, 1.0]))
                found.append(
                    Effect(
                        parameter=name,
                        value=value,
                        objective=objective,
                        factor=Interval(value=float(middle), low=float(low), high=float(high)),
                        trials=int(count),
                    )
                )
    return tuple(sorted(found, key=lambda effect: -abs(np.log(effect.factor.value))))
