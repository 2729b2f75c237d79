"""Optuna's own samplers, and those of the user, in the place of the model of effects."""

import importlib
import inspect
from collections.abc import Callable, Mapping

import optuna
from optuna.samplers import BaseSampler

from autotune.errors import MissingPackageError, RequestError
from autotune.search.named_code import load_named

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": lambda seed: optuna.samplers.TPESampler(multivariate=True, group=True, seed=seed),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    "nsga3": lambda seed: optuna.samplers.NSGAIIISampler(seed=seed),
    "gp": lambda seed: _gp(seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}
"""Samplers of Optuna by the words of ``--sampler``, made from a seed."""

_LARGEST_SEED = 2**32


def make_sampler(name: str, seed: int) -> BaseSampler:
    """Returns the sampler of that name in :data:`SAMPLERS`, or of the class ``MODULE:CLASS``.

    The module may lie in the working directory. The class is called with the argument ``seed`` if
    it has one.

    Raises:
        RequestError: there is no such sampler.
        MissingPackageError: the sampler needs a package that is not installed.
    """
    if name in SAMPLERS:
        return SAMPLERS[name](seed % _LARGEST_SEED)
    kind = load_named("--sampler", name, SAMPLERS, "MODULE:CLASS")
    try:
        has_seed = "seed" in inspect.signature(kind).parameters
        sampler = kind(seed=seed % _LARGEST_SEED) if has_seed else kind()
    except Exception as error:  # a class may fail in any way
        raise RequestError(f"--sampler {name}: {type(error).__name__}: {error}") from error
    if not isinstance(sampler, BaseSampler):
        raise RequestError(f"--sampler {name}: it is no sampler of Optuna")
    return sampler


def _gp(seed: int) -> BaseSampler:
    for package in ("scipy", "torch"):
        try:
            importlib.import_module(package)
        except ImportError:
            raise MissingPackageError(
                f"--sampler gp needs the package {package}: pip install scipy torch"
            ) from None
    return optuna.samplers.GPSampler(seed=seed)
