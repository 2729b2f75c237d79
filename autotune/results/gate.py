"""Limits that the outcome of a comparison has to keep: the gate of a build."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

from autotune.deploy.config import Interval
from autotune.errors import CannotMeasureError, NotBetterError
from autotune.measure.outcome import Failure
from autotune.results.compare import Compared, Comparison

MOST_BIAS = 4.0
"""The factor by which a busy machine may falsify a speed-up.

7.35 was seen for 1.83: other programs slow two threads that wait for each other more than one.
"""

_BUSY = "; measured on a busy machine, so this is not known; type it again when it is quiet"


@dataclass(frozen=True)
class Gate:
    """The limits of a gate.

    Attributes:
        min_speedup: Least speed-up over the baseline, with several clients least factor of
            throughput; None means no limit.
        max_memory_mib: Largest peak memory that a session may add; None means no limit.
        max_held_memory_mib: Most memory that a process may hold after all runs; None means no
            limit.
    """

    min_speedup: float | None = None
    max_memory_mib: float | None = None
    max_held_memory_mib: float | None = None

    @property
    def has_limits(self) -> bool:
        """Whether the request sets a limit of speed or memory."""
        return any(limit is not None for limit in astuple(self))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether one configuration keeps one limit.

    Attributes:
        limit: ``runs``, ``error``, ``answers`` (they are others than when it was tuned),
            ``speedup``, ``memory``, ``held memory``, ``better`` or ``quiet``: other programs held
            the cores, and could have changed whether the speed-up is kept.
    """

    config: str
    limit: str
    kept: bool
    words: str


def judge(comparison: Comparison, gate: Gate = Gate()) -> tuple[Verdict, ...]:
    """Returns the verdicts on all configurations.

    Where the request sets no limit of speed or memory and compares one configuration, it has to be
    better than the baseline: faster, or leaner and at most 1 % slower by its estimate. One that was
    not better when it was tuned, such as the default itself, has to be no slower.
    """
    alone = len(comparison.configs) + len(comparison.failures) == 1
    failures, most = comparison.failures.items(), comparison.max_error
    verdicts = [_of_failure(name, failure, most) for name, failure in failures]
    for config in comparison.configs:
        verdicts += _of_config(config, comparison, gate, alone=alone)
    return tuple(verdicts)


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Returns 0 if all limits are kept, else 3; 4 if one does not run, or cannot be timed, here."""
    broken = {verdict.limit for verdict in verdicts if not verdict.kept}
    if "runs" in broken or broken == {"quiet"}:
        return CannotMeasureError.exit_code
    return NotBetterError.exit_code if broken else 0


def _of_failure(name: str, failure: Failure, max_error: float) -> Verdict:
    if failure.kind == "wrong_answers":
        words = f"{failure.message}; {_allowed(max_error)}"
        return Verdict(config=name, limit="error", kept=False, words=words)
    return Verdict(config=name, limit="runs", kept=False, words=failure.message)


def _of_answers(config: Compared, comparison: Comparison) -> Iterator[Verdict]:
    """Yields whether the error is within its limit, and as small as when the config was tuned."""
    if not comparison.untouched:
        words = "answers not compared: name the model that was tuned with --model"
        yield Verdict(config=config.name, limit="error", kept=True, words=words)
        return
    error, words = config.numbers.error, f"error {config.numbers.error:.2g}"
    if config.numbers.worst_part:
        words += f" of {config.numbers.worst_part}"
    if config.on_all is not None and config.on_all.samples:
        error = max(error, config.on_all.error)
        words += f", {config.on_all.error:.2g} on all {config.on_all.available} samples"
    is_kept = error <= config.max_error
    if config.on_all is not None and not config.on_all.admitted:
        is_kept = False
        words += f" ({config.on_all.reason})" if config.on_all.reason else ""
    words = f"{words}, {_allowed(config.max_error)}"
    yield Verdict(config=config.name, limit="error", kept=is_kept, words=words)
    if config.tuned is not None and config.tuned.same_answers is False:
        words = f"its error was {config.tuned.error:.2g} when it was tuned, and is {error:.2g}"
        yield Verdict(config=config.name, limit="answers", kept=False, words=words)


def _allowed(max_error: float) -> str:
    return f"at most {max_error:g} is allowed" if max_error < math.inf else "no error limit applies"


def _of_config(
    config: Compared, comparison: Comparison, gate: Gate, *, alone: bool
) -> Iterator[Verdict]:
    name = config.name
    yield from _of_answers(config, comparison)
    if gate.min_speedup is not None:
        yield _of_speed(config, comparison, gate.min_speedup)
    held_mib = config.numbers.values["held_memory_mib"]
    for limit, used, used_mib, most_mib in (
        ("memory", "", config.numbers.peak_memory_mib, gate.max_memory_mib),
        ("held memory", " held after all runs", held_mib, gate.max_held_memory_mib),
    ):
        if most_mib is not None:
            words = f"{used_mib:.1f} MiB{used}, at most {most_mib:g} MiB is allowed"
            yield Verdict(config=name, limit=limit, kept=used_mib <= most_mib, words=words)
    if alone and not gate.has_limits:
        yield _of_being_better(config, comparison.baseline.name)


def _of_speed(config: Compared, comparison: Comparison, least: float) -> Verdict:
    """Returns whether a speed-up is at least the required one, as far as a busy machine tells."""
    speedup = config.numbers.speedup
    quantity = "" if comparison.clients == 1 else "throughput "
    words = (
        f"{quantity}{speedup.value:.3f}× ({speedup.low:.3f}–{speedup.high:.3f}) over "
        f"{comparison.baseline.name}, at least {least:g}× is required"
    )
    is_kept: bool | None = speedup.value >= least
    if not config.numbers.undisturbed:
        is_kept = _despite_bias(speedup, least)
        words += _BUSY if is_kept is None else ", which holds on this busy machine too"
    if is_kept is None:
        return Verdict(config=config.name, limit="quiet", kept=False, words=words)
    return Verdict(config=config.name, limit="speedup", kept=is_kept, words=words)


def _of_being_better(config: Compared, baseline: str) -> Verdict:
    """Returns whether a configuration is better than the baseline, or as good as it was."""
    was_better = config.tuned is None or config.tuned.was_better
    is_enough = config.better or (not was_better and not config.slower)
    if not config.numbers.undisturbed:
        despite = _despite_bias(config.numbers.speedup, 1.0)
        if despite is None:
            words = f"compared with {baseline}{_BUSY}"
            return Verdict(config=config.name, limit="quiet", kept=False, words=words)
        is_enough = despite
    word = "better" if config.better else "no slower" if is_enough else "not better"
    words = f"{word} than {baseline}"
    return Verdict(config=config.name, limit="better", kept=is_enough, words=words)


def _despite_bias(speedup: Interval, least: float) -> bool | None:
    """Returns whether a speed-up is the required one, whatever a busy machine added or took.

    None where that could have made the difference.
    """
    if speedup.low / MOST_BIAS >= least:
        return True
    return False if speedup.high * MOST_BIAS < least else None
