"""A tuned config after an upgrade: whether its answers and its gain are still what they were."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import Evidence, TunedConfig
from autotune.deploy.fitting import environment_differences
from autotune.errors import CannotMeasureError, NotBetterError
from autotune.results.compare import (
    Comparison,
    Comparisons,
    MakeMeasurer,
    compare,
    duet_measurer,
)
from autotune.results.run_off import OnStep
from autotune.search.finalists import EXACT_ERROR

# Other kernels round elsewhere: an error of 0.0100 may become one of 0.0104.
_SAME_ERROR = 1.2


@dataclass(frozen=True, kw_only=True)
class Verification:
    """The outcome of a verification.

    Attributes:
        config: The config as the user named it.
        differences: How this machine differs from the one that tuned the config, in words.
        evidence: What was measured when it was tuned.
        now: What was measured now; None where the config does not run or its answers are wrong.
        failure: Why there are no numbers; empty where there are.
        max_error: The largest error that counts as the same answers.
        comparable: Whether the error was measured on inputs of the same origin as then.
        same_answers: Whether the answers are still the same.
        still_better: Whether the config is still better than the default.
        still_as_fast: Whether the speed-up of then lies within the interval of now, or below it.
    """

    config: str
    differences: Sequence[str]
    evidence: Evidence
    now: Comparison | None
    failure: str
    max_error: float
    comparable: bool
    same_answers: bool
    still_better: bool
    still_as_fast: bool

    @property
    def exit_code(self) -> int:
        """The exit code: 0 if it still holds, 4 if it does not run here, else 3."""
        if self.now is None and self.same_answers:
            return CannotMeasureError.exit_code
        return 0 if self.same_answers and self.still_better else NotBetterError.exit_code


def verify_config(
    path: Path,
    source: Path | None = None,
    *,
    data: Path | None,
    shapes: Mapping[str, tuple[int, ...]],
    max_error: float | None,
    on_step: OnStep,
    make_measurer: MakeMeasurer = duet_measurer,
) -> Verification:
    """Returns whether a config still does what was measured when it was tuned.

    As many clients call it as then.

    Args:
        path: The tuned config.
        source: The untouched model, as in :func:`autotune.results.compare.compare`.
        data: Inputs; generated if None.
        shapes: Shapes of generated inputs.
        max_error: Largest error that counts as the same answers; if None, a fifth more than when
            the config was tuned.
        on_step: Called after each measurement.
        make_measurer: Makes the measurer.

    Raises:
        ConfigError: as in :func:`autotune.results.compare.compare`.
        CannotMeasureError: the default fails here.
    """
    config = TunedConfig.read(path)
    evidence = config.evidence
    limit = max_error or max(_SAME_ERROR * evidence.error, evidence.error + EXACT_ERROR)
    comparisons = compare(
        [path],
        source,
        data=data,
        shapes=shapes,
        max_error=limit,
        clients=1 if config.serving is None else config.serving.clients,
        on_step=on_step,
        make_measurer=make_measurer,
    )
    now = comparisons.configs[0] if comparisons.configs else None
    return Verification(
        config=str(path),
        differences=environment_differences(config),
        evidence=evidence,
        now=now,
        failure=next((failure.message for failure in comparisons.failures.values()), ""),
        max_error=limit,
        comparable=comparisons.error_data == evidence.error_data and comparisons.untouched,
        same_answers=_same_answers(comparisons, limit),
        still_better=now is not None and _still_better(now, evidence),
        still_as_fast=now is not None and now.speedup.high >= evidence.speedup.value,
    )


def _same_answers(comparisons: Comparisons, max_error: float) -> bool:
    wrong = any(failure.kind == "wrong_answers" for failure in comparisons.failures.values())
    return not wrong and all(config.error <= max_error for config in comparisons.configs)


def _still_better(now: Comparison, evidence: Evidence) -> bool:
    """Returns whether it is better than the default, or no worse where it never was better.

    A study emits the default itself where nothing beats it.
    """
    floor = evidence.memory_noise_floor or 0.0
    was_leaner = evidence.baseline_peak_memory_mib > (1 + floor) * evidence.peak_memory_mib
    if not evidence.significant and not was_leaner:
        return not now.slower
    return now.better or (not evidence.significant and not now.slower)
