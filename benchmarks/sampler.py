"""EffectsSampler in a plain Optuna study, against Optuna's own samplers with the same budget.

    python benchmarks/sampler.py [--json] [--quick]

The function has ten categorical parameters of three to six choices. Each choice multiplies the
result by a factor of its own, and some pairs of choices by another one; most parameters do little,
as in real models. A run's regret is the best value that it found over the best of all, less 1. The
best of all is found by coordinate descent from many starts. Each seed is another function.
"""

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np
import optuna

from autotune.storage.database import quiet_optuna
from autotune.study.sampler import EffectsSampler

_SIZES = (3, 3, 3, 4, 4, 4, 5, 5, 6, 6)
_LOOKS = (20, 40, 60, 100)
_SAMPLERS: Mapping[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "effects": lambda seed: EffectsSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "tpe_independent": lambda seed: optuna.samplers.TPESampler(seed=seed, multivariate=False),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}


class Landscape:
    """A function over ten categorical parameters.

    Args:
        seed: Another seed is another function.

    Attributes:
        best: Its smallest value.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)
        relevance = self._random.exponential(0.12, len(_SIZES))
        self._single = [
            self._random.normal(0, scale, size)
            for scale, size in zip(relevance, _SIZES, strict=True)
        ]
        pairs = list(combinations(range(len(_SIZES)), 2))
        chosen = self._random.choice(len(pairs), 8, replace=False)
        self._pairs = {
            pairs[i]: self._random.normal(0, 0.08, (_SIZES[pairs[i][0]], _SIZES[pairs[i][1]]))
            for i in chosen
        }
        self.best = min(self._descent() for _ in range(200))

    def value(self, choices: list[int]) -> float:
        """Returns the value at these choices, above 0."""
        total = sum(float(own[choice]) for own, choice in zip(self._single, choices, strict=True))
        total += sum(
            float(effect[choices[i], choices[j]]) for (i, j), effect in self._pairs.items()
        )
        return math.exp(total)

    def _descent(self) -> float:
        """Returns the value where no single change helps, from a random start."""
        choices = [int(self._random.integers(size)) for size in _SIZES]
        value = self.value(choices)
        improved = True
        while improved:
            improved = False
            for i, size in enumerate(_SIZES):
                for choice in range(size):
                    other = [*choices[:i], choice, *choices[i + 1 :]]
                    if self.value(other) < value:
                        choices, value, improved = other, self.value(other), True
        return value


def regrets(name: str, seed: int, looks: tuple[int, ...]) -> list[float]:
    """Returns the regret of one sampler after so many trials."""
    landscape = Landscape(seed)

    def objective(trial: optuna.Trial) -> float:
        names = [f"p{i}" for i in range(len(_SIZES))]
        return landscape.value(
            [
                trial.suggest_categorical(name, list(range(size)))
                for name, size in zip(names, _SIZES, strict=True)
            ]
        )

    study = optuna.create_study(sampler=_SAMPLERS[name](seed))
    study.optimize(objective, n_trials=looks[-1])
    values = [trial.values[0] for trial in study.get_trials(deepcopy=False)]
    return [min(values[:look]) / landscape.best - 1 for look in looks]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="5 seeds instead of 30")
    parser.add_argument("--seeds", type=int, help="so many seeds")
    parser.add_argument("--trials", type=int, default=_LOOKS[-1])
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seeds = given.seeds or (5 if given.quick else 30)
    looks = (*(look for look in _LOOKS if look < given.trials), given.trials)
    mean = {}
    with quiet_optuna():
        for name in _SAMPLERS:
            runs = [regrets(name, seed, looks) for seed in range(seeds)]
            mean[name] = [statistics.fmean(run[i] for run in runs) for i in range(len(looks))]
    print(f"mean regret over {seeds} functions, by number of trials")
    print(f"{'sampler':18}" + "".join(f"{look:>9}" for look in looks))
    for name, numbers in mean.items():
        print(f"{name:18}" + "".join(f"{number:9.1%}" for number in numbers))
    if given.json:
        named = {name: dict(zip(map(str, looks), row, strict=True)) for name, row in mean.items()}
        print(json.dumps({"seeds": seeds, "regret": named}))


if __name__ == "__main__":
    main()
