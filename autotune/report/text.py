"""Numbers and phrases as a person reads them."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.deploy.config import Interval, LengthTimes

_LONGEST_TEXT = 200
_SMALLEST_RANGE_MIB = 0.1


def printable(text: str) -> str:
    """Returns text of unknown origin without control characters, cut after 200 characters.

    A storage or a model may come from a stranger, and a terminal obeys some characters.
    """
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST_TEXT]


def without_controls(text: str) -> str:
    """Returns lines of text with a question mark for each character that a terminal may obey.

    These are control characters, those that change the direction of writing, and halves of
    characters, which stand for bytes of a file name that are no text.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def latency(ms: float) -> str:
    """Returns a latency in ms with four significant digits and no exponent."""
    return f"{ms:.4g}" if 0.001 <= ms < 10_000 else f"{ms:.4f}" if ms < 1 else f"{ms:.0f}"


def duration(seconds: float) -> str:
    """Returns a time as a person says it: ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def generation(times: "LengthTimes", default: "LengthTimes | None" = None) -> str:
    """Returns the times of a generation, those of the default in parentheses."""
    first, rate = latency(times.ttft_ms), f"{1e3 / times.step_ms:.4g}"
    if default is not None:
        first += f" ({latency(default.ttft_ms)})"
        rate += f" ({1e3 / default.step_ms:.4g})"
    return f"{first} ms to the first token, {rate} tokens/s at a context of {times.context}"


def percent(share: float) -> str:
    """Returns a share in per cent with at most one decimal: ``98 %``, ``0.6 %``."""
    return f"{100 * share:.1f}".removesuffix(".0") + " %"


def interval(value: "Interval") -> str:
    """Returns the two ends of an interval: ``1.38–1.45``."""
    return f"{value.low:.2f}–{value.high:.2f}"


def memory(mib: float, expected: "Interval | None") -> str:
    """Returns a size in MiB, with its interval for another process: ``41.2 (38.0–44.1)``.

    Args:
        expected: The interval; None, or one without any width, is left out.
    """
    if expected is None or expected.high - expected.low < _SMALLEST_RANGE_MIB:
        return f"{mib:.1f}"
    return f"{mib:.1f} ({expected.low:.1f}–{expected.high:.1f})"
