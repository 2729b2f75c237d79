"""What a study says of several clients: throughput and the tail of the latency."""

from autotune.report.text import interval, latency
from autotune.results.result import Member, StudyResult


def is_loaded(result: StudyResult) -> bool:
    """Returns whether several clients ran at once."""
    return result.clients > 1


def gain_words(member: Member, clients: int) -> str:
    """Returns how a member's throughput compares with the default's, in a phrase."""
    speedup = member.evidence.speedup
    if member.evidence.significant or speedup.high < 1:
        ratio = f"{speedup.value:.2f}× the throughput of the default ({interval(speedup)})"
        return f"{ratio} with {clients} clients"
    return f"the throughput of the default within the noise with {clients} clients"


def serving_sentence(result: StudyResult) -> str:
    """Returns throughput and 99th percentile of the result and the default.

    It is empty where there was one client.
    """
    if not is_loaded(result):
        return ""
    best, default = result.best, result.baseline
    if best is default:
        return f"With {result.clients} clients: {served(default)}."
    return f"Tuned for {result.clients} clients: {served(best)}; the default: {served(default)}."


def served(member: Member) -> str:
    """Returns a member's throughput and 99th percentile, in a phrase."""
    throughput = member.evidence.throughput_per_s or 0.0
    return f"{throughput:.4g} samples/s, p99 {tail(member)}"


def tail(member: Member) -> str:
    """Returns the 99th percentile of a member's latency, or why it is not known."""
    p99_ms = member.evidence.p99_ms
    if p99_ms is None:
        return "unknown from so few runs (--max-latency asks for more)"
    return f"{latency(p99_ms)} ms"
