"""A tuned config against the default."""

from rich.console import Group, RenderableType
from rich.text import Text

from autotune.report.coverage import coverage_remarks
from autotune.report.text import latency, percent
from autotune.results.compare import Comparison


def render_comparison(comparison: Comparison, config: str) -> RenderableType:
    """Returns the verdict on a config, then its numbers.

    Args:
        comparison: What was measured.
        config: The config as the user named it.
    """
    speedup, better = comparison.speedup, comparison.better
    speed = (
        "faster"
        if comparison.faster
        else "slower"
        if comparison.slower
        else "as fast within the noise"
    )
    lines = [
        Text(
            f"{config} is {'better' if better else 'not better'} than the default on this machine.",
            style="bold green" if better else "bold red",
        ),
        Text(
            f"Speed: {speed}, {speedup.value:.3f}× ({speedup.low:.3f}–{speedup.high:.3f}); "
            f"{latency(comparison.latency_ms)} ms, "
            f"the default {latency(comparison.baseline_latency_ms)} ms."
        ),
        Text(
            f"Memory: {'less, ' if comparison.leaner else ''}{comparison.peak_memory_mib:.1f} MiB, "
            f"the default {comparison.baseline_peak_memory_mib:.1f} MiB."
        ),
        Text(f"Error: {comparison.error:.1g} on {_inputs(comparison)}."),
        Text(
            f"Measured in {comparison.rounds} rounds. "
            f"Noise floor: {percent(comparison.noise_floor)}."
        ),
    ]
    lines += coverage_remarks(comparison.coverage)
    if not comparison.untouched:
        lines.append(
            Text(
                f"The original model is not here, so the default is {comparison.against} with "
                "default options. Name the original model with --model.",
                style="yellow",
            )
        )
    return Group(*lines)


def _inputs(comparison: Comparison) -> str:
    return "your inputs" if comparison.error_data == "user" else "generated inputs"
