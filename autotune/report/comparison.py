"""Configurations beside a baseline, and the verdicts on them."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.report.coverage import coverage_remarks
from autotune.report.tables import plain_table
from autotune.report.text import interval, latency, memory, percent
from autotune.results.compare import Comparison, Comparisons
from autotune.results.gate import Verdict

_INPUTS = {"user": "your inputs", "generated": "generated inputs"}


def render_comparisons(comparisons: Comparisons, verdicts: Sequence[Verdict]) -> RenderableType:
    """Returns the verdicts, then the numbers of all configurations beside the baseline's.

    Args:
        comparisons: What was measured.
        verdicts: What the gate says of it.
    """
    lines: list[RenderableType] = [_verdict(verdict) for verdict in verdicts]
    if comparisons.configs:
        first = comparisons.configs[0]
        lines += [
            "",
            _table(comparisons),
            "",
            Text(
                f"Measured side by side in up to {max(c.rounds for c in comparisons.configs)} "
                "rounds. In brackets: 95 % intervals; of memory, where the peak of another process "
                f"lies. Noise floor: {percent(first.noise_floor)}, of memory "
                f"{percent(first.memory_noise_floor)}."
            ),
            Text(f"Errors are measured on {_INPUTS[comparisons.error_data]}."),
            *coverage_remarks(first.coverage),
        ]
    if not comparisons.untouched:
        lines.append(
            Text(
                f"The original model is not here, so {comparisons.model} takes its place. "
                "Name the original model with --model.",
                style="yellow",
            )
        )
    return Group(*lines)


def _verdict(verdict: Verdict) -> Text:
    word, style = ("ok", "green") if verdict.kept else ("FAILED", "bold red")
    return Text.assemble((f"{word:<7}", style), f"{verdict.config}: {verdict.words}")


def _table(comparisons: Comparisons) -> Table:
    table = plain_table()
    table.add_column("configuration", overflow="fold")
    for heading in ("latency ms", "speed-up", "memory MiB", "error", "speed"):
        table.add_column(heading, justify="left" if heading == "speed" else "right")
    first = comparisons.configs[0]
    table.add_row(
        comparisons.baseline,
        latency(first.baseline_latency_ms),
        "1",
        memory(first.baseline_peak_memory_mib, first.baseline_peak_memory_interval_mib),
        "",
        "baseline",
    )
    for config in comparisons.configs:
        table.add_row(
            config.name,
            latency(config.latency_ms),
            f"{config.speedup.value:.2f} ({interval(config.speedup)})",
            memory(config.peak_memory_mib, config.peak_memory_interval_mib),
            f"{config.error:.1g}",
            speed_words(config),
        )
    return table


def speed_words(config: Comparison) -> str:
    """Returns how the configuration's speed and memory stand to the baseline's, in words."""
    speed = "faster" if config.faster else "slower" if config.slower else "as fast"
    return f"{speed}, leaner" if config.leaner else speed
