"""Why a config was emitted: what each of its changes brings; or why the default stays."""

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.deploy.config import Interval
from autotune.report.memory import memory_change
from autotune.report.text import interval
from autotune.results.parts import RUNNING, Ablation, Part, Step
from autotune.results.result import Member, StudyResult
from autotune.results.score import SMALLEST_GAIN
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import OBJECTIVES

BRINGS = "What each change brings, from the default on:"
"""The heading of :func:`changes`."""

# Less saved memory than this is not worth a line.
_CLEARLY_LEANER = 0.95
_MAY_COST = 0.05


def render_why(result: StudyResult) -> RenderableType:
    """Returns what each change of the emitted config brings, and what was dropped."""
    ablation = result.ablation
    name = result.model.name
    if result.best is result.baseline:
        lines = [f"{name}: why the default stays.", *nearest(result)]
        return Group(*map(Text, lines))
    if ablation is None:
        return Text(f"{name}: {_no_ablation(result)}")
    if ablation.trial != result.picked:
        return Text(
            f"{name}: best.json holds trial {result.picked}, and the changes of trial "
            f"{ablation.trial} were put back one by one. "
            f"`autotune pick {result.folder} --trial {ablation.trial}` takes it again."
        )
    if not ablation.complete:
        return Text(
            f"{name}: the study was cut short before the changes were put back one by one. "
            "The same command goes on."
        )
    return Group(
        Text(f"{name}: what each change of trial {ablation.trial} brings.", style="bold"),
        "",
        *map(Text, _steps_and_whole(ablation)),
        "",
        *map(Text, _put_back(ablation)),
        "",
        Text(
            "Each step is relative to the one before it. Each change put back alone was measured "
            "side by side with the winner. In brackets: 95 % intervals."
        ),
    )


def changes(result: StudyResult) -> list[tuple[str, str]]:
    """Returns the steps of the emitted config, in words, each with what it brings.

    The last row is what was dropped. There are no rows where no change was put back: the default
    was emitted, another member was picked, or the study was cut short.
    """
    ablation = result.ablation
    if ablation is None or ablation.trial != result.picked or not ablation.steps:
        return []
    rows = [(step.words, brings(step, ablation)) for step in ablation.steps]
    if ablation.dropped:
        words = ", ".join(part.words for part in ablation.dropped)
        rows.append((words, "no effect, dropped"))
    return rows


def nearest(result: StudyResult) -> list[str]:
    """Returns what came nearest to a default that stays, in sentences.

    There are none where a config is emitted, and where the study was cut short.
    """
    if result.best is not result.baseline or not result.complete:
        return []
    others = [m for m in (*result.members, *result.others) if m.admitted and m.candidate]
    if not others:
        return ["No other configuration ran in the final comparison and kept the limits."]
    lean = _CLEARLY_LEANER * result.baseline.evidence.peak_memory_mib
    exact = [
        member
        for member in others
        if member.evidence.error < EXACT_ERROR
        and memory_change(member) < 0
        and member.evidence.peak_memory_mib < lean
    ]
    fastest = max(others, key=lambda member: member.evidence.speedup.value)
    # what costs no time is named before what saves more
    leanest = min(exact, key=lambda m: (_is_slower(m), m.evidence.peak_memory_mib), default=None)
    speed = "throughput" if result.clients > 1 else "latency"
    lines = [f"Nearest in {speed}: {_beside(fastest)}."] if fastest is not leanest else []
    if leanest is not None:
        lines.append(f"Less memory with the same answers: {_beside(leanest)}.")
        if leanest in result.members:
            lines.append(f"`autotune pick {result.folder} --trial {leanest.trial}` takes it.")
    return lines


def _is_slower(member: Member) -> bool:
    return member.evidence.speedup.value < 1 - _MAY_COST


def _no_ablation(result: StudyResult) -> str:
    if result.complete:
        return "an earlier version made this study, which did not put changes back one by one."
    return "there was no final comparison, so no change was put back. The same command goes on."


def _beside(member: Member) -> str:
    """Returns a member in numbers relative to the default, and in words."""
    evidence = member.evidence
    memory = evidence.peak_memory_mib / (evidence.baseline_peak_memory_mib or math.inf)
    speedup = f"{evidence.speedup.value:.2f}× ({interval(evidence.speedup)})"
    return f"trial {member.trial}, {speedup}, {memory:.2f} of the memory: {member.words}"


def brings(step: Step, ablation: Ablation) -> str:
    """Returns what a step does to latency and memory, or why it is there if it does nothing."""
    effects = []
    if _is_clear(step.speedup):
        effects.append(f"{step.speedup.value:.2f}× ({interval(step.speedup)})")
    if _is_clear(step.memory):
        effects.append(f"{step.memory.value:.2f} of the memory")
    reasons = [
        reason(part)
        for part in ablation.parts
        if part.kept and step.changes.keys() <= part.changes.keys()
    ]
    return ", ".join(effects or reasons[:1]) or "chosen by you"


def _is_clear(factor: Interval) -> bool:
    """Returns whether a factor is another one than 1, by more than the noise."""
    return abs(factor.value - 1) >= SMALLEST_GAIN and not factor.low <= 1 <= factor.high


def _steps_and_whole(ablation: Ablation) -> Iterator[str]:
    for step in ablation.steps:
        yield f"{step.words}: {brings(step, ablation)}"
    if ablation.whole is not None and len(ablation.steps) > 1:
        yield f"together: {brings(ablation.whole, ablation)}"
    for part in ablation.dropped:
        yield f"{part.words}: no effect, dropped"


def _put_back(ablation: Ablation) -> Iterator[str]:
    yield "Each change put back alone, and what the winner has of it:"
    for part in ablation.parts:
        numbers = ""
        if part.speedup is not None and part.memory is not None:
            speedup = f"{part.speedup.value:.2f}× ({interval(part.speedup)})"
            numbers = f"{speedup}, {part.memory.value:.2f} of the memory; "
        yield f"  {part.words}: {numbers}{reason(part) if part.kept else 'dropped'}"


def reason(part: Part) -> str:
    """Returns what a change that was kept is needed for."""
    if RUNNING in part.matters_for:
        return f"without it the config fails ({part.failure})"
    if not part.matters_for:
        return "needed beside the others"
    words = [OBJECTIVES[name].word if name in OBJECTIVES else name for name in part.matters_for]
    return f"needed for {' and '.join(words)}"
