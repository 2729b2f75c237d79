"""The answer of a study, which the page shows first: gains against the default, and changes."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.deploy.config import Interval
from autotune.report.memory import memory, memory_change
from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState
from autotune.report.result import headline
from autotune.report.text import interval, latency, percent
from autotune.report.why import nearest
from autotune.results.emit import CONFIG
from autotune.results.result import Member, StudyResult
from autotune.search.objective import DEFAULT, OBJECTIVES
from autotune.space.candidate import BASELINE, Candidate


@dataclass(frozen=True, kw_only=True)
class Card:
    """One number of the answer.

    Attributes:
        title: What it is about.
        value: The number.
        details: Lines below it: its interval, and what the default has.
        good: Whether it is a gain.
    """

    title: str
    value: str
    details: tuple[str, ...]
    good: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of a study.

    Attributes:
        headline: The result in a sentence.
        confirmed: Whether a final comparison confirmed the numbers.
        cards: The numbers.
        file_changes: What changes the model's file, in words; empty where nothing does.
        session_changes: What changes the session, in words; empty where nothing does.
        nearest: What came nearest to a default that stays, in sentences; empty for others.
        code: The Python code that loads the config; empty while the study runs.
        trial: Number of its trial; None while no trial has ended.
    """

    headline: str
    confirmed: bool
    cards: tuple[Card, ...]
    file_changes: str
    session_changes: str
    nearest: tuple[str, ...]
    code: str
    trial: int | None


def answer_of(state: StudyState, rows: list[Row]) -> Answer:
    """Returns the answer of a study, or the best so far while there is none."""
    if state.result is not None:
        return _final(state.result)
    first = state.objectives[0]
    states = {"default", "measured", "stopped"}
    kept = [row for row in rows if row.state in states and first.name in row.values]
    best = min(kept, key=lambda row: first.cost(row.values[first.name]), default=None)
    if best is None:
        return _answer(f"{state.model}: no trial has ended yet.", (), BASELINE, None)
    words = f"Best so far: trial {best.trial}. The final comparison has yet to confirm it."
    base = next((row for row in kept if row.state == "default"), best)
    speed = "" if best.speedup is None else f"{best.speedup.value:.2f}×"
    ms, mib = (best.values[name] for name in DEFAULT)
    base_ms, base_mib = (base.values[name] for name in DEFAULT)
    cards = (
        Card(
            title="speed-up (search estimate)",
            value=speed,
            details=(f"{latency(ms)} ms, default {latency(base_ms)} ms",),
        ),
        Card(
            title="memory (search estimate)",
            value=f"{mib:.1f} MiB",
            details=(f"default {base_mib:.1f} MiB",),
        ),
    )
    return _answer(words, cards, Candidate.of(best.candidate), best.trial)


def _final(result: StudyResult) -> Answer:
    best = result.best
    cards = (
        _speed_card(result),
        _memory_card(best),
        *_further_cards(result),
        *_answer_cards(result),
    )
    path = json.dumps(str(result.folder / CONFIG), ensure_ascii=False)
    return replace(
        _answer(headline(result), cards, Candidate.of(best.candidate), best.trial),
        confirmed=result.complete,
        nearest=tuple(nearest(result)),
        code=(
            "import autotune\n\n"
            f"session = autotune.load({path})\n"
            "outputs = session.run(None, inputs)"
        ),
    )


def _answer(words: str, cards: tuple[Card, ...], candidate: Candidate, trial: int | None) -> Answer:
    """Returns an answer that nothing has confirmed yet."""
    return Answer(
        headline=words,
        confirmed=False,
        cards=cards,
        file_changes=candidate.graph.in_words() if candidate.graph.values else "",
        session_changes=candidate.session.in_words() if candidate.session.values else "",
        nearest=(),
        code="",
        trial=trial,
    )


def _speed_card(result: StudyResult) -> Card:
    evidence = result.best.evidence
    own, default = latency(evidence.latency_ms), latency(evidence.baseline_latency_ms)
    if result.best is result.baseline:
        return Card(title="latency", value=f"{own} ms", details=("as before",))
    return Card(
        title="gain in throughput" if result.clients > 1 else "speed-up",
        value=f"{evidence.speedup.value:.2f}×",
        details=(f"95 % interval {interval(evidence.speedup)}", f"{own} ms, default {default} ms"),
        good=evidence.significant,
    )


def _memory_card(member: Member) -> Card:
    evidence = member.evidence
    own = memory(evidence.peak_memory_mib, evidence.peak_memory_interval_mib)
    default = memory(evidence.baseline_peak_memory_mib, evidence.baseline_peak_memory_interval_mib)
    sizes = f"{own} MiB, default {default} MiB"
    less = -memory_change(member)
    if not less:
        return Card(title="peak memory", value="the same", details=(sizes,))
    word = "less" if less > 0 else "more"
    return Card(
        title="peak memory",
        value=f"{percent(round(abs(less), 2))} {word}",
        details=(*_saved(member.gains.get("peak_memory_mib")), sizes),
        good=less > 0,
    )


def _saved(gain: Interval | None) -> Iterator[str]:
    """Yields the interval of the share that is saved, from that of the gain."""
    if gain is None or gain.low <= 0:
        return
    low, high = (100 * (1 - 1 / end) for end in (gain.low, gain.high))
    if high <= 0:
        low, high = -high, -low
    yield f"95 % interval {low:.0f}–{high:.0f} %"


def _further_cards(result: StudyResult) -> Iterator[Card]:
    """Yields a card for each objective beyond latency and memory."""
    for name in result.objectives:
        if name in DEFAULT:
            continue
        own, base = result.best.values[name], result.baseline.values[name]
        yield Card(
            title=OBJECTIVES[name].heading,
            value=f"{own:.4g}",
            details=(f"default {base:.4g}",),
            good=OBJECTIVES[name].is_better(own, base),
        )


def _answer_cards(result: StudyResult) -> Iterator[Card]:
    """Yields a card for the error, and one for each other judge of the answers."""
    evidence, base = result.best.evidence, result.baseline.evidence
    limit = result.limits["max_error"]
    data = "your" if evidence.error_data == "user" else "generated"
    allowed = "no limit" if limit is None else f"limit {limit:g}"
    yield Card(
        title="error of the answers",
        value=f"{evidence.error:.1g}",
        details=(allowed, f"measured on {data} inputs"),
    )
    if evidence.agreement is not None:
        yield Card(
            title="top-1 agreement",
            value=percent(evidence.agreement),
            details=("with the original model",),
        )
    if evidence.metric is not None and base.metric is not None:
        yield Card(
            title="your metric",
            value=f"{evidence.metric:.4g}",
            details=(f"default {base.metric:.4g}",),
        )
