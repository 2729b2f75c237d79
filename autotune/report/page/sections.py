"""The tables of the page beside the figures: details of a trial, answers, noise, conditions."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.measure.outcome import Fidelity, Measurement
from autotune.report.coverage import coverage_remarks
from autotune.report.page.machine_figures import memory_by_phase
from autotune.report.page.rows import STATES, Row
from autotune.report.page.state import StudyState
from autotune.report.process import process_remarks
from autotune.report.text import duration, interval, latency, percent
from autotune.report.why import brings, changes
from autotune.results.parts import Part
from autotune.results.result import StudyResult
from autotune.search.objective import THROUGHPUT

# A cell of the table of errors is darkest at the limit, and white that many powers of ten below.
_DECADES = 4


def row_details(row: Row, across: str, up: str) -> dict[str, Any]:
    """Returns what the page shows of a selected trial.

    Args:
        row: The trial.
        across: Name of the objective on the horizontal axis.
        up: Name of the objective on the vertical axis.
    """
    return {
        "x": row.values.get(across),
        "y": row.values.get(up),
        "title": f"Trial {row.trial}",
        "state": STATES[row.state],
        "words": row.words,
        "lines": [list(pair) for pair in _lines(row)],
        "candidate": json.dumps(dict(row.candidate), indent=2),
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
    yield "turns in the search", f"{measurement.quiet_turns} of {measurement.turns} quiet"


@dataclass(frozen=True, kw_only=True)
class Changes:
    """What the changes of the chosen configuration bring.

    Attributes:
        steps: The changes in words, each with what it brings, and the dropped ones.
        whole: What all of them bring together; empty where there is one step.
        parts: Each change, put back alone.
    """

    steps: tuple[tuple[str, str], ...]
    whole: str
    parts: tuple[Part, ...]


def changes_of(result: StudyResult | None) -> Changes:
    """Returns what the changes of the chosen configuration bring; empty if not measured."""
    if result is None or result.ablation is None or not changes(result):
        return Changes(steps=(), whole="", parts=())
    ablation = result.ablation
    whole = ablation.whole if len(ablation.steps) > 1 else None
    return Changes(
        steps=tuple(changes(result)),
        whole="" if whole is None else brings(whole, ablation),
        parts=ablation.parts,
    )


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The error of an output on a sample.

    Attributes:
        text: The number; empty where the sample lacks the output.
        shade: From 0 to 1, larger for larger errors.
    """

    text: str
    shade: float


@dataclass(frozen=True, kw_only=True)
class Answers:
    """How right the answers of a configuration are, as the search measured it.

    Attributes:
        name: The configuration.
        fidelity: Its answers beside those of the unoptimised model.
        outputs: The errors of each output on each sample; empty where an earlier version measured.
    """

    name: str
    fidelity: Fidelity
    outputs: Mapping[str, tuple[Cell, ...]]


def answers_of(state: StudyState) -> list[Answers]:
    """Returns the answers of the chosen configuration and of the default, as far as at hand."""
    pairs = {"chosen": state.chosen, "the default": state.baseline}
    if state.chosen is state.baseline:
        del pairs["chosen"]
    limit = state.limits.max_error
    return [_answers(name, m.fidelity, limit) for name, m in pairs.items() if m is not None]


def _answers(name: str, fidelity: Fidelity, limit: float) -> Answers:
    darkest = limit if math.isfinite(limit) else 1.0
    outputs = {
        output: tuple(_cell(error, darkest) for error in errors)
        for output, errors in fidelity.errors.items()
    }
    return Answers(name=name, fidelity=fidelity, outputs=outputs)


def _cell(error: float | None, darkest: float) -> Cell:
    if error is None:
        return Cell(text="", shade=0.0)
    if error == 0:
        return Cell(text="0", shade=0.0)
    shade = 1 + math.log10(error / darkest) / _DECADES
    return Cell(text=f"{error:.1g}", shade=min(1.0, max(0.0, shade)))


def noise_of(state: StudyState) -> list[str]:
    """Returns what the noise of the machine means for this study, a sentence each."""
    sentences = []
    result = state.result
    if result is not None and result.complete:
        floor = percent(result.baseline.evidence.noise_floor)
        sentences.append(
            f"Noise floor of the final comparison: {floor}. "
            "A smaller difference does not count as a gain."
        )
    measured = [m for trial in state.trials if (m := trial.measurement) is not None]
    if measured:
        loud = sum(not m.is_quiet for m in measured)
        disturbed = sum(m.contaminated_turns for m in measured)
        spent_s = sum(sum(m.spent_s.values()) for m in measured)
        sentences.append(
            f"{disturbed} turns were disturbed and measured again. "
            f"{loud} of {len(measured)} trials saw no quiet machine: their numbers are those of a "
            f"busy one. Measuring took {duration(spent_s)} in the search."
        )
    return sentences


def conditions_of(state: StudyState) -> dict[str, str]:
    """Returns the conditions under which the numbers hold, by name."""
    result = state.result
    conditions = {"model": state.model, "study": state.name}
    if result is not None:
        remarks = coverage_remarks(result.best.evidence.coverage)
        conditions |= {
            "model's digest": result.model_sha256,
            "inputs": " ".join(result.notes) or result.workload,
            "answers": " ".join(remark.plain for remark in remarks),
            "process": " ".join(remark.plain.strip() for remark in process_remarks(result)),
            "autotune": result.environment.autotune,
            "ONNX Runtime": result.environment.onnxruntime,
            "CPU": f"{result.environment.cpu}, {result.environment.cores} usable cores",
            "machine's fingerprint": result.environment.fingerprint,
        }
    limits = {
        "max_error": f"error {state.limits.max_error:g}".replace("error inf", ""),
        "max_memory_mib": f"memory {state.limits.max_memory_mib} MiB",
        "max_latency_ms": f"latency {state.limits.max_latency_ms} ms",
        "max_p99_ms": f"99th percentile {state.limits.max_p99_ms} ms",
        "max_drop": f"fall of the metric {state.limits.max_drop}",
    }
    kept = {n: text for n, text in limits.items() if getattr(state.limits, n) is not None}
    conditions["limits"] = ", ".join(filter(None, kept.values()))
    conditions["objectives"] = ", ".join(objective.heading for objective in state.objectives)
    return {name: text for name, text in {**conditions, **state.facts}.items() if text}
