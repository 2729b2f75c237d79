"""Details of a trial, and the conditions of a study."""

import json
from collections.abc import Iterator
from typing import Any

from autotune.measure.outcome import Measurement
from autotune.report.page.machine_figures import memory_by_phase
from autotune.report.page.rows import STATES, Row
from autotune.report.page.state import StudyState
from autotune.report.text import interval, latency, percent
from autotune.search.objective import THROUGHPUT, TOKENS


def row_details(row: Row, across: str, up: str) -> dict[str, Any]:
    """Returns what the page shows of a selected trial."""
    return {
        "x": row.values.get(across),
        "y": row.values.get(up),
        "title": f"Trial {row.trial}",
        "state": STATES[row.state],
        "words": row.words,
        "lines": [list(pair) for pair in _lines(row)],
        "configuration": json.dumps(dict(row.configuration), indent=2),
    }


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    """Yields name and text of each number of a trial."""
    source = "final comparison" if row.confirmed else "search estimate"
    if row.reason:
        yield "remark", row.reason
    if row.values:
        yield "numbers from", source
    if row.speedup is not None and row.state != "default":
        yield "speed-up", f"{row.speedup.value:.2f}× ({interval(row.speedup)})"
    if "latency_ms" in row.values:
        yield "latency", f"{latency(row.values['latency_ms'])} ms"
        if THROUGHPUT in row.values:
            yield "throughput", f"{row.values[THROUGHPUT]:.4g} samples/s"
        if TOKENS in row.values:
            yield "new tokens", f"{row.values[TOKENS]:.4g} tokens/s"
        if "ttft_ms" in row.values:
            yield "time to the first token", f"{latency(row.values['ttft_ms'])} ms"
        yield "peak memory", f"{row.values['peak_memory_mib']:.1f} MiB"
        yield "CPU time of a run", f"{1e3 * row.values['cpu_s']:.4g} ms"
        yield "creating the session", f"{row.values['load_ms']:.4g} ms"
    if row.error is not None:
        yield "error", f"{row.error:.2g}"
    if row.agreement is not None:
        yield "top-1 agreement", percent(row.agreement)
    if row.measurement is not None:
        yield from _search_lines(row.measurement, confirmed=row.confirmed)


def _search_lines(measurement: Measurement, *, confirmed: bool) -> Iterator[tuple[str, str]]:
    if confirmed:
        yield "latency in the search", f"{latency(measurement.latency_ms)} ms"
    created, first_runs, end, _ = memory_by_phase(measurement)
    sizes = f"{created:.1f}, {first_runs:.1f}, {end:.1f} MiB"
    yield "memory created, in first runs, at the end", sizes
    yield (
        "undisturbed time slices",
        f"{measurement.undisturbed_turns} of {measurement.turns}",
    )


def conditions_of(state: StudyState) -> dict[str, str]:
    """Returns the conditions under which the numbers hold, by name."""
    result = state.result
    conditions = {"model": state.model, "study": state.name}
    if result is not None:
        conditions |= {
            "model's digest": result.model_sha256,
            "inputs": " ".join(result.notes) or result.workload,
            "autotune": result.environment.autotune,
            "ONNX Runtime": result.environment.onnxruntime,
            "CPU": f"{result.environment.cpu}, {result.environment.cores} usable cores",
            "machine's fingerprint": result.environment.fingerprint,
        }
    limits = {
        "max_error": f"error {state.limits.max_error:g}".replace("error inf", ""),
        "max_memory_mib": f"memory {state.limits.max_memory_mib} MiB",
        "max_held_memory_mib": f"held memory {state.limits.max_held_memory_mib} MiB",
        "max_latency_ms": f"latency {state.limits.max_latency_ms} ms",
        "max_p99_ms": f"99th percentile {state.limits.max_p99_ms} ms",
        "max_drop": f"fall of the metric {state.limits.max_drop}",
    }
    kept = {n: text for n, text in limits.items() if getattr(state.limits, n) is not None}
    conditions["limits"] = ", ".join(filter(None, kept.values()))
    conditions["objectives"] = ", ".join(objective.heading for objective in state.objectives)
    return {name: text for name, text in {**conditions, **state.facts}.items() if text}
