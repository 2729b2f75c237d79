"""What studies of the same model on other machines tell one that begins.

Effects of values, and which of them matter, carry over from machine to machine far better than the
best configuration does, and numbers do not at all (docs/shared-studies.md). So a new
study starts from the fronts of its relatives, measured anew, and its model of effects expects what
theirs found until its own trials say otherwise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.deploy.options import Value
from autotune.facts.hardware import Facts
from autotune.search import pareto
from autotune.search.effects import Coding, Floats, Mean, Model
from autotune.search.objective import Objective, values
from autotune.search.proposer import Prior
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import THREAD_COUNTS, Space

_MOST_POINTS = 6


_FEWEST_TRIALS = 8


_SWEEPS = 4


@dataclass(frozen=True, kw_only=True)
class Relative:
    """A study of the same model and objectives on another machine, or of another space.

    Attributes:
        name: Its name.
        facts: Of its machine.
        trials: What it measured, the baseline among it.
    """

    name: str
    facts: Facts
    trials: Sequence[Trial]

    @property
    def cores(self) -> int:
        """Usable cores of its machine; 1 where it does not say."""
        told = self.facts.get("usable cores", "")
        return max(1, int(told)) if told.isdecimal() else 1


def starting_points(
    found: Sequence[Relative],
    space: Space,
    cores: int,
    limits: Limits,
    objectives: Sequence[Objective],
) -> list[Candidate]:
    """Returns candidates of `space` to begin with: the relatives' fronts, as far as they exist.

    They are spread over each front, taken from all relatives in turn.
    """
    fronts = []
    for relative in found:
        scale = cores / relative.cores
        admitted = [
            (trial, values(m, objectives))
            for trial in relative.trials
            if (m := trial.measurement) and limits.admit_answers(m.fidelity.error, m.fidelity.drop)
        ]
        best = pareto.front(admitted, lambda item: item[1], objectives)
        spread = pareto.spread(best, _MOST_POINTS)
        fronts.append([translated(trial.candidate, space, scale) for trial, _ in spread])
    longest = max((len(front) for front in fronts), default=0)
    in_turn = [front[i] for i in range(longest) for front in fronts if i < len(front)]
    return [c for c in dict.fromkeys(in_turn) if c != BASELINE][:_MOST_POINTS]


def translated(candidate: Candidate, space: Space, scale: float) -> Candidate:
    """Returns the candidate of `space` that is nearest, thread counts multiplied by `scale`.

    One thread stays one thread, and 0 stays what ONNX Runtime chooses.
    """
    told = {name: _scaled(name, value, scale) for name, value in candidate.values}
    offered = {parameter.name: parameter.values for parameter in space.parameters}
    for name in THREAD_COUNTS & told.keys() & offered.keys():
        counts = [v for v in offered[name] if isinstance(v, int) and v > 0]
        wanted = told[name]
        if counts and isinstance(wanted, int) and wanted > 0:
            told[name] = min(counts, key=lambda count: abs(count - wanted))
    return space.nearest(told)


def _scaled(name: str, value: Value, scale: float) -> Value:
    if name in THREAD_COUNTS and isinstance(value, int) and value > 1:
        return max(1, round(value * scale))
    return value


def prior(
    found: Sequence[Relative], space: Space, cores: int, objectives: Sequence[Objective]
) -> Prior:
    """Returns what the relative with most trials lets expect of each objective; may be empty."""
    if not found or len(found[0].trials) < _FEWEST_TRIALS:
        return {}
    relative = found[0]
    base = next(t.measurement for t in relative.trials if t.candidate == BASELINE)
    assert base is not None
    coding = Coding(space)
    scale = cores / relative.cores
    told = [(translated(t.candidate, space, scale), t.measurement) for t in relative.trials]
    rows = coding.rows([candidate for candidate, _ in told])
    expected: dict[str, Mean] = {}
    for objective in objectives:
        unit = objective.of(base) or 1.0
        logs = [np.log((objective.of(m) or unit) / unit) for _, m in told if m is not None]
        model = Model(coding, rows, np.asarray(logs), sweeps=_SWEEPS)
        expected[objective.name] = partial(_mean, model)
    return expected


def _mean(model: Model, rows: Floats) -> Floats:
    return model.predict(rows)[0]
