"""What a finding is, and what it is found in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.errors import typed
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.inspection.growth import Growth
from autotune.inspection.model_report import ModelReport
from autotune.inspection.profile import Profile

HIGH, MEDIUM, LOW = "high", "medium", "low"

# Memory that a machine misses.
_MUCH_MIB = 64.0

SEVERITIES = (HIGH, MEDIUM, LOW)
"""The severities, the worst first."""


@dataclass(frozen=True, kw_only=True)
class InspectedModel:
    """Everything that is known of a model before its findings.

    Attributes:
        profile: The operator profile of the default; None where nothing was measured.
        growth: Memory over several shapes of the default and of its remedies; empty where the
            shapes are fixed, or nothing was measured.
    """

    model: Model
    report: ModelReport
    machine: Hardware
    workload: Workload
    profile: Profile | None = None
    growth: Mapping[str, Growth] = field(default_factory=dict)

    @property
    def file(self) -> str:
        """The model's file as a shell takes it."""
        return typed(self.model.path)

    def study(self, *options: str) -> str:
        """Returns the command of a study of the model with these options."""
        return " ".join(["autotune study", self.file, *options])


@dataclass(frozen=True, kw_only=True)
class RemedyEffect:
    """The effect of a remedy, measured in a duet with the default.

    Attributes:
        latency: Latency over the default's, with its 95 % interval.
        held_mib: Memory that the session holds between runs.
        default_held_mib: The same of the default.
        error: Relative error of the answers, against the unoptimised model's.
        default_error: The same of the default.
    """

    remedy: str
    latency: Interval
    memory: float
    default_memory_mib: float
    held_mib: float
    default_held_mib: float
    error: float
    default_error: float


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that costs time, memory or answers.

    Attributes:
        severity: ``high``, ``medium`` or ``low``.
        summary: What is the matter, in a sentence.
        advice: The option or the command that helps, in a sentence.
        remedy: Parameters of the configuration that shows what the advice is worth; empty where no
            configuration does.
        effect: What the remedy is worth; None where it was not measured.
        failure: Why it was not measured, where it was tried.
    """

    name: str
    severity: str
    summary: str
    evidence: str
    advice: str
    remedy: Mapping[str, Value] = field(default_factory=dict)
    effect: RemedyEffect | None = None
    failure: str = ""


def by_gain(effect: RemedyEffect) -> str:
    """Returns the severity of what costs time or memory."""
    if effect.latency.high < 0.9 or effect.memory < 0.75:
        return HIGH
    if effect.latency.high < 0.98 or effect.memory < 0.95:
        return MEDIUM
    return LOW


def by_held_memory(effect: RemedyEffect) -> str:
    """Returns the severity of what is held between runs, or needed at the peak."""
    saved_mib = effect.default_held_mib - effect.held_mib
    if saved_mib > max(_MUCH_MIB, 0.5 * effect.default_held_mib):
        return HIGH
    return by_gain(effect)


def by_answers(effect: RemedyEffect) -> str:
    """Returns the severity of what makes answers wrong."""
    return HIGH if effect.error < 0.5 * effect.default_error else LOW


@dataclass(frozen=True)
class FindingKind:
    """One kind of finding.

    Attributes:
        about: What it looks for, as part of a list.
        rate: Returns the severity by the measured effect of the remedy.
        measured: Whether it needs a measurement, so that reading alone does not show it.
        optimised: Whether it reads the graph that ONNX Runtime makes of the model.
    """

    name: str
    about: str
    find: Callable[[InspectedModel], Finding | None]
    rate: Callable[[RemedyEffect], str] = by_gain
    measured: bool = False
    optimised: bool = False
