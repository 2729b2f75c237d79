"""The result of a study: what to use, the front beside the default, and the details."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from autotune.deploy.config import CONFIG, Interval
from autotune.deploy.options import Value
from autotune.errors import typed
from autotune.report.changes import changes, memory_change, nearest
from autotune.report.remarks import (
    batch_remark,
    coverage_remarks,
    judgement_remarks,
    provider_remarks,
    rate_of,
    runtime_remarks,
    served,
)
from autotune.report.spaces import left_out
from autotune.report.text import generation, interval, latency, memory, percent, printable
from autotune.report.view import BLANK, Block, Line, Table, View
from autotune.results.result import Member, StudyResult
from autotune.results.score import slower_by_up_to
from autotune.search.effects import Effect
from autotune.search.objective import DEFAULT, OBJECTIVES, RATES, Objective

_ANSWERS = {
    "exact": "Best with exact answers (error below 1e-5)",
    "within": "Best within the error limit",
    "beyond": "Best with a looser error limit",
}
# A speed-up whose interval spans more than this factor tells little.
_WIDE = 2.0
_MOST_MEMBERS = 4


def view_result(result: StudyResult) -> View:
    """Returns all of a result: the headline, the front, each change, and the conditions."""
    blocks: list[Block] = [
        *_first_lines(result),
        *_answer(result, result.members, is_short=False),
        *_about_numbers(result),
        *provider_remarks(result),
        *_remarks(result),
        *_about_kinds(result),
        *_about_search(result),
    ]
    blocks += [*left_out(result.left_out), BLANK, _written(result, result.files)]
    return View(blocks=blocks, data=result.to_json())


def view_ending(result: StudyResult, page: str) -> View:
    """Returns the end of a study: what to use, what it brings, and where the rest is.

    Args:
        page: Name of the page that was written beside the result; empty where there is none.
    """
    folder = typed(result.folder)
    blocks = [*_first_lines(result), *answer_blocks(result)]
    blocks.append(_written(result, [*result.files, *filter(None, [page])]))
    if result.best is result.baseline:
        rest = f"autotune show {folder}; autotune inspect {typed(_from_here(result.model))}"
    else:
        rest = f"autotune show {folder} (--why, --effects); autotune profile {folder}"
    blocks.append(Line(f"Details: {rest}"))
    if result.complete:
        config = json.dumps(str(result.folder / CONFIG), ensure_ascii=False)
        blocks.append(Line(f"Load it: session = autotune.load({config})"))
    return View(blocks=blocks, data=result.to_json())


def answer_blocks(result: StudyResult) -> list[Block]:
    """Returns the front, what each change brings, and what qualifies the numbers, on a screen."""
    blocks = [*_answer(result, _few(result), is_short=True), *_remarks(result)]
    if result.complete:
        blocks += _best_of_kind(result, ["beyond"])
    return blocks


def view_effects(result: StudyResult) -> View:
    """Returns how much each value alone changes the objectives."""
    unclear = [
        f"{name}={value}" for (name, value), own in _by_value(result).items() if not _is_clear(own)
    ]
    blocks: list[Block] = [
        Line("How much each value alone changes an objective. A dot: no clear effect.", "title"),
        Line(
            "×0.80 means 80 % of the default's. Brackets hold 95 % intervals, from a linear model "
            "of all trials that also has the effects of pairs of values."
        ),
        BLANK,
        _effects(result),
    ]
    if unclear:
        blocks += [BLANK, Line(f"No clear effect: {', '.join(unclear)}.")]
    return View(blocks=blocks, data=result.to_json())


def _from_here(path: Path) -> Path:
    """Returns a path without the working directory that it lies in."""
    with contextlib.suppress(OSError, ValueError):  # it lies elsewhere, or there is no directory
        return path.relative_to(Path.cwd())
    return path


def headline(result: StudyResult) -> str:
    """Returns the result in a sentence."""
    name, best = result.model.name, result.best
    if best is not result.baseline:
        others = [_change(result, o) for o in _further(result) if o.name not in RATES]
        gains = ", ".join([_gain(result), _memory_gain(best), *others])
        estimated = "" if result.complete else " by the estimate of the search"
        busy = "" if best.evidence.undisturbed else ", on a busy machine"
        return f"{name}: {gains}{estimated}{busy}."
    if result.simplification is not None:  # the study selected another member
        selected = result.simplification.trial
        return f"{name}: you picked the default; the study selected trial {selected}."
    keys = ("max_memory_mib", "max_held_memory_mib", "max_latency_ms", "max_p99_ms")
    limited = any(result.limits.get(key) is not None for key in keys)
    others_admitted = any(
        m.admitted for m in (*result.members, *result.others) if m is not result.baseline
    )
    if result.trials <= 1:
        reason = "no other configuration was measured"
    elif result.trials - 1 <= sum(result.failed.values()):
        reason = "no other configuration could be measured"
    elif limited and not others_admitted:
        reason = "no other configuration keeps the limits"
    else:
        reason = "no other configuration is better by more than the noise"
    return f"{name}: the default stays, because {reason}."


def qualifiers(result: StudyResult) -> Iterator[Line]:
    """Yields what one has to know beside the headline at once."""
    best, failed = result.best, sum(result.failed.values())
    is_default = best is result.baseline
    if is_default and 2 * failed >= result.trials:  # few of what the study was about were measured
        reasons = "; ".join(f"{text} ({count})" for text, count in result.reasons.items())
        yield Line(f"{failed} of {result.trials} trials failed: {reasons}.", "warning")
    if is_default and not best.admitted and result.simplification is None:
        yield Line(_broken_limit(result), "warning")
    if not (is_default or best.evidence.undisturbed):
        yield Line(
            "Other programs held the cores, which slows some configurations more than others, so "
            "this is not confirmed. When the machine is quiet, type "
            f"`autotune compare {typed(result.folder)}`.",
            "warning",
        )
    if not result.complete:
        yield Line(
            "No final comparison has confirmed this: numbers with a ~ are estimates of the search.",
            "warning",
        )
    if result.clients > 1:
        tuned = f"tuned: {served(best)}; " if not is_default else ""
        default = served(result.baseline)
        yield Line(f"With {result.clients} clients: {tuned}the default: {default}.")
    for text in result.warnings:
        yield Line(f"{text[0].upper()}{text[1:]}.", "warning")


def _effects(result: StudyResult) -> Table:
    """Returns a row for each value with a clear effect, the strongest first."""
    objectives = [OBJECTIVES[name] for name in result.objectives]
    rows = []
    for (name, value), own in _by_value(result).items():
        if not _is_clear(own):
            continue
        count = next(iter(own.values())).trials
        factors = [_factor(own[o.name]) for o in objectives]
        rows.append((name, str(value), str(count), *factors))
    words = [objective.word for objective in objectives]
    return Table(headings=("parameter", "value", "trials", *words), rows=rows, words=(0, 1))


def _first_lines(result: StudyResult) -> list[Line]:
    return [Line(headline(result), "good"), *qualifiers(result), BLANK]


def _answer(result: StudyResult, members: Sequence[Member], *, is_short: bool) -> list[Block]:
    """Returns the front, and what came nearest or what each change brings."""
    blocks: list[Block] = [_front(result, members, is_short=is_short), BLANK]
    if sentences := nearest(result):
        blocks += [*map(Line, sentences), BLANK]
    if (table := changes(result, is_short=True)) is not None:
        blocks += [table, BLANK]
    return blocks


def _gain(result: StudyResult) -> str:
    """Returns how the speed of the chosen member compares with the default's, in a phrase."""
    evidence, speedup = result.best.evidence, result.best.evidence.speedup
    loss = slower_by_up_to(speedup)
    is_clear = evidence.significant or speedup.high < 1
    if result.clients > 1:
        clients = f" with {result.clients} clients"
        if is_clear:
            factor = f"{speedup.value:.2f}× the throughput of the default ({interval(speedup)})"
            return f"{factor}{clients}"
        less = f"at most {percent(loss)} less than " if loss else ""
        return f"{less}the throughput of the default{clients}"
    if evidence.significant:
        return f"{speedup.value:.2f}× faster than the default ({interval(speedup)})"
    if loss and speedup.high < 1:
        return f"{1 / speedup.value:.2f}× slower than the default"
    return f"slower than the default by up to {percent(loss)}" if loss else "as fast as the default"


def _broken_limit(result: StudyResult) -> str:
    """Returns what it means that the default breaks a limit."""
    max_p99_ms = result.limits.get("max_p99_ms")
    if max_p99_ms is None:
        return "The default itself breaks the limits."
    if result.best.evidence.p99_ms is None:
        return (
            "The 99th percentile of the default is not known, because too few of its runs were "
            "undisturbed; the same command measures it again on a quieter machine."
        )
    return (
        "The default itself breaks the limits. Nothing that was measured serves "
        f"{result.clients} clients with a 99th percentile of at most {max_p99_ms:g} ms."
    )


def _further(result: StudyResult) -> list[Objective]:
    """Returns the objectives beyond those that have a column in every result."""
    shown = (*DEFAULT, *RATES, "p99_ms") if result.clients > 1 else DEFAULT
    return [OBJECTIVES[name] for name in result.objectives if name not in shown]


def _change(result: StudyResult, objective: Objective) -> str:
    """Returns how a further objective of the chosen member compares with the default."""
    device_mib = result.best.evidence.peak_device_memory_mib
    if objective.name == "peak_device_memory_mib" and device_mib is not None:
        return f"{device_mib:.0f} MiB on the device"  # the default, on the CPU, takes none
    gain = result.best.evidence.gains[objective.name]
    less = Interval(value=1 / gain.value, low=1 / gain.high, high=1 / gain.low)
    return f"{less.value:.2f} of its {objective.heading} ({interval(less)})"


def _memory_gain(member: Member) -> str:
    change = memory_change(member)
    if not change:
        return "with the same memory"
    return f"with {abs(change):.0%} {'less' if change < 0 else 'more'} memory".replace("%", " %")


def _few(result: StudyResult) -> list[Member]:
    """Returns the members that have room on a screen: the default and the picked one among them."""
    first = [result.baseline, result.best]
    chosen = [*first, *(member for member in result.members if member not in first)]
    return [member for member in result.members if member in chosen[:_MOST_MEMBERS]]


def _front(result: StudyResult, members: Sequence[Member], *, is_short: bool) -> Table:
    """Returns the members of the front, the default first, the chosen one marked.

    Numbers that no final comparison has confirmed have a tilde before them.
    """
    has_clients, further = result.clients > 1, _further(result)
    about = "" if result.complete else "~"

    def cells(member: Member) -> list[str]:
        evidence = member.evidence
        peak_interval = None if is_short else evidence.peak_memory_interval_mib
        speedup = f"{about}{evidence.speedup.value:.2f} ({interval(evidence.speedup)})"
        p99 = "·" if evidence.p99_ms is None else latency(evidence.p99_ms)
        served_as = [f"{about}{rate_of(member):.4g}", p99]
        return [
            "→" if member.trial == result.picked else "",
            str(member.trial),
            *(served_as if has_clients else [f"{about}{latency(evidence.latency_ms)}"]),
            "1" if member is result.baseline else speedup,
            about + memory(evidence.peak_memory_mib, peak_interval),
            *(f"{about}{member.evidence.values[objective.name]:.4g}" for objective in further),
            f"{evidence.error:.1g}",
            _description(result, member),
        ]

    rate = "samples/s" if result.best.evidence.tokens_per_s is None else "tokens/s"
    speed = [rate, "p99 ms", "gain"] if has_clients else ["latency ms", "speed-up"]
    headings = [
        "",
        "trial",
        *speed,
        "memory MiB",
        *(o.heading for o in further),
        "error",
        "changes",
    ]
    rows = list(map(cells, members))
    picked = next((n for n, member in enumerate(members) if member.trial == result.picked), None)
    words = (len(headings) - 1,)
    return Table(headings=headings, rows=rows, words=words, marked=picked)


def _description(result: StudyResult, member: Member) -> str:
    """Returns what a member changes, and what is wrong with it."""
    wrong = drawbacks(result, member)
    return f"{member.words} ({', '.join(wrong)})" if wrong else member.words


def drawbacks(result: StudyResult, member: Member) -> list[str]:
    """Returns what is wrong with a member, a phrase each."""
    phrases = []
    if not member.admitted:
        is_unknown = result.limits.get("max_p99_ms") and member.evidence.p99_ms is None
        phrases.append("its 99th percentile is unknown" if is_unknown else "breaks the limits")
    if not member.evidence.steady:
        phrases.append("its latency never settled")
    return phrases


def _remarks(result: StudyResult) -> Iterator[Line]:
    """Yields what qualifies the numbers of a result, at its end as in all of it."""
    yield from runtime_remarks(result)
    if remark := batch_remark(result):
        yield Line(remark)
    yield from _about_noise(result)
    if sentence := _held_sentence(result):
        yield Line(sentence)
    yield from _by_length(result)
    yield Line(_answers_sentence(result))
    yield from coverage_remarks(result.best.evidence.coverage)
    yield from judgement_remarks(result)


def _about_noise(result: StudyResult) -> Iterator[Line]:
    """Yields what other programs did to the numbers, where the headline does not say it."""
    if not (result.best is result.baseline or result.best.evidence.undisturbed):
        return
    if 2 * result.never_undisturbed > result.trials:
        yield Line(
            f"{result.never_undisturbed} of {result.trials} trials ran on a busy machine; "
            "`autotune hardware` says what helps.",
            "warning",
        )
    intervals = [member.evidence.speedup for member in result.members]
    if result.complete and any(item.high > _WIDE * item.low for item in intervals):
        yield Line(
            "Some intervals are wide: too few runs were undisturbed. More trials or a quieter "
            "machine narrow them.",
            "warning",
        )


def _by_length(result: StudyResult) -> Iterator[Line]:
    """Yields what a decoder takes after each prompt: its speed depends on the context."""
    best, default = result.best.evidence.lengths, result.baseline.evidence.lengths
    beside = "" if result.best is result.baseline else ", the default in parentheses"
    alone = " with one client" if result.clients > 1 else ""
    for number, times in enumerate(best):
        other = default[number] if beside and number < len(default) else None
        prompt = f"After a prompt of {times.prompt_tokens} tokens, by the clock{alone}{beside}"
        yield Line(f"{prompt}: {generation(times, other)}.")


def _held_sentence(result: StudyResult) -> str:
    """Returns what a process holds after all runs; empty where nobody asked for it."""
    limit_mib, best = result.limits.get("max_held_memory_mib"), result.best.evidence
    if best.held_memory_mib is None or (
        limit_mib is None and "held_memory_mib" not in result.objectives
    ):
        return ""
    sentence = f"Memory held after all runs: {best.held_memory_mib:.1f} MiB"
    if best.most_held_memory_mib is not None:
        sentence += f"; other processes hold {best.most_held_memory_mib:.1f} MiB at most"
    return sentence + ("." if limit_mib is None else f" (limit {limit_mib:g} MiB).")


def _answers_sentence(result: StudyResult) -> str:
    """Returns how right the answers are, in a sentence."""
    best, limit = result.best.evidence, result.limits["max_error"]
    is_real = result.error_data == "user"
    data = "your inputs" if is_real else "generated inputs, not real ones (--data)"
    if best.tokens_per_s is not None:
        rise = f"perplexity {percent(best.error)} above the unoptimised model's"
        text = "your text" if is_real else "text that it wrote itself"
        same = "" if best.agreement is None else f"; equal tokens {percent(best.agreement)}"
        return f"Answers: {rise} (limit {percent(limit or 0)}) on {text}{same}."
    words = f"Answers: error {best.error:.1g}"
    if best.worst_part:
        words += f" of {printable(best.worst_part)}"
    words += f" (limit {limit:g})" if limit else " (no limit: the metric decides)"
    words += f" on {data}"
    if best.agreement is not None:
        words += f"; top-1 agreement {percent(best.agreement)}"
    if best.metric is not None:
        words += f"; your metric {best.metric:.4g}, {result.baseline.evidence.metric:.4g} before"
    return f"{words}."


def _written(result: StudyResult, files: Sequence[str]) -> Line:
    return Line(f"Written to {result.folder}: {', '.join(files)}", "hint")


def _about_numbers(result: StudyResult) -> Iterator[Line]:
    evidence = result.baseline.evidence
    if not result.complete or len(result.members) + len(result.others) == 1:
        return
    yield Line(
        "The final comparison measured all of them side by side with the default in up to "
        f"{max(m.evidence.rounds for m in result.members)} rounds. Brackets hold 95 % intervals. "
        f"Noise floor: {percent(evidence.noise_floor)}; smaller differences do not count as gains."
    )
    peak = "Memory is the peak that a session adds to its process, in the largest of the processes."
    if evidence.memory_noise_floor is not None:
        peak += (
            " The brackets beside it are the 95 % prediction interval for another process, whose "
            "heap may differ. "
            f"Noise floor of memory: {percent(evidence.memory_noise_floor)}."
        )
    yield Line(peak)


def _about_kinds(result: StudyResult) -> Iterator[Line]:
    """Yields what the error is, and the best trial of each kind of answers."""
    if result.best.evidence.tokens_per_s is not None:
        yield Line("The error is the rise of the perplexity beside the unoptimised model.")
    else:
        yield Line("The error is the relative L2 distance to the outputs of the unoptimised model.")
    yield from _best_of_kind(result, result.kinds)


def _best_of_kind(result: StudyResult, kinds: Iterable[str]) -> Iterator[Line]:
    """Yields the best trial of kinds of answers, where neither headline nor front say it."""
    source = "in the final comparison" if result.complete else "as the search estimates it"
    for kind in kinds:
        member = result.kinds.get(kind)
        if member is None or member.trial in {result.baseline.trial, result.picked}:
            continue
        own = member.evidence
        yield Line(
            f"{_ANSWERS[kind]}: trial {member.trial}, {own.speedup.value:.2f}× {source}, "
            f"{own.peak_memory_mib:.1f} MiB, error {own.error:.1g}: {member.words}."
        )


def _about_search(result: StudyResult) -> Iterator[Line]:
    counts = {**result.failed, "stopped early": result.stopped_early}
    parts = [f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count]
    yield Line(f"Trials: {', '.join([f'{result.trials} measured', *parts])}.")
    if result.ended:
        yield Line(f"The search ended early: {result.ended}.")
    if result.cache_bytes:
        size_mib = result.cache_bytes / 2**20
        yield Line(f"Transformed models take {size_mib:.0f} MiB in {result.folder}/cache.")


def _by_value(result: StudyResult) -> dict[tuple[str, Value], dict[str, Effect]]:
    """Returns the effects of each value by objective, the strongest value first."""
    by_value: dict[tuple[str, Value], dict[str, Effect]] = {}
    for effect in result.effects:
        by_value.setdefault((effect.parameter, effect.value), {})[effect.objective] = effect
    return by_value


def _is_clear(effects: Mapping[str, Effect]) -> bool:
    return any(effect.is_known for effect in effects.values())


def _factor(effect: Effect) -> str:
    if not effect.is_known:
        return "·"
    return f"×{effect.factor.value:.2f} ({interval(effect.factor)})"
