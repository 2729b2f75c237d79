"""A study's result for the terminal: the result first, the details after."""

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.deploy.options import Value
from autotune.measure.noise import NoiseCheck
from autotune.results.compare import Comparison
from autotune.results.result import Kind, Member, StudyResult
from autotune.search.effects import Effect
from autotune.search.objective import DEFAULT, OBJECTIVES
from autotune.space.candidate import Candidate
from autotune.space.space import Space
from autotune.study.resume import Entry


def headline(result: StudyResult) -> str:
    """Returns the result in a sentence or two."""
    best, name = result.best, result.model.name
    if best is result.baseline:
        reason = (
            "no other configuration keeps the limits"
            if len(result.members) == 1
            and any(result.limits[key] is not None for key in ("max_memory_mib", "max_latency_ms"))
            else "nothing beats it by more than the noise"
        )
        told = f"{name}: the default stays: {reason}."
        if not best.admitted:
            told += " It breaks the limits itself."
        return told
    speedup = best.evidence.speedup
    if best.evidence.significant:
        first = f"{speedup.value:.2f}× faster than the default ({_interval(best)})"
    elif speedup.high < 1:
        first = f"{1 / speedup.value:.2f}× slower than the default"
    else:
        first = "as fast as the default within the noise"
    others = [_change(best, name) for name in result.objectives if name not in DEFAULT]
    told = f"{name}: {', '.join([first, _memory_change(best), *others])}."
    if not result.complete:
        told += " Not confirmed by a run-off."
    return told


def render(result: StudyResult) -> RenderableType:
    """Returns everything that is told after a study."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("trial", justify="right")
    table.add_column("latency ms", justify="right")
    table.add_column("speed-up", justify="right")
    table.add_column("memory MiB", justify="right")
    more = [OBJECTIVES[name] for name in result.objectives if name not in DEFAULT]
    for objective in more:
        table.add_column(objective.heading, justify="right")
    table.add_column("error", justify="right")
    table.add_column("changed from the default", overflow="fold")
    for member in result.members:
        evidence = member.evidence
        mark = " ←" if member.trial == result.picked else ""
        words = member.words if member.admitted else f"{member.words} (breaks the limits)"
        words += "" if evidence.steady else " (no steady state)"
        table.add_row(
            str(member.trial),
            latency(evidence.latency_ms),
            "1"
            if member is result.baseline
            else f"{evidence.speedup.value:.2f} ({_interval(member)})",
            f"{evidence.peak_memory_mib:.1f}",
            *(f"{member.values[objective.name]:.4g}" for objective in more),
            f"{evidence.error:.1g}",
            Text(words + mark),
            style="bold" if member.trial == result.picked else None,
        )
    parts: list[RenderableType] = [Text(headline(result), style="bold green"), "", table, ""]
    if len(result.graphs) > 1:
        told = "By the search, over the default's, with default session options:"
        parts += [Text(told), _graphs(result), ""]
    return Group(*parts, *_details(result))


def _details(result: StudyResult) -> Iterable[Text]:
    evidence = result.baseline.evidence
    if result.complete:
        yield Text(
            f"Measured side by side in up to {evidence.rounds} rounds; in brackets the 95 % "
            f"interval. Noise floor {evidence.noise_floor:.1%}: no gain below it is claimed. "
            "Memory is what the session adds at its peak."
        )
    else:
        yield Text("These are the numbers of the search: the run-off was not reached.")
    data = "your" if evidence.error_data == "user" else "generated"
    yield Text(
        f"Error is the relative L2 distance to the unoptimised model's outputs on {data} inputs."
    )
    best = result.best.evidence
    if best.agreement is not None:
        yield Text(f"Of what was chosen, arg-max is equal in {best.agreement:.1%} of the rows.")
    if best.metric is not None:
        base = result.baseline.evidence.metric
        yield Text(f"Your metric says {best.metric:.4g}, and {base:.4g} of the default.")
    counts = {**result.failed, "given up early, clearly beaten": result.raced}
    told = "".join(f", {count} {kind}" for kind, count in counts.items() if count)
    yield Text(f"{result.trials} trials measured{told.replace('_', ' ')}.")
    if result.ended:
        yield Text(f"The search ended early: {result.ended}.")
    if result.never_quiet:
        yield Text(
            f"{result.never_quiet} of them saw no quiet machine, and their numbers are those of a "
            "busy one: `autotune hardware` says what can be done.",
            style="yellow",
        )
    for kind in result.kinds:
        yield Text(_kind(kind))
    if result.cache_bytes:
        yield Text(
            f"Prepared models hold {result.cache_bytes / 2**20:.0f} MiB in {result.folder}/cache."
        )
    if result.left_out:
        told = "; ".join(f"{name} ({reason})" for name, reason in result.left_out.items())
        yield Text(f"Not tried: {told}.")
    yield Text(f"Written to {result.folder}: {', '.join(result.files)}", style="cyan")


def render_effects(result: StudyResult) -> RenderableType:
    """Returns what each value is worth by itself, the strongest first."""
    objectives = [OBJECTIVES[name] for name in result.objectives]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("parameter")
    table.add_column("value")
    table.add_column("trials", justify="right")
    for objective in objectives:
        table.add_column(objective.word, justify="right")
    told: dict[tuple[str, Value], dict[str, Effect]] = {}
    for effect in result.effects:
        told.setdefault((effect.parameter, effect.value), {})[effect.objective] = effect
    nothing = []
    for (name, value), by_objective in told.items():
        if any(effect.is_known for effect in by_objective.values()):
            count = next(iter(by_objective.values())).trials
            cells = [_factor(by_objective[objective.name]) for objective in objectives]
            table.add_row(name, str(value), str(count), *cells)
        else:
            nothing.append(f"{name}={value}")
    parts: list[RenderableType] = [
        Text(
            "What each value is multiplied with by itself, everything else at its default, with "
            "its 95 % interval; by a linear model of the logarithms over all trials of the search, "
            "pairs of values apart. A dot: no effect is known."
        ),
        "",
        table,
    ]
    if nothing:
        parts += ["", Text(f"No effect is known of {', '.join(nothing)}.")]
    return Group(*parts)


def _factor(effect: Effect) -> str:
    factor = effect.factor
    if not effect.is_known:
        return "·"
    return f"×{factor.value:.2f} ({factor.low:.2f} to {factor.high:.2f})"


def render_studies(found: Sequence[Entry], place: str) -> RenderableType:
    """Returns the studies of a storage as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("study", "model", "machine", "objectives"):
        table.add_column(heading, overflow="fold")
    table.add_column("trials", justify="right")
    for entry in found:
        count = str(entry.trials) if entry.budget is None else f"{entry.trials} of {entry.budget}"
        told = (entry.name, entry.model, entry.machine, ", ".join(entry.objectives), count)
        table.add_row(*(Text(printable(text)) for text in told))
    return Group(Text(place, style="bold"), table if found else Text("no study"))


def printable(text: str) -> str:
    """Returns a stranger's text without what a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def render_comparison(found: Comparison, name: str) -> RenderableType:
    """Returns what is told after ``autotune compare``."""
    speedup = found.speedup
    verdict = "faster" if found.faster else "slower" if found.slower else "as fast within the noise"
    lines = [
        Text(
            f"{name}: {'better' if found.better else 'not better'} than the default here and now.",
            style="bold green" if found.better else "bold red",
        ),
        Text(
            f"{verdict}: {speedup.value:.3f}× ({speedup.low:.3f} to {speedup.high:.3f}), "
            f"{latency(found.latency_ms)} ms against {latency(found.baseline_latency_ms)} ms"
        ),
        Text(
            f"memory {found.peak_memory_mib:.1f} MiB against {found.baseline_peak_memory_mib:.1f} "
            f"MiB{', leaner' if found.leaner else ''}"
        ),
        Text(
            f"error {found.error:.1g} on {found.error_data} inputs; {found.rounds} rounds; "
            f"noise floor {found.noise_floor:.1%}"
        ),
    ]
    if not found.untouched:
        told = "with default options; name the untouched model with --model"
        lines.append(Text(f"Compared with {found.against} {told}.", style="yellow"))
    return Group(*lines)


def noise(check: NoiseCheck) -> str:
    """Returns what the noise check showed, in a sentence or two."""
    return (
        f"{check.floor:.1%}: no smaller difference shows in one measurement "
        f"({check.repetitions} repetitions of the same; {check.contaminated:.0%} of the turns were "
        f"disturbed and taken again; timed without pairs they would be "
        f"{check.plain_spread - 1:.0%} apart)"
    )


def render_space(space: Space) -> RenderableType:
    """Returns a search space as a table of its parameters."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("parameter", no_wrap=True)
    table.add_column("values", overflow="fold")
    table.add_column("exists", overflow="fold")
    for parameter in space.parameters:
        conditions = [f"if {n} is {_either(v)}" for n, v in parameter.when.items()]
        conditions += [f"unless {n} is {_either(v)}" for n, v in parameter.unless.items()]
        conditions += [f"needs {need}" for need in parameter.needs]
        table.add_row(
            Text(parameter.name),
            Text(", ".join(map(str, parameter.values))),
            Text(", ".join(conditions)),
        )
    parts: list[RenderableType] = [
        Text(f"{space.name}: {space.description}", style="bold"),
        "",
        table,
    ]
    if space.left_out:
        parts += ["", *(Text(f"left out: {n} ({why})") for n, why in space.left_out.items())]
    return Group(*parts)


def latency(ms: float) -> str:
    """Returns a latency with four significant digits and no exponent."""
    return f"{ms:.4g}" if 0.001 <= ms < 10_000 else f"{ms:.4f}" if ms < 1 else f"{ms:.0f}"


def words(candidate: Candidate) -> str:
    """Returns what a candidate changes, short enough for a line of progress."""
    text = candidate.in_words()
    return text if len(text) <= 60 else text[:59] + "…"


def _either(values: Iterable[object]) -> str:
    return " or ".join(map(str, values))


def _interval(member: Member) -> str:
    speedup = member.evidence.speedup
    return f"{speedup.low:.2f}–{speedup.high:.2f}"


def _graphs(result: StudyResult) -> RenderableType:
    """Returns the table of what was done to the model's file, under default session options."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("graph", overflow="fold")
    for heading in ("operators", "parameters", "file MiB", "latency", "memory", "error"):
        table.add_column(heading, justify="right")
    with_metric = any(row.metric is not None for row in result.graphs)
    if with_metric:
        table.add_column("metric", justify="right")
    for row in result.graphs:
        if row.failure and row.latency is None:
            table.add_row(Text(row.words), *["-"] * 5, Text("-"))
            table.add_row(Text(f"  {row.failure}", style="dim"))
            continue
        table.add_row(
            Text(row.words),
            _or_dash(row.operators, "{:,}"),
            _or_dash(row.parameters, "{:,}"),
            _or_dash(None if row.size_bytes is None else row.size_bytes / 2**20, "{:.1f}"),
            _or_dash(row.latency, "{:.2f}"),
            _or_dash(row.memory, "{:.2f}"),
            _or_dash(row.error, "{:.1g}"),
            *([_or_dash(row.metric, "{:.4g}")] if with_metric else []),
        )
    return table


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _kind(kind: Kind) -> str:
    """Returns the best trial of a kind of answers, in a sentence."""
    answers = {
        "exact": "Best with exact answers (error under 1e-5)",
        "within": "Best with an error within the limit",
        "beyond": "A looser limit would allow",
    }[kind.answers]
    return (
        f"{answers}: trial {kind.trial}, {kind.speedup:.2f}× "
        f"{'in the run-off' if kind.confirmed else 'as the search sees it'}, "
        f"{kind.peak_memory_mib:.1f} MiB, error {kind.error:.1g}: {kind.words}."
    )


def _change(member: Member, name: str) -> str:
    """Returns what became of another objective, in words."""
    mine, base = member.values[name], getattr(member.evidence, f"baseline_{name}")
    return f"{mine / base:.2f} of its {OBJECTIVES[name].heading}"


def _memory_change(member: Member) -> str:
    evidence = member.evidence
    change = evidence.peak_memory_mib / evidence.baseline_peak_memory_mib - 1
    if abs(change) < 0.02:
        return "with as much memory"
    return f"with {abs(change):.0%} {'less' if change < 0 else 'more'} memory"
