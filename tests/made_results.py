"""Results of studies that are made up, for tests of what is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from factories import make_evidence, make_numbers

from autotune.applications.confirm import Confirmed, MemoryLimits, Today
from autotune.applications.joint import JointTrial
from autotune.applications.replay import Played
from autotune.applications.result import ApplicationResult, SessionResult
from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.deploy.passed import Passed
from autotune.results.leave_one_out import Part, Simplification
from autotune.results.result import Member, StudyResult
from autotune.space.configuration import Configuration

_STUDY = StudyResult.read(Path(__file__).parent / "data" / "study")


def close(value: float) -> Interval:
    """Returns an interval of one per cent to each side."""
    return Interval(value=value, low=0.99 * value, high=1.01 * value)


def member(
    trial: int,
    values: Mapping[str, Value],
    speedup: float = 1.0,
    memory_mib: float = 100.0,
    error: float = 0.0,
    *,
    admitted: bool = True,
) -> Member:
    """Returns a member with these numbers; the default has 10 ms and 100 MiB."""
    configuration = Configuration.of(values)
    gains = {"latency_ms": close(speedup), "peak_memory_mib": close(100 / memory_mib)}
    return Member(
        configuration=configuration.to_json(),
        words=configuration.in_words(),
        evidence=make_evidence(
            make_numbers(
                {"latency_ms": 10 / speedup, "peak_memory_mib": memory_mib},
                gains,
                error=error,
                agreement=1.0,
            ),
            trial,
        ),
        admitted=admitted,
    )


def part(
    values: Mapping[str, Value],
    matters_for: Sequence[str] = (),
    speedup: float = 1.0,
    memory: float = 1.0,
    **changes: Any,
) -> Part:
    """Returns a change that was reverted alone; it was dropped if it matters for nothing."""
    facts: dict[str, Any] = {
        "changes": values,
        "words": Configuration.of(values).in_words(),
        "kept": bool(matters_for),
        "matters_for": tuple(matters_for),
        "speedup": close(speedup),
        "memory": close(memory),
        "error": 0.0,
        "failure": "",
    }
    return Part(**{**facts, **changes})


def simplification(
    trial: int, parts: Sequence[Part], speedup: float = 1.0, memory: float = 1.0
) -> Simplification:
    """Returns a simplification of these parts, whose kept ones bring so much together."""
    whole: dict[str, Value] = {}
    for item in parts:
        whole |= item.changes if item.kept else {}
    winner = {name: value for item in parts for name, value in item.changes.items()}
    return Simplification(
        trial=trial,
        winner=winner,
        parts=tuple(parts),
        whole=part(whole, ["latency_ms"], speedup, memory),
        complete=True,
    )


def result(*members: Member, picked: int = 0, **changes: Any) -> StudyResult:
    """Returns a result whose front has the default and these members."""
    default = member(0, {})
    facts: dict[str, Any] = {
        "members": (default, *members),
        "picked": picked,
        "model": Path("/models/net.onnx"),
        "folder": Path("net.autotune"),
        "limits": {**_STUDY.limits, "max_error": 0.05},
        "left_out": {},
        "never_undisturbed": 0,
        "files": ("best.json", "best.onnx", "best.onnx.data", "front.json"),
        "complete": True,
    }
    return replace(_STUDY, **{**facts, **changes})


def application(**changes: Any) -> ApplicationResult:
    """Returns the result of an application with two sessions, of which one is replaced."""
    chosen = Confirmed(
        label="configuration 1",
        choices={"detector.member": "4", "detector.threads": 1},
        ratio=close(0.62),
        seconds=0.31,
        cpu_s=0.55,
        peak_mib=120.0,
        held_mib=80.0,
        peak_ratio=close(0.4),
    )
    played = Played(
        ratios=(0.6,), seconds=0.3, cpu_s=0.5, peak_mib=121.0, held_mib=80.0, load_s=0.1
    )
    passed = Passed(
        options={}, entries={}, dimensions={}, providers=None, disabled_optimizers=(), foreign=()
    )
    unseen: dict[str, Any] = {"passed": passed, "calls": 0, "shapes": (), "shape_count": 0}
    facts: dict[str, Any] = {
        "recording": "app.rec",
        "folder": "app.tuned",
        "replayed_calls": 100,
        "recorded_s": 0.6,
        "today": Today(seconds=0.5, cpu_s=0.9, peak_mib=300.0, held_mib=250.0),
        "confirmed": (
            chosen,
            replace(chosen, label="ONNX Runtime's defaults", choices=None),
        ),
        "selected": 0,
        "sessions": (
            SessionResult(
                name="detector",
                share=0.8,
                study="",
                changes="int8 static, external data, 1 thread, no spinning",
                reason="",
                **unseen,
            ),
            SessionResult(
                name="classifier",
                share=0.2,
                study="",
                changes="",
                reason="a file is gone",
                **unseen,
            ),
        ),
        "searched": (JointTrial(label="", choices={"detector.threads": 1}, played=played),),
        "notes": (),
        "prefer": "latency",
        "limits": MemoryLimits(),
        "point_count": 100,
        "base_mib": 0.0,
    }
    return ApplicationResult(**{**facts, **changes})
