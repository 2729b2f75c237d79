"""A tuned config against the default, here and now: the gate of a build."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autotune.deploy.config import Coverage, Interval, TunedConfig
from autotune.deploy.loader import check_files, missing_requirements
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, ConfigError, StudyError
from autotune.facts.model import describe
from autotune.facts.workload import workload_for
from autotune.measure.measurer import DuetMeasurer
from autotune.results.result import StudyResult
from autotune.results.run_off import OnStep, Rounds
from autotune.results.score import Score, is_gain, is_loss
from autotune.search.objective import DEFAULT, OBJECTIVES, find

_DEFAULT, _CONFIG = 0, 1


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The outcome of a comparison.

    Attributes:
        speedup: How many times faster than the default, with its interval.
        latency_ms: Latency of the config.
        baseline_latency_ms: Latency of the default.
        peak_memory_mib: Peak memory of the config.
        baseline_peak_memory_mib: Peak memory of the default.
        error: Largest fidelity error.
        error_data: ``"user"`` or ``"generated"``: the inputs on which it was measured.
        faster: Whether the config is faster by more than the noise.
        slower: Whether it is slower by more than the noise.
        leaner: Whether it needs less memory by more than processes differ.
        better: Whether it is faster, or leaner and not slower.
        noise_floor: Relative difference below which nothing is claimed.
        rounds: Rounds that were measured.
        against: The model file whose default was measured.
        untouched: Whether that is the model that was tuned; otherwise it is the config's own file.
        coverage: How much the comparison of the answers proves.
    """

    speedup: Interval
    latency_ms: float
    baseline_latency_ms: float
    peak_memory_mib: float
    baseline_peak_memory_mib: float
    error: float
    error_data: str
    faster: bool
    slower: bool
    leaner: bool
    better: bool
    noise_floor: float
    rounds: int
    against: str
    untouched: bool
    coverage: Coverage | None


def compare(
    config_path: Path,
    source: Path | None = None,
    *,
    data: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    max_error: float,
    on_step: OnStep,
) -> Comparison:
    """Returns how the config compares with default options on the untouched model.

    The rounds are those of a study's final comparison, retakes on a loud machine included.

    Args:
        config_path: The tuned config.
        source: The untouched model; if None, the one that the study beside the config names, as
            far as it is there and unchanged, or else the config's own file.
        data: Inputs; generated if None.
        shapes: Shapes of generated inputs.
        max_error: Largest fidelity error.
        on_step: Called after each measurement.

    Raises:
        ConfigError: the config is wrong, its model files are others than it says, or it needs
            something that this machine lacks.
        CannotMeasureError: the config or the default fails here, or the model's answers differ
            from run to run.
    """
    config = TunedConfig.read(config_path)
    check_files(config_path, config, read_all=True)
    if lacking := missing_requirements(config):
        raise ConfigError(f"{config_path}: this machine lacks {', '.join(lacking)}")
    own_file = config_path.parent / config.model.file
    model = describe(source or _source(config_path.parent) or own_file)
    if model.sha256 != config.model.source_sha256:
        if source is not None:
            raise ConfigError(f"{source} is not the model that {config_path} was tuned from")
        model = describe(own_file)
    workload = workload_for(model, data, shapes)
    measurer = DuetMeasurer(model, workload, max_error=max_error)
    try:
        entrants = {
            _DEFAULT: partial(measurer.measure_session, model.path.resolve(), SessionConfig()),
            _CONFIG: partial(measurer.measure_session, own_file.resolve(), config.session),
        }
        rounds = Rounds(entrants, measurer.renew, find(DEFAULT), seed=0, on_step=on_step)
        scores = rounds.play()
    finally:
        measurer.close()
    if _CONFIG not in scores:
        raise CannotMeasureError(f"{config_path} fails here: {rounds.failures[_CONFIG].message}")
    return _comparison(
        scores[_CONFIG],
        scores[_DEFAULT],
        error_data=workload.source,
        against=str(model.path),
        untouched=model.sha256 == config.model.source_sha256,
    )


def _comparison(
    own: Score, baseline: Score, *, error_data: str, against: str, untouched: bool
) -> Comparison:
    leaner = OBJECTIVES["peak_memory_mib"].is_less(own.peak_memory_mib, baseline.peak_memory_mib)
    faster = is_gain(own.speedup, own.noise_floor)
    slower = is_loss(own.speedup, own.noise_floor)
    return Comparison(
        speedup=own.speedup,
        latency_ms=own.latency_ms,
        baseline_latency_ms=baseline.latency_ms,
        peak_memory_mib=own.peak_memory_mib,
        baseline_peak_memory_mib=baseline.peak_memory_mib,
        error=own.error,
        error_data=error_data,
        faster=faster,
        slower=slower,
        leaner=leaner,
        better=faster or (leaner and not slower),
        noise_floor=own.noise_floor,
        rounds=own.rounds,
        against=against,
        untouched=untouched,
        coverage=own.coverage,
    )


def _source(folder: Path) -> Path | None:
    """Returns the model that the study in the folder tuned, if both are there."""
    try:
        model = StudyResult.read(folder).model
    except StudyError:
        return None
    return model if model.is_file() else None
