"""What each change of the selected config brings; or what came nearest to a default that stays."""

import math
from collections.abc import Iterator

from autotune.deploy.config import Interval
from autotune.errors import typed
from autotune.report.text import interval
from autotune.report.view import BLANK, Block, Line, Table, View, lines
from autotune.results.leave_one_out import ANSWERS, RUNNING, Part, Simplification
from autotune.results.result import Member, StudyResult
from autotune.results.score import is_gain, is_loss
from autotune.search.finalists import EXACT_ERROR
from autotune.search.objective import OBJECTIVES, SPEEDS
from autotune.space.session import EXECUTION_PROVIDER

_HOW = (
    "Each change was reverted and measured beside the winner, those of one row together; all of "
    "them were measured beside the default. Brackets hold 95 % intervals."
)
_DROPPED = "no clear effect, dropped"

# Less saved memory than this is not worth a line.
_CLEARLY_LEANER = 0.95
_MAY_COST = 0.05
_MEMORY = ("peak_memory_mib", "peak_device_memory_mib", "held_memory_mib")
# Their options are reverted with them.
_WITH_OPTIONS = frozenset({"precision", EXECUTION_PROVIDER})


def view_why(result: StudyResult) -> View:
    """Returns what each change of the selected config brings, and what was dropped."""
    table = None if _simplification(result) is None else changes(result)
    if table is None:
        return View(blocks=lines(*_why_not(result)), data=result.to_json())
    title = f"{result.model.name}: what each change of trial {result.picked} brings."
    blocks: list[Block] = [Line(title, "title"), BLANK, table, BLANK, Line(_HOW)]
    return View(blocks=blocks, data=result.to_json())


def changes(result: StudyResult, *, is_short: bool = False) -> Table | None:
    """Returns a row for each change that was reverted: its numbers, and what became of it.

    Changes that were reverted together have one row, with their numbers together. A short table has
    one row for all that were dropped, and none for all changes together.

    None where no change was reverted: the default was selected, another member was picked, or the
    study was interrupted.
    """
    simplification = result.simplification
    if simplification is None or simplification.trial != result.picked or not simplification.kept:
        return None
    parts = simplification.kept if is_short else simplification.parts
    rows = [(part.words, *_numbers(part), _verdict(part, result)) for part in parts]
    if is_short and simplification.dropped:
        words = ", ".join(part.words for part in simplification.dropped)
        rows.append((words, "", "", _DROPPED))
    if not is_short and simplification.whole is not None:
        rows.append(("together", *_numbers(simplification.whole), ""))
    headings = ("change", "speed-up with it", "memory with it", "verdict")
    return Table(headings=headings, rows=rows, words=(0, 3))


def _numbers(part: Part) -> tuple[str, str]:
    """Returns what changes do to speed and memory, each with its interval."""
    return (
        "" if part.speedup is None else _times(part.speedup),
        "" if part.memory is None else f"{part.memory.value:.2f} ({interval(part.memory)})",
    )


def nearest(result: StudyResult) -> list[str]:
    """Returns what came nearest to a default that stays, in sentences.

    There are none where a config was selected or the default picked, and where the study was
    interrupted.
    """
    if not result.complete or result.best is not result.baseline or result.simplification:
        return []
    others = [m for m in (*result.members, *result.others) if m.admitted and m.configuration]
    if not others:
        return ["No other configuration qualified."]
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
    default = result.baseline
    hints = [f"Nearest in {speed}: {_beside(fastest, default)}."] if fastest is not leanest else []
    if leanest is not None:
        hints.append(f"Less memory with the same answers: {_beside(leanest, default)}.")
        if leanest in result.members:
            command = f"autotune pick {typed(result.folder)} --trial {leanest.trial}"
            hints.append(f"To use it: {command}")
    return hints


def memory_change(member: Member) -> float:
    """Returns how much more memory it needs than the default, relative; 0 within the noise."""
    gain, floor = member.evidence.gains.get("peak_memory_mib"), member.evidence.memory_noise_floor
    if gain is None:
        return 0.0
    is_other = is_gain(gain, floor) or is_loss(gain, floor)
    return 1 / gain.value - 1 if is_other else 0.0


def _verdict(part: Part, result: StudyResult) -> str:
    """Returns what became of changes, beside their speed-up and memory."""
    if not part.kept:
        return _DROPPED
    if not part.matters_for:
        return _why_kept(part)
    kept = "kept together, not measured one by one" if _is_several(part) else "kept"
    return ": ".join(filter(None, [kept, ", ".join(_beyond_columns(part, result))]))


def _is_several(part: Part) -> bool:
    """Returns whether changes were reverted together that are none of one another's options."""
    return len(part.changes) > 1 and _WITH_OPTIONS.isdisjoint(part.changes)


def _beyond_columns(part: Part, result: StudyResult) -> Iterator[str]:
    """Yields what is worse without changes, beside speed and memory."""
    without = "without all of these" if _is_several(part) else "without it"
    if RUNNING in part.matters_for:
        yield f"{without} the config fails ({part.failure})"
    for name in part.matters_for:
        if name == ANSWERS:
            yield f"{_answers(part, result.best.evidence.error)} {without}"
        elif name in OBJECTIVES and name not in (*SPEEDS, *_MEMORY):
            yield f"worse {OBJECTIVES[name].word} {without}"


def _answers(part: Part, error: float) -> str:
    """Returns how far off the answers are with changes and without; a metric may tell more."""
    if part.error is None or part.error <= error:
        return "a lower metric"
    return f"error {error:.2g} instead of {part.error:.2g}"


def _why_kept(part: Part) -> str:
    """Returns why changes were kept that nothing speaks for."""
    effect = "not measured alone" if part.speedup is None else "no clear effect"
    what = "all of these" if _is_several(part) else "it"
    return f"{effect}; kept, because a loss without {what} is not ruled out"


def _simplification(result: StudyResult) -> Simplification | None:
    """Returns the finished leave-one-out of the selected config; None where there is none."""
    simplification = result.simplification
    if result.best is result.baseline or simplification is None or not simplification.complete:
        return None
    return simplification if simplification.trial == result.picked else None


def _why_not(result: StudyResult) -> list[str]:
    """Returns why there is no word on single changes, in sentences."""
    name, simplification = result.model.name, result.simplification
    if result.best is result.baseline and simplification is None:
        return [f"{name}: why the default stays.", *nearest(result)]
    if not result.complete or (simplification is not None and not simplification.complete):
        words = "the study ended (Ctrl-C or --timeout) before its changes were reverted and judged."
        return [f"{name}: {words} `autotune study {typed(result.folder)}` continues it."]
    selected = 0 if simplification is None else simplification.trial
    words = f"{name}: you picked trial {result.picked}, and the study selected trial {selected}."
    return [
        f"{words} Only changes of a selected trial are reverted one by one.",
        f"To use trial {selected}: autotune pick {typed(result.folder)} --trial {selected}",
    ]


def _is_slower(member: Member) -> bool:
    return member.evidence.speedup.value < 1 - _MAY_COST


def _beside(member: Member, baseline: Member) -> str:
    """Returns a member in numbers relative to the default, and in words."""
    evidence = member.evidence
    memory = evidence.peak_memory_mib / (baseline.evidence.peak_memory_mib or math.inf)
    return (
        f"trial {member.trial}, {_times(evidence.speedup)}, {memory:.2f} of the memory: "
        f"{member.words}"
    )


def _times(speedup: Interval) -> str:
    return f"{speedup.value:.2f}× ({interval(speedup)})"
