"""What a study that begins takes over from studies of the same model on other machines.

Effects of values, and which of them matter, carry over from machine to machine far better than the
best configuration does, and measured numbers do not carry over at all (docs/shared-studies.md). So
a new study starts from the fronts of related studies, measured anew, and its model of effects
starts from their effects until its own trials say otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.deploy.options import Value
from autotune.facts.hardware import Facts
from autotune.search import pareto
from autotune.search.coding import Coding, Floats
from autotune.search.effects import Mean, Posterior
from autotune.search.objective import Objective, values
from autotune.search.proposer import Prior
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import THREAD_COUNTS
from autotune.space.space import Space

_MOST_POINTS = 6
_FEWEST_TRIALS = 8
_SWEEPS = 4


@dataclass(frozen=True, kw_only=True)
class RelatedStudy:
    """A study of the same model and objectives on another machine, or of another space.

    Attributes:
        trials: Its measured trials, the default among them.
    """

    name: str
    facts: Facts
    trials: Sequence[Trial]

    @property
    def cores(self) -> int:
        """Usable cores of its machine; 1 where that is unknown."""
        text = self.facts.get("usable cores", "")
        return max(1, int(text)) if re.fullmatch(r"[0-9]{1,6}", text) else 1


def starting_points(
    related: Sequence[RelatedStudy],
    space: Space,
    cores: int,
    limits: Limits,
    objectives: Sequence[Objective],
) -> list[Configuration]:
    """Returns the first configurations: fronts of related studies, as far as `space` has them.

    They are spread over each front and taken from all related studies in turn.
    """
    fronts = []
    for study in related:
        scale = cores / study.cores
        admitted = [
            (trial, values(m, objectives))
            for trial in study.trials
            if (m := trial.measurement) and limits.admit_answers(m.fidelity.error, m.fidelity.drop)
        ]
        best = pareto.front(admitted, lambda item: item[1], objectives)
        spread = pareto.spread(best, _MOST_POINTS)
        fronts.append([translated(trial.configuration, space, scale) for trial, _ in spread])
    longest = max((len(front) for front in fronts), default=0)
    in_turn = [front[i] for i in range(longest) for front in fronts if i < len(front)]
    return [c for c in dict.fromkeys(in_turn) if c != BASELINE][:_MOST_POINTS]


def translated(configuration: Configuration, space: Space, scale: float) -> Configuration:
    """Returns the configuration of `space` that is nearest, thread counts multiplied by `scale`.

    One thread stays one thread, and 0 stays what ONNX Runtime chooses.
    """
    values = {name: _scaled(name, value, scale) for name, value in configuration.values}
    offered = {parameter.name: parameter.values for parameter in space.parameters}
    for name in THREAD_COUNTS & values.keys() & offered.keys():
        counts = [v for v in offered[name] if isinstance(v, int) and v > 0]
        wanted = values[name]
        if counts and isinstance(wanted, int) and wanted > 0:
            values[name] = min(counts, key=lambda count: abs(count - wanted))
    return space.nearest(values)


def _scaled(name: str, value: Value, scale: float) -> Value:
    if name in THREAD_COUNTS and isinstance(value, int) and value > 1:
        return max(1, round(value * scale))
    return value


def prior(
    related: Sequence[RelatedStudy], space: Space, cores: int, objectives: Sequence[Objective]
) -> Prior:
    """Returns the expected values by the largest related study; empty if its trials are few."""
    if not related or len(related[0].trials) < _FEWEST_TRIALS:
        return {}
    study = related[0]
    base = next(t.measurement for t in study.trials if t.configuration == BASELINE)
    assert base is not None
    coding = Coding(space)
    scale = cores / study.cores
    measured = [(translated(t.configuration, space, scale), t.measurement) for t in study.trials]
    rows = coding.rows([configuration for configuration, _ in measured])
    expected: dict[str, Mean] = {}
    for objective in objectives:
        unit = objective.of(base) or 1.0
        gains = [objective.gain(objective.of(m) or unit, unit) for _, m in measured if m]
        logs = -np.log(gains)
        model = Posterior(coding, rows, logs, sweeps=_SWEEPS)
        expected[objective.name] = partial(_mean, model)
    return expected


def _mean(model: Posterior, rows: Floats) -> Floats:
    return model.predict(rows)[0]
