"""Configurations beside a baseline, and the verdicts on them."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.report.batches import compared_batches
from autotune.report.coverage import coverage_remarks
from autotune.report.memory import memory
from autotune.report.tables import plain_table
from autotune.report.text import interval, latency, percent
from autotune.results.compare import Comparison, Comparisons
from autotune.results.gate import Verdict
from autotune.results.under_load import LoadComparison

TOO_FEW = "–: there were too few requests for this percentile."
"""The sentence below a table that lacks a percentile."""

_INPUTS = {"user": "your inputs", "generated": "generated inputs"}


def render_comparisons(comparisons: Comparisons, verdicts: Sequence[Verdict]) -> RenderableType:
    """Returns the verdicts, then the numbers of all configurations beside the baseline's.

    Args:
        comparisons: What was measured.
        verdicts: What the gate says of it.
    """
    lines: list[RenderableType] = [verdict_line(verdict) for verdict in verdicts]
    if comparisons.configs:
        first = comparisons.configs[0]
        lines += [
            "",
            _table(comparisons) if comparisons.clients == 1 else _clients_table(comparisons),
            "",
            Text(
                f"Measured side by side in up to {max(c.rounds for c in comparisons.configs)} "
                "rounds. In brackets: 95 % intervals; of memory, where the peak of another process "
                f"lies. Noise floor: {percent(first.noise_floor)}, of memory "
                f"{percent(first.memory_noise_floor)}."
            ),
            *_clients_remarks(comparisons),
        ]
        if remark := compared_batches(comparisons):
            lines.append(Text(remark))
    return Group(*lines, *answers_remarks(comparisons))


def answers_remarks(comparison: Comparisons | LoadComparison) -> list[Text]:
    """Returns sentences on the inputs and the model by which the answers were compared."""
    remarks = []
    if comparison.configs:
        remarks.append(Text(f"Errors are measured on {_INPUTS[comparison.error_data]}."))
        remarks += coverage_remarks(comparison.configs[0].coverage)
    if not comparison.untouched:
        remarks.append(
            Text(
                f"The original model is not here, so {comparison.model} takes its place. "
                "Name the original model with --model.",
                style="yellow",
            )
        )
    return remarks


def verdict_line(verdict: Verdict) -> Text:
    """Returns a verdict as a line."""
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


def _clients_table(comparisons: Comparisons) -> Table:
    table = plain_table()
    table.add_column("configuration", overflow="fold")
    for heading in ("samples/s", "throughput", "p50 ms", "p99 ms", "memory MiB", "error"):
        table.add_column(heading, justify="right")
    table.add_column("speed")
    first = comparisons.configs[0]
    table.add_row(
        comparisons.baseline,
        f"{first.baseline_throughput_per_s:.4g}",
        "1",
        latency(first.baseline_p50_ms),
        percentile(first.baseline_p99_ms),
        f"{first.baseline_peak_memory_mib:.1f}",
        "",
        "baseline",
    )
    for config in comparisons.configs:
        table.add_row(
            config.name,
            f"{config.throughput_per_s:.4g}",
            f"{config.speedup.value:.2f} ({interval(config.speedup)})",
            latency(config.p50_ms),
            percentile(config.p99_ms),
            f"{config.peak_memory_mib:.1f}",
            f"{config.error:.1g}",
            speed_words(config),
        )
    return table


def _clients_remarks(comparisons: Comparisons) -> list[Text]:
    if comparisons.clients == 1:
        return []
    remarks = [
        Text(
            f"Closed loop: {comparisons.clients} clients send one request after another, all at "
            "once. Throughput is that of all; latencies are those that a client sees."
        )
    ]
    first = comparisons.configs[0]
    if None in {first.baseline_p99_ms, *(config.p99_ms for config in comparisons.configs)}:
        remarks.append(Text(TOO_FEW))
    return remarks


def percentile(ms: float | None) -> str:
    """Returns a percentile in ms, or a dash where there is none."""
    return "–" if ms is None else latency(ms)


def speed_words(config: Comparison) -> str:
    """Returns how the configuration's speed and memory stand to the baseline's, in words."""
    speed = "faster" if config.faster else "slower" if config.slower else "as fast"
    return f"{speed}, leaner" if config.leaner else speed
