"""How much each value alone changes the objectives of a study."""

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.deploy.options import Value
from autotune.report.tables import plain_table
from autotune.results.result import StudyResult
from autotune.search.beliefs import Effect
from autotune.search.objective import OBJECTIVES


def render_effects(result: StudyResult) -> RenderableType:
    """Returns a row for each value with a clear effect, the strongest first."""
    objectives = [OBJECTIVES[name] for name in result.objectives]
    table = plain_table()
    table.add_column("parameter")
    table.add_column("value")
    table.add_column("trials", justify="right")
    for objective in objectives:
        table.add_column(objective.word, justify="right")
    by_value: dict[tuple[str, Value], dict[str, Effect]] = {}
    for effect in result.effects:
        by_value.setdefault((effect.parameter, effect.value), {})[effect.objective] = effect
    unclear = []
    for (name, value), effects in by_value.items():
        if any(effect.is_known for effect in effects.values()):
            count = next(iter(effects.values())).trials
            factors = [_factor(effects[objective.name]) for objective in objectives]
            table.add_row(Text(name), Text(str(value)), str(count), *factors)
        else:
            unclear.append(f"{name}={value}")
    parts: list[RenderableType] = [
        Text("How much each value alone changes the objective. A dot: no clear effect."),
        Text(
            "×0.80 means 80 % of the default's. In brackets: 95 % intervals, from a linear model "
            "of all trials that also has the effects of pairs of values."
        ),
        "",
        table,
    ]
    if unclear:
        parts += ["", Text(f"No clear effect: {', '.join(unclear)}.")]
    return Group(*parts)


def _factor(effect: Effect) -> str:
    factor = effect.factor
    if not effect.is_known:
        return "·"
    return f"×{factor.value:.2f} ({factor.low:.2f} to {factor.high:.2f})"
