"""The configurations of a study, a row each, with their details; and the study's conditions."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autotune.deploy.config import Interval, LengthTimes
from autotune.deploy.options import Value
from autotune.measure.outcome import Failure, Measurement
from autotune.report.page.state import StudyState
from autotune.report.result import drawbacks
from autotune.report.text import generation, interval, percent, printable
from autotune.results.result import Member
from autotune.results.score import speedup_of, with_latency
from autotune.search.objective import OBJECTIVES, Values, values
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE
from autotune.study.options import StudyOptions

STATES: Mapping[str, str] = {
    "chosen": "chosen",
    "front": "on the Pareto front",
    "default": "the default",
    "compared": "dominated in the final comparison",
    "measured": "measured",
    "stopped": "stopped early",
    "rejected": "over a limit",
    "failed": "failed",
}
"""What can become of a configuration, in words."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration.

    Attributes:
        words: Its changes from the default.
        configuration: The same by parameter.
        state: A key of :data:`STATES`.
        reason: Why it was rejected, stopped or has no numbers; empty for others.
        confirmed: Whether its numbers are those of the final comparison.
        values: Its objectives; empty where it failed. An estimated latency is that of the default
            in the final comparison, if there was one, divided by the estimated speed-up.
        speedup: How many times faster than the default; None where it failed.
        gains: By objective, how many times better it is than the default; empty where only the
            search measured.
        error: Its error; None where it was not measured.
        agreement: Its top-1 agreement; None where it was not measured.
        lengths: The times of a decoder's generations, by the length of the prompt.
        measurement: Its numbers in the search; None where it failed or they are not at hand.
    """

    trial: int
    words: str
    configuration: Mapping[str, Value]
    state: str
    reason: str = ""
    confirmed: bool = False
    values: Values = field(default_factory=dict)
    speedup: Interval | None = None
    gains: Mapping[str, Interval] = field(default_factory=dict)
    error: float | None = None
    agreement: float | None = None
    lengths: Sequence[LengthTimes] = ()
    measurement: Measurement | None = None


def rows_of(state: StudyState) -> list[Row]:
    """Returns the configurations of a study, in the order of its trials."""
    result = state.result
    members = [] if result is None else [*result.members, *result.others]
    rows = {member.trial: _member_row(state, member) for member in members}
    rows |= {row.trial: row for row in _trial_rows(state) if row.trial not in rows}
    return [rows[number] for number in sorted(rows)]


def _member_row(state: StudyState, member: Member) -> Row:
    """Returns the row of a member of the result."""
    assert state.result is not None
    evidence = member.evidence
    kind = "front" if member in state.result.members else "compared"
    if member.trial == state.result.picked:
        kind = "chosen"
    return Row(
        trial=member.trial,
        words=member.words,
        configuration=member.configuration,
        state="default" if member is state.result.baseline else kind,
        reason=", ".join(drawbacks(state.result, member)),
        confirmed=state.result.complete and evidence.undisturbed,
        values=member.evidence.values,
        speedup=evidence.speedup,
        gains=member.evidence.gains,
        error=evidence.error,
        agreement=evidence.agreement,
        lengths=evidence.lengths,
        measurement=next((t.measurement for t in state.trials if t.number == member.trial), None),
    )


def _trial_rows(state: StudyState) -> Iterator[Row]:
    for trial in state.trials:
        outcome = trial.outcome
        if isinstance(outcome, Failure):
            yield Row(
                trial=trial.number,
                words=trial.configuration.in_words(),
                configuration=trial.configuration.to_json(),
                state="failed",
                reason=f"{outcome.kind.replace('_', ' ')}: {printable(outcome.message)}",
                error=outcome.error,
            )
        else:
            yield _measured_row(state, trial, outcome)


def _measured_row(state: StudyState, trial: Trial, measurement: Measurement) -> Row:
    reason = state.limits.broken(measurement)
    kind = "rejected" if reason else "measured"
    if measurement.stopped_early and not reason:
        kind, reason = "stopped", "clearly dominated by others"
    return Row(
        trial=trial.number,
        words=trial.configuration.in_words(),
        configuration=trial.configuration.to_json(),
        state="default" if trial.configuration == BASELINE else kind,
        reason=reason,
        values=_on_scale(state, values(measurement)),
        speedup=None if state.baseline is None else speedup_of(measurement, state.baseline),
        error=measurement.fidelity.error,
        agreement=measurement.fidelity.agreement,
        lengths=() if measurement.generated is None else measurement.generated.lengths,
        measurement=measurement,
    )


def _on_scale(state: StudyState, estimates: Values) -> Values:
    """Returns estimates of the search on the scale of the final comparison, if there was one.

    The machine may have been slower during the search: ratios to the default hold, and a latency
    beside those of the final comparison would mislead.
    """
    if state.result is None or state.baseline is None or not state.result.complete:
        return estimates
    confirmed_ms = state.result.baseline.evidence.latency_ms
    factor = confirmed_ms / state.baseline.latency_ms
    return with_latency(estimates, factor * estimates["latency_ms"])


def row_details(row: Row) -> dict[str, Any]:
    """Returns what the page shows of a selected trial beside what its row has."""
    return {
        "lines": [list(pair) for pair in _lines(row)],
        "configuration": json.dumps(dict(row.configuration), indent=2),
    }


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    """Yields name and text of each number of a trial."""
    if row.reason:
        yield "remark", row.reason
    if row.values:
        yield "numbers from", "final comparison" if row.confirmed else "search estimate"
    if row.speedup is not None and row.state != "default":
        yield "speed-up", f"{row.speedup.value:.2f}× ({interval(row.speedup)})"
    for name, objective in OBJECTIVES.items():
        if name in row.values:
            yield objective.heading, f"{row.values[name]:.4g}"
    for times in row.lengths:
        yield f"after a prompt of {times.prompt_tokens} tokens", generation(times)
    if row.error is not None:
        yield "error", f"{row.error:.2g}"
    if row.agreement is not None:
        yield "top-1 agreement", percent(row.agreement)


def conditions_of(state: StudyState) -> dict[str, str]:
    """Returns the conditions under which the numbers hold, by name."""
    result = state.result
    conditions = {"model": state.model, "study": state.name}
    if state.options is not None:
        conditions["options"] = _asked(state.options)
    if result is not None:
        conditions |= {
            "model's digest": result.model_sha256,
            "inputs": " ".join(result.notes) or result.workload,
            "autotune": result.environment.autotune,
            "ONNX Runtime": result.environment.onnxruntime,
            "CPU": f"{result.environment.cpu}, {result.environment.cores} usable cores",
            "machine's fingerprint": result.environment.fingerprint,
        }
    conditions["limits"] = state.limits.words
    conditions["objectives"] = ", ".join(objective.heading for objective in state.objectives)
    return {name: text for name, text in {**conditions, **state.facts}.items() if text}


def _asked(options: StudyOptions) -> str:
    """Returns the options that a study was asked for, with neither a storage nor its password."""
    asked = {**options.to_record(), "metric": options.metric, "sampler": options.sampler}
    default = StudyOptions(model=options.model).to_record()
    return ", ".join(
        f"{name}={value}"
        for name, value in asked.items()
        if name not in {"model", "out", "study_name"}
        and value is not None
        and value != default.get(name)
    )
