"""Results of studies that are made up, for tests of what is shown."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.results.parts import Ablation, Part, Step
from autotune.results.result import Member, StudyResult
from autotune.space.candidate import Candidate

_STUDY = StudyResult.read(Path(__file__).parent / "data" / "study")
_BASELINE = replace(
    _STUDY.baseline.evidence,
    latency_ms=10.0,
    baseline_latency_ms=10.0,
    peak_memory_mib=100.0,
    baseline_peak_memory_mib=100.0,
    rounds=3,
)


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
    candidate = Candidate.of(values)
    evidence = replace(
        _BASELINE,
        trial=trial,
        latency_ms=10 / speedup,
        speedup=close(speedup),
        peak_memory_mib=memory_mib,
        error=error,
        significant=speedup > 1.02,
    )
    return Member(
        candidate=candidate.to_json(),
        words=candidate.in_words(),
        evidence=evidence,
        admitted=admitted,
    )


def step(values: Mapping[str, Value], speedup: float = 1.0, memory: float = 1.0) -> Step:
    """Returns a step that brings so much."""
    return Step(
        changes=values,
        words=Candidate.of(values).in_words(),
        speedup=close(speedup),
        memory=close(memory),
    )


def part(
    values: Mapping[str, Value],
    matters_for: Sequence[str] = (),
    speedup: float = 1.0,
    memory: float = 1.0,
    **changes: Any,
) -> Part:
    """Returns a change that was put back alone; it was dropped if it matters for nothing."""
    facts: dict[str, Any] = {
        "changes": values,
        "words": Candidate.of(values).in_words(),
        "kept": bool(matters_for),
        "matters_for": tuple(matters_for),
        "speedup": close(speedup),
        "memory": close(memory),
        "error": 0.0,
        "failure": "",
    }
    return Part(**{**facts, **changes})


def ablation(trial: int, steps: Sequence[Step], parts: Sequence[Part]) -> Ablation:
    """Returns an ablation whose steps multiply to the whole."""
    whole: dict[str, Value] = {}
    speedup = memory = 1.0
    for item in steps:
        whole |= item.changes
        speedup *= item.speedup.value
        memory *= item.memory.value
    dropped = {name: value for p in parts if not p.kept for name, value in p.changes.items()}
    return Ablation(
        trial=trial,
        winner={**whole, **dropped},
        parts=tuple(parts),
        steps=tuple(steps),
        whole=step(whole, speedup, memory),
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
        "kinds": (),
        "left_out": {},
        "never_quiet": 0,
        "files": ("best.json", "best.onnx", "best.onnx.data", "front.json"),
        "complete": True,
    }
    return replace(_STUDY, **{**facts, **changes})
