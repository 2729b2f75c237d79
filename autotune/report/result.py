"""The result of a study: the front beside the default first, the details after."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.report.batches import batch_remark
from autotune.report.coverage import coverage_remarks
from autotune.report.graphs import graph_table
from autotune.report.memory import memory, memory_change
from autotune.report.process import process_remarks
from autotune.report.providers import provider_remarks
from autotune.report.serving import gain_words, is_loaded, serving_sentence
from autotune.report.tables import plain_table
from autotune.report.text import interval, latency, percent
from autotune.report.why import BRINGS, changes, nearest
from autotune.results.result import Kind, Member, StudyResult
from autotune.search.objective import DEFAULT, OBJECTIVES, THROUGHPUT, Objective

_ANSWERS = {
    "exact": "Best with exact answers (error below 1e-5)",
    "within": "Best within the error limit",
    "beyond": "Best with a looser error limit",
}
# A speed-up whose interval spans more than this factor tells little.
_WIDE = 2.0


def render_result(result: StudyResult) -> RenderableType:
    """Returns the headline, the table of the front and the details of a result."""
    parts: list[RenderableType] = [
        Text(headline(result), style="bold green"),
        "",
        _front_table(result),
        "",
    ]
    if sentences := nearest(result):
        parts += [*map(Text, sentences), ""]
    if rows := changes(result):
        parts += [BRINGS, *(Text(f"  {words}: {brings}") for words, brings in rows), ""]
    if len(result.graphs) > 1:
        title = "Changes of the graph alone, relative to the default, measured in the search:"
        parts += [Text(title), graph_table(result.graphs), ""]
    return Group(*parts, *_details(result))


def headline(result: StudyResult) -> str:
    """Returns the result in a sentence or two."""
    best, name = result.best, result.model.name
    if best is result.baseline:
        return _default_stays(result)
    speedup = best.evidence.speedup
    if is_loaded(result):
        gain = gain_words(best, result.clients)
    elif best.evidence.significant:
        gain = f"{speedup.value:.2f}× faster than the default ({interval(speedup)})"
    elif speedup.high < 1:
        gain = f"{1 / speedup.value:.2f}× slower than the default"
    else:
        gain = "as fast as the default within the noise"
    others = [_change(result, o) for o in _further(result) if o.name != THROUGHPUT]
    sentences = [f"{name}: {', '.join([gain, _memory_change(best), *others])}."]
    if not result.complete:
        sentences.append("No final comparison has confirmed this.")
    return " ".join(filter(None, [*sentences, serving_sentence(result)]))


def has_wide_intervals(result: StudyResult) -> bool:
    """Returns whether the speed-up of a member is hardly known."""
    intervals = (member.evidence.speedup for member in result.members)
    return result.complete and any(item.high > _WIDE * item.low for item in intervals)


def _default_stays(result: StudyResult) -> str:
    """Returns why the default itself is the result."""
    keys = ("max_memory_mib", "max_latency_ms", "max_p99_ms")
    limited = any(result.limits.get(key) is not None for key in keys)
    reason = (
        "no other configuration keeps the limits"
        if len(result.members) == 1 and limited
        else "no other configuration beats it by more than the noise"
    )
    sentences = [f"{result.model.name}: the default stays, because {reason}."]
    if not result.best.admitted:
        sentences.append(_broken_limit(result))
    return " ".join(filter(None, [*sentences, serving_sentence(result)]))


def _broken_limit(result: StudyResult) -> str:
    """Returns what it means that the default breaks a limit."""
    max_p99_ms = result.limits.get("max_p99_ms")
    if max_p99_ms is None:
        return "The default itself breaks the limits."
    if result.best.evidence.p99_ms is None:
        return (
            "Its 99th percentile is not known, because too few of its runs were undisturbed; the "
            "same command goes on when the machine is quieter."
        )
    return (
        "The default itself breaks the limits. Nothing that was measured serves "
        f"{result.clients} clients with a 99th percentile of at most {max_p99_ms:g} ms."
    )


def _further(result: StudyResult) -> list[Objective]:
    """Returns the objectives beyond latency and memory, which every result shows.

    The 99th percentile has a column of its own where there were several clients.
    """
    shown = (*DEFAULT, "p99_ms") if is_loaded(result) else DEFAULT
    return [OBJECTIVES[name] for name in result.objectives if name not in shown]


def _change(result: StudyResult, objective: Objective) -> str:
    """Returns how a further objective of the chosen member compares with the default."""
    value = result.best.values[objective.name]
    baseline = result.baseline.values[objective.name]
    return f"{value / baseline:.2f} of its {objective.heading}"


def _memory_change(member: Member) -> str:
    change = memory_change(member)
    if not change:
        return "with the same memory"
    return f"with {abs(change):.0%} {'less' if change < 0 else 'more'} memory".replace("%", " %")


def _front_table(result: StudyResult) -> Table:
    """Returns the members of the front, the default first, the chosen one marked."""
    table = plain_table()
    further = _further(result)
    gain = "gain" if is_loaded(result) else "speed-up"
    for heading in ("trial", "latency ms", gain, "memory MiB"):
        table.add_column(heading, justify="right")
    for objective in further:
        table.add_column(objective.heading, justify="right")
    if is_loaded(result):
        table.add_column("p99 ms", justify="right")
    table.add_column("error", justify="right")
    table.add_column("changes from the default", overflow="fold")
    for member in result.members:
        evidence = member.evidence
        speedup = f"{evidence.speedup.value:.2f} ({interval(evidence.speedup)})"
        picked = member.trial == result.picked
        table.add_row(
            str(member.trial),
            latency(evidence.latency_ms),
            "1" if member is result.baseline else speedup,
            memory(evidence.peak_memory_mib, evidence.peak_memory_interval_mib),
            *(f"{member.values[objective.name]:.4g}" for objective in further),
            *([_p99(member)] if is_loaded(result) else []),
            f"{evidence.error:.1g}",
            Text(_description(member) + (" ←" if picked else "")),
            style="bold" if picked else None,
        )
    return table


def _p99(member: Member) -> str:
    """Returns the 99th percentile in ms; a dot where there were too few runs for it."""
    return "·" if member.evidence.p99_ms is None else latency(member.evidence.p99_ms)


def _description(member: Member) -> str:
    """Returns what a member changes, with what speaks against it."""
    warnings = []
    if not member.admitted:
        warnings.append("breaks the limits")
    if not member.evidence.steady:
        warnings.append("no steady state")
    return f"{member.words} ({', '.join(warnings)})" if warnings else member.words


def _details(result: StudyResult) -> Iterator[Text]:
    yield from _about_numbers(result)
    yield from process_remarks(result)
    yield from provider_remarks(result)
    yield from _about_answers(result)
    yield from _about_search(result)
    yield Text(f"Written to {result.folder}: {', '.join(result.files)}", style="cyan")


def _about_numbers(result: StudyResult) -> Iterator[Text]:
    evidence = result.baseline.evidence
    if not result.complete:
        yield Text("There was no final comparison: these are the numbers of the search.")
        return
    if len(result.members) + len(result.others) == 1:
        yield Text("Nothing was left to compare the default with.")
        return
    yield Text(
        "Final comparison: measured side by side with the default in up to "
        f"{max(m.evidence.rounds for m in result.members)} rounds. In brackets: 95 % intervals. "
        f"Noise floor: {percent(evidence.noise_floor)}; smaller differences do not count as gains. "
        "Memory: what a session adds at its peak, in the largest of the processes."
    )
    if has_wide_intervals(result):
        yield Text(
            "Some of these intervals span more than a factor of two, because too few runs were "
            "undisturbed. More trials or a quieter machine narrow them: the final comparison may "
            "take half as long as the search.",
            style="yellow",
        )
    if remark := batch_remark(result):
        yield Text(remark)
    if evidence.memory_noise_floor is not None:
        yield Text(
            "In brackets beside it: where the peak of another process lies with 95 %, because the "
            "heap depends on what a process did before. "
            f"Noise floor of memory: {percent(evidence.memory_noise_floor)}."
        )


def _about_answers(result: StudyResult) -> Iterator[Text]:
    best, baseline = result.best.evidence, result.baseline.evidence
    data = "your" if baseline.error_data == "user" else "generated"
    yield Text(
        "Error: relative L2 distance to the outputs of the unoptimised model, "
        f"measured on {data} inputs."
    )
    yield from coverage_remarks(best.coverage)
    if best.agreement is not None:
        yield Text(f"Top-1 agreement with the original model: {percent(best.agreement)}")
    if best.metric is not None:
        yield Text(f"Your metric: {best.metric:.4g}, and {baseline.metric:.4g} for the default.")
    for kind in result.kinds:
        yield Text(_best_of_kind(kind))


def _about_search(result: StudyResult) -> Iterator[Text]:
    counts = {**result.failed, "stopped early because they were clearly worse": result.raced}
    parts = [f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count]
    yield Text(f"Trials: {', '.join([f'{result.trials} measured', *parts])}.")
    if result.ended:
        yield Text(f"The search ended early: {result.ended}.")
    if result.never_quiet:
        yield Text(
            f"{result.never_quiet} of the trials ran while the machine was busy with other work, "
            "so their numbers are less exact. `autotune hardware` says what helps.",
            style="yellow",
        )
    if result.cache_bytes:
        size_mib = result.cache_bytes / 2**20
        yield Text(f"Prepared models take {size_mib:.0f} MiB in {result.folder}/cache.")
    if result.left_out:
        parts = [f"{name} ({reason})" for name, reason in result.left_out.items()]
        yield Text(f"Not tried: {'; '.join(parts)}.")


def _best_of_kind(kind: Kind) -> str:
    """Returns the best trial of one kind of answers, in a sentence."""
    source = "in the final comparison" if kind.confirmed else "as the search estimates it"
    return (
        f"{_ANSWERS[kind.answers]}: trial {kind.trial}, {kind.speedup:.2f}× {source}, "
        f"{kind.peak_memory_mib:.1f} MiB, error {kind.error:.1g}: {kind.words}."
    )
