"""A tuned config against the default, here and now: the gate of a build."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import Interval, TunedConfig
from autotune.deploy.loader import missing_requirements
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, ConfigError, StudyError
from autotune.facts import workload as workloads
from autotune.facts.model import describe
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import RUN_OFF, Failure, Measurement
from autotune.results.result import StudyResult
from autotune.results.run_off import is_gain, is_loss, noise_floor, paired_speedup
from autotune.search.objective import OBJECTIVES

_ROUNDS = 7


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What became of the comparison.

    Attributes:
        speedup: How many times faster than the default, with its interval.
        latency_ms: Of the config.
        baseline_latency_ms: Of the default.
        peak_memory_mib: Of the config.
        baseline_peak_memory_mib: Of the default.
        error: Largest fidelity error.
        error_data: The inputs on which it was measured.
        faster: Whether it is faster by more than the noise.
        slower: Whether it is slower by more than the noise.
        leaner: Whether it needs less memory by more than processes differ.
        better: Faster, or leaner and not slower.
        noise_floor: Relative difference below which nothing is claimed.
        rounds: Rounds that were measured.
        against: The model file whose default was measured.
        untouched: Whether that is the model that was tuned; else it is the config's own file.
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


def compare(
    config_path: Path,
    source: Path | None = None,
    *,
    data: Path | None,
    shapes: dict[str, tuple[int, ...]],
    max_error: float,
    on_step: Callable[[int, int], None],
) -> Comparison:
    """Returns how the config fares against default options on the untouched model.

    Args:
        config_path: The tuned config.
        source: The untouched model; if None, the one that the study beside the config names, as
            far as it is there and unchanged, or else the config's own file.
        data: Inputs; generated if None.
        shapes: Shapes of generated inputs.
        max_error: Largest fidelity error.
        on_step: Called with the measurements done and the most that there can be.

    Raises:
        ConfigError: the config is wrong, or needs what this machine lacks.
        CannotMeasureError: the config fails here.
    """
    config = TunedConfig.read(config_path)
    if lacking := missing_requirements(config):
        raise ConfigError(f"{config_path}: this machine lacks {', '.join(lacking)}")
    own_file = config_path.parent / config.model.file
    model = describe(source or _source(config_path.parent) or own_file)
    if model.sha256 != config.model.source_sha256:
        if source is not None:
            raise ConfigError(f"{source} is not the model that {config_path} was tuned from")
        model = describe(own_file)
    if data is None:
        workload = workloads.generate(model, shapes)
    else:
        workload = workloads.read(model, data)
    measurer = DuetMeasurer(model, workload, max_error=max_error)
    own: list[Measurement] = []
    baseline: list[Measurement] = []
    try:
        for round_number in range(_ROUNDS):
            measurer.renew()
            sides = [(own, config.session), (baseline, SessionConfig())]
            for kept, session in sides if round_number % 2 else reversed(sides):
                path = (model.path if kept is baseline else own_file).resolve()
                outcome = measurer.measure_session(path, session, RUN_OFF)
                if isinstance(outcome, Failure):
                    raise CannotMeasureError(f"{config_path} fails here: {outcome.message}")
                kept.append(outcome)
                on_step(len(own) + len(baseline), 2 * _ROUNDS)
    finally:
        measurer.close()
    speedup = paired_speedup(own, baseline)
    memory_mib = max(m.peak_memory_mib for m in own)
    baseline_mib = max(m.peak_memory_mib for m in baseline)
    leaner = OBJECTIVES["peak_memory_mib"].is_less(memory_mib, baseline_mib)
    floor = noise_floor(baseline)
    return Comparison(
        speedup=speedup,
        latency_ms=measurer.reference_ms / speedup.value,
        baseline_latency_ms=measurer.reference_ms,
        peak_memory_mib=memory_mib,
        baseline_peak_memory_mib=baseline_mib,
        error=max(m.fidelity.error for m in own),
        error_data=workload.source,
        faster=is_gain(speedup, floor),
        slower=is_loss(speedup, floor),
        leaner=leaner,
        better=is_gain(speedup, floor) or (leaner and not is_loss(speedup, floor)),
        noise_floor=floor,
        rounds=_ROUNDS,
        against=str(model.path),
        untouched=model.sha256 == config.model.source_sha256,
    )


def _source(folder: Path) -> Path | None:
    """Returns the model that the study in the folder tuned, if both are there."""
    try:
        found = StudyResult.read(folder).model
    except StudyError:
        return None
    return found if found.is_file() else None
