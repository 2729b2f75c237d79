"""What each change of an emitted config is worth, as ``front.json`` keeps it."""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.deploy.config import Interval
from autotune.deploy.options import Value

ANSWERS = "answers"
"""In :attr:`Part.matters_for`: without the change the answers are worse."""

RUNNING = "running"
"""In :attr:`Part.matters_for`: without the change the config fails."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """A change of the winner that was put back alone, and what that did.

    Attributes:
        changes: The parameters that were put back, with the values that the winner has.
        words: The same in words.
        kept: Whether the emitted config has the change.
        matters_for: What is worse without it by more than the noise: names of objectives,
            :data:`ANSWERS` or :data:`RUNNING`. Empty where nothing is.
        speedup: How many times faster the winner is with the change than without it; None where it
            fails without it.
        memory: Peak memory with the change over that without it; None in the same way.
        error: Fidelity error without the change; None in the same way.
        failure: Why the winner fails without the change; empty where it does not.
    """

    changes: Mapping[str, Value]
    words: str
    kept: bool
    matters_for: tuple[str, ...]
    speedup: Interval | None
    memory: Interval | None
    error: float | None
    failure: str


@dataclass(frozen=True, kw_only=True)
class Step:
    """Changes of the emitted config, added to those of the steps before.

    Attributes:
        changes: The parameters with their values.
        words: The same in words.
        speedup: How many times faster the config is than before the step, side by side.
        memory: Peak memory over that before the step.
    """

    changes: Mapping[str, Value]
    words: str
    speedup: Interval
    memory: Interval


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """Which changes of the winner matter, and what those of the emitted config bring.

    Attributes:
        trial: Number of the emitted trial.
        winner: The winner of the final comparison, before changes were dropped.
        parts: Every change of the winner, put back alone.
        steps: The changes of the emitted config from the default on, the strongest first; what they
            bring multiplies to `whole`.
        whole: All of them beside the default, in the same rounds; None where nothing was measured.
        complete: False where the study was cut short before all changes were put back.
    """

    trial: int
    winner: Mapping[str, Value]
    parts: tuple[Part, ...]
    steps: tuple[Step, ...]
    whole: Step | None
    complete: bool

    @property
    def dropped(self) -> tuple[Part, ...]:
        """The changes that the emitted config does without."""
        return tuple(part for part in self.parts if not part.kept)
