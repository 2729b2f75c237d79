"""A small study by hand, as a page shows it, with its result."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
from fakes import measurement, refusal
from small_inspections import PEAKS, PROFILE, REPORT

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.inspection.headroom import headroom
from autotune.inspection.profile import TimeShare
from autotune.measure.outcome import Outcome
from autotune.report.page.state import StudyState
from autotune.results.leave_one_out import Simplification
from autotune.results.profiling import DEFAULT, ProfiledSession, Profiling
from autotune.results.result import Member, StudyResult
from autotune.search.effects import Effect
from autotune.search.objective import find
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import Configuration
from autotune.study.options import StudyOptions

BASE_MS, BASE_MIB = 10.0, 100.0
WINNER: Mapping[str, Value] = {"precision": "int8_static", "weight_storage": "external_data"}


def trials() -> tuple[Trial, ...]:
    """Returns a trial of each kind: default, two of the front, slow, over a limit, failed."""
    each: Sequence[tuple[Mapping[str, Value], Outcome]] = [
        ({}, measurement(BASE_MS, BASE_MIB)),
        (WINNER, measurement(5.0, 60.0, error=0.01)),
        ({"arena": "off"}, measurement(9.0, 50.0)),
        ({"intra_op_num_threads": 1}, replace(measurement(30.0, 99.0), stopped_early=True)),
        ({"precision": "int8_dynamic"}, measurement(4.0, 40.0, error=0.2)),
        ({"optimizer.NchwcTransformer": "off"}, refusal("no <b>kernel</b>")),
    ]
    return tuple(
        Trial(number=number, configuration=Configuration.of(values), outcome=outcome)
        for number, (values, outcome) in enumerate(each)
    )


def member(trial: int, values: Mapping[str, Value], ms: float, mib: float) -> Member:
    """Returns a member of the front with intervals of 10 % to either side."""
    made = made_results.member(trial, values, BASE_MS / ms, mib, 0.01)
    speedup = _around(BASE_MS / ms, 0.1)
    gains = {"latency_ms": speedup, "peak_memory_mib": _around(BASE_MIB / mib, 0.1)}
    return replace(made, evidence=replace(made.evidence, gains=gains, speedup=speedup))


def simplification() -> Simplification:
    """Returns what the two changes of the winner bring; a third one was dropped."""
    parts = [
        made_results.part({"precision": WINNER["precision"]}, ["latency_ms"], 1.8, 0.9),
        made_results.part({"weight_storage": WINNER["weight_storage"]}, ["latency_ms"], 1.01, 0.7),
        made_results.part({"intra_op_num_threads": 2}),
    ]
    return made_results.simplification(1, parts, 1.82, 0.63)


def result(**changes: Any) -> StudyResult:
    """Returns the result of a final comparison, in which the winner was a little slower."""
    effect = Effect(
        parameter="weight_storage",
        value="external_data",
        objective="latency_ms",
        factor=Interval(value=0.5, low=0.4, high=0.6),
        trials=1,
    )
    facts: dict[str, Any] = {
        "study": "tiny-0123456789ab",
        "folder": Path("tiny.autotune"),
        "model": Path("/models/tiny.onnx"),
        "picked": 1,
        "members": (
            member(0, {}, BASE_MS, BASE_MIB),
            member(1, WINNER, 5.5, 61.0),
            member(2, {"arena": "off"}, 9.0, 50.0),
        ),
        "trials": 6,
        "failed": {"refused": 1},
        "stopped_early": 1,
        "left_out": {"spinning": "one core"},
        "effects": (effect, replace(effect, objective="peak_memory_mib")),
        "notes": ("input 'x': float32 [1, 3]",),
        "dimensions": {},
        "files": ("best.json",),
    }
    return made_results.result(**{**facts, **changes})


def state(made: StudyResult | None = None, **changes: Any) -> StudyState:
    """Returns the study in the state of that result; one that still runs without it."""
    study = StudyState(
        name="tiny-0123456789ab",
        model="tiny.onnx",
        folder=Path("tiny.autotune"),
        objectives=find(("latency_ms", "peak_memory_mib")),
        limits=Limits(),
        trials=trials(),
        result=made,
        options=StudyOptions.of("/models/tiny.onnx", trials=6),
        facts={"CPU": "a CPU"},
        stage="" if made else "searching, 6/20",
    )
    return replace(study, **changes)


def profiling(node: TimeShare) -> Profiling:
    """Returns a profile of the default in which one node takes all the time that is shown."""
    session = ProfiledSession(
        name=DEFAULT,
        file="tiny.onnx",
        profile=replace(PROFILE, operators=(node,), overheads=(node,), slowest=(node,)),
        work=REPORT.work,
        headroom=headroom(REPORT.work, PEAKS, 4.0),
    )
    return Profiling(sessions=(session,), peaks=PEAKS)


def _around(value: float, share: float) -> Interval:
    return Interval(value=value, low=(1 - share) * value, high=(1 + share) * value)
