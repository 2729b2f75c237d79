"""What a study would do, in words: for ``autotune study --dry-run``."""

from autotune.report.spaces import count_of, left_out
from autotune.report.text import duration, latency
from autotune.report.view import BLANK, Block, Line, Table, View, lines
from autotune.study.plan import StudyPlan

_MOST_SHOWN = 12


def view_plan(plan: StudyPlan) -> View:
    """Returns the inputs, the space, the first trials and the time of a study."""
    ctx, space = plan.ctx, plan.ctx.space
    sizes = (f"{parameter.name} ({len(parameter.values)})" for parameter in space.parameters)
    shown = plan.first[:_MOST_SHOWN]
    rows = [(str(n), configuration.in_words()) for n, configuration in enumerate(shown)]
    hidden = len(plan.first) - len(shown)
    then = f"{hidden} more, and then what the sampler proposes" if hidden else "the sampler's"
    limits = [f"error {ctx.limits.max_error:g}", *_memory_limits(plan)]
    name = ctx.model.path.name
    blocks: list[Block] = [
        Line(f"{name}: this is what a study would do; nothing was written.", "title"),
        BLANK,
        *lines("Inputs:", *(f"  {note}" for note in (*ctx.workload.notes, *ctx.workload.warnings))),
        BLANK,
        Line(f"Search space {space.name}: {count_of(space)}; parameters and their values:"),
        Line(f"  {', '.join(sizes)}"),
        *left_out(space.left_out),
        BLANK,
        Line(f"{plan.trials} trials; the first of them:"),
        Table(headings=("trial", "changes"), rows=rows, words=(1,), has_headings=False),
        *lines(f"  then {then}" if plan.trials > len(shown) else ""),
        BLANK,
        Line(
            f"Objectives: {', '.join(objective.word for objective in ctx.objectives)}; "
            f"{ctx.prefer} chooses. Limits: {', '.join(limits)}."
        ),
        Line(f"Time: {_time(plan)}"),
        Line(f"Folder: {ctx.folder}"),
    ]
    return View(blocks=blocks, data=_data(plan), result=f"{name}: {_time(plan)}")


def _memory_limits(plan: StudyPlan) -> list[str]:
    limits = plan.ctx.limits
    named = (("memory", limits.max_memory_mib), ("held memory", limits.max_held_memory_mib))
    return [f"{name} {mib:g} MiB" for name, mib in named if mib is not None]


def _time(plan: StudyPlan) -> str:
    if plan.estimate_s is None:
        return "unknown, because another autotune measures on these cores; type it again later."
    known = (
        "" if plan.default_ms is None else f"the default runs in {latency(plan.default_ms)} ms; "
    )
    return (
        f"{known}search and final comparison take about {duration(plan.estimate_s)}. "
        "The search ends earlier where nothing promises more."
    )


def _data(plan: StudyPlan) -> dict[str, object]:
    ctx, space = plan.ctx, plan.ctx.space
    configurations = space.configurations
    return {
        "model": str(ctx.model.path),
        "folder": str(ctx.folder),
        "inputs": list(ctx.workload.notes),
        "warnings": list(ctx.workload.warnings),
        "space": space.name,
        "configurations": None if configurations is None else len(configurations),
        "parameters": {p.name: list(p.values) for p in space.parameters},
        "left_out": dict(space.left_out),
        "trials": plan.trials,
        "first": [configuration.to_json() for configuration in plan.first],
        "objectives": [objective.name for objective in ctx.objectives],
        "prefer": ctx.prefer,
        "default_ms": plan.default_ms,
        "trial_s": plan.trial_s,
        "estimate_s": plan.estimate_s,
    }
