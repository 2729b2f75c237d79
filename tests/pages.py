"""A small study by hand, as a page shows it, with its result."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fakes import measurement, refusal
from small_inspections import PEAKS, PROFILE, REPORT

from autotune.deploy.config import Environment, Evidence, Interval
from autotune.deploy.options import Value
from autotune.inspection.headroom import headroom
from autotune.inspection.profile import TimeShare
from autotune.measure.outcome import Outcome
from autotune.report.page.state import StudyState
from autotune.results.leave_one_out import Part, Simplification
from autotune.results.profiling import DEFAULT, ProfiledSession, Profiling
from autotune.results.result import Member, StudyResult
from autotune.search.beliefs import Effect
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

    def gain(own: float, base: float) -> Interval:
        return Interval(value=base / own, low=0.9 * base / own, high=1.1 * base / own)

    return Member(
        configuration=values,
        words=Configuration.of(values).in_words(),
        admitted=True,
        gains={"latency_ms": gain(ms, BASE_MS), "peak_memory_mib": gain(mib, BASE_MIB)},
        evidence=Evidence(
            latency_ms=ms,
            baseline_latency_ms=BASE_MS,
            speedup=gain(ms, BASE_MS),
            peak_memory_mib=mib,
            baseline_peak_memory_mib=BASE_MIB,
            cpu_s=0.02,
            baseline_cpu_s=0.04,
            load_ms=1.0,
            baseline_load_ms=2.0,
            p99_ms=None,
            baseline_p99_ms=None,
            error=0.01,
            agreement=1.0,
            metric=None,
            error_data="generated",
            rounds=3,
            significant=ms < BASE_MS,
            steady=True,
            noise_floor=0.02,
            trial=trial,
        ),
    )


def simplification() -> Simplification:
    """Returns what the two changes of the winner bring; a third one was dropped."""

    def factor(value: float) -> Interval:
        return Interval(value=value, low=0.95 * value, high=1.05 * value)

    def part(changes: Mapping[str, Value], speedup: float, memory: float) -> Part:
        return Part(
            changes=changes,
            words=Configuration.of(changes).in_words(),
            kept=True,
            matters_for=("latency_ms",),
            speedup=factor(speedup),
            memory=factor(memory),
            error=0.0,
            failure="",
        )

    parts = [
        part({"precision": WINNER["precision"]}, 1.8, 0.9),
        part({"weight_storage": WINNER["weight_storage"]}, 1.01, 0.7),
    ]
    threads = {"intra_op_num_threads": 2}
    dropped = replace(parts[0], changes=threads, words="2 threads", kept=False, matters_for=())
    return Simplification(
        trial=1,
        winner={**WINNER, **threads},
        parts=(*parts, dropped),
        whole=part(WINNER, 1.82, 0.63),
        complete=True,
    )


def result(**changes: Any) -> StudyResult:
    """Returns the result of a final comparison, in which the winner was a little slower."""
    effect = Effect(
        parameter="weight_storage",
        value="external_data",
        objective="latency_ms",
        factor=Interval(value=0.5, low=0.4, high=0.6),
        trials=1,
    )
    made = StudyResult(
        study="tiny-0123456789ab",
        folder=Path("tiny.autotune"),
        model=Path("/models/tiny.onnx"),
        model_sha256="00",
        workload="11",
        picked=1,
        objectives=("latency_ms", "peak_memory_mib"),
        prefer="latency",
        limits={
            "max_error": 0.05,
            "max_memory_mib": None,
            "max_latency_ms": None,
            "max_drop": None,
            "max_p99_ms": None,
        },
        members=(
            member(0, {}, BASE_MS, BASE_MIB),
            member(1, WINNER, 5.5, 61.0),
            member(2, {"arena": "off"}, 9.0, 50.0),
        ),
        trials=6,
        ended="",
        failed={"refused": 1},
        stopped_early=1,
        never_undisturbed=0,
        left_out={"spinning": "one core"},
        effects=(effect, replace(effect, objective="peak_memory_mib")),
        cache_bytes=0,
        notes=("input 'x': float32 [1, 3]",),
        dimensions={},
        environment=Environment(
            autotune="0", onnxruntime="1", cpu="a CPU", cores=2, fingerprint="22"
        ),
        complete=True,
        files=("best.json",),
        others=(),
        simplification=None,
        process=None,
        judgements=(),
        batching=None,
        clients=1,
    )
    return replace(made, **changes)


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
        metric="",
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
