"""What a search begins with, and the samplers of Optuna that may go on."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.options import Value
from autotune.errors import RequestError, did_you_mean
from autotune.search.portfolio import DEFAULT_SAMPLER

_OPTUNA: Mapping[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
    "tpe_independent": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "brute": lambda seed: optuna.samplers.BruteForceSampler(seed=seed),
}
SAMPLERS = (DEFAULT_SAMPLER, *_OPTUNA)
"""What ``--sampler`` may name."""


def check_sampler(name: str) -> None:
    """Refuses a name that is no sampler's.

    Raises:
        RequestError: it is none.
    """
    if name not in SAMPLERS:
        near = did_you_mean(name, SAMPLERS)
        raise RequestError(f"--sampler must be one of {', '.join(SAMPLERS)}, not '{name}'.{near}")


class TellingSampler(optuna.samplers.BaseSampler):
    """Suggests what it is told to; where it is told nothing, a sampler of Optuna's chooses.

    To enqueue a trial would do the same, but then another driver of the study may take it.

    Attributes:
        told: The assignment of the next trial; None leaves it to the other sampler.
    """

    def __init__(self, other: optuna.samplers.BaseSampler) -> None:
        self.told: Mapping[str, Value] | None = None
        self._other = other

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Returns nothing to be chosen together where each value is told."""
        if self.told is not None:
            return {}
        return self._other.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Returns what the other sampler chooses together."""
        if self.told is not None:
            return {}
        return self._other.sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Returns the value that was told, or what the other sampler chooses."""
        if self.told is not None:
            return self.told[param_name]
        return self._other.sample_independent(study, trial, param_name, param_distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Lets the other sampler prepare itself."""
        if self.told is None:
            self._other.before_trial(study, trial)

    def after_trial(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Lets the other sampler take note."""
        self._other.after_trial(study, trial, state, values)


def make_sampler(name: str, seed: int, trials_so_far: int) -> TellingSampler:
    """Returns the sampler for the rest of a study, by its name in :data:`SAMPLERS`.

    The seed moves on with the trials: with the same one, a study that goes on would repeat the
    random start-up points that it has measured already.
    """
    make = _OPTUNA.get(name, _OPTUNA["random"])
    return TellingSampler(make((seed * 1_000_003 + trials_so_far) % 2**32))
