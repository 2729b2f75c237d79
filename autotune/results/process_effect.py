"""What options of a process do to the default and to the selected config, apart from the session.

The baseline of a study has none of them, and no config has them by itself. So their effect is
measured after everything else, side by side, and is no part of what the config gains.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from autotune.deploy.config import Interval
from autotune.deploy.process_options import STEADY_HEAP, ProcessOptions
from autotune.measure.outcome import Effort, Measurer, Outcome
from autotune.results.final_comparison import Finalist, OnStep, Rounds, RoundsPlan
from autotune.results.score import factor_of, finite, is_loss
from autotune.search.context import Context
from autotune.space.configuration import BASELINE

_DEFAULT, _DEFAULT_WITH, _CONFIG, _CONFIG_WITH = range(4)
_ROUNDS = RoundsPlan(most=5)


@dataclass(frozen=True, kw_only=True)
class SessionEffect:
    """What options of the process do to one configuration of the session.

    Attributes:
        speedup: How many times faster it is with them than without.
        memory: Peak memory with them over that without.
        peak_memory_mib: Peak memory with them.
        peak_memory_interval_mib: The same with the range in which that of another process lies.
        without_mib: Peak memory without them, in the same rounds.
        helps: Whether it needs less memory with them by more than the luck of the heap, and is not
            slower by more than the noise.
    """

    speedup: Interval
    memory: Interval
    peak_memory_mib: float
    peak_memory_interval_mib: Interval | None
    without_mib: float
    helps: bool


@dataclass(frozen=True, kw_only=True)
class ProcessEffect:
    """What options of the process do.

    Attributes:
        default: What they do to the default.
        config: What they do to the selected config; None where that is the default.
    """

    options: ProcessOptions
    trial: int
    default: SessionEffect
    config: SessionEffect | None

    def options_for(self, trial: int) -> ProcessOptions | None:
        """Returns what the config of a trial offers; None if nothing was measured to help it."""
        selected = self.config or self.default
        return self.options if trial == self.trial and selected.helps else None


def process_effect(
    setting: Context, measurer: Measurer, picked: Finalist, on_step: OnStep
) -> ProcessEffect | None:
    """Returns what fixed thresholds of the heap do; None where a process fails with them.

    Raises:
        CannotMeasureError: the default fails.
    """
    configuration = picked.trial.configuration
    measured = {_DEFAULT: BASELINE, _CONFIG: configuration}
    if configuration == BASELINE:
        del measured[_CONFIG]
    entrants: dict[int, Callable[[Effort], Outcome]] = {}
    for number, each in measured.items():
        entrants[number] = partial(measurer.measure, each)
        entrants[number + 1] = partial(measurer.measure, each, process=STEADY_HEAP)
    rounds = Rounds(
        entrants,
        measurer.renew,
        setting.objectives,
        seed=setting.seed,
        on_step=on_step,
        plan=_ROUNDS,
    )
    if rounds.play().keys() != entrants.keys():
        return None
    return ProcessEffect(
        options=STEADY_HEAP,
        trial=picked.trial.number,
        default=_effect(rounds, _DEFAULT_WITH, _DEFAULT),
        config=None if configuration == BASELINE else _effect(rounds, _CONFIG_WITH, _CONFIG),
    )


def _effect(rounds: Rounds, with_options: int, without: int) -> SessionEffect:
    score = rounds.beside(with_options, without)
    return SessionEffect(
        speedup=finite(score.speedup),
        memory=factor_of(score.gains["peak_memory_mib"]),
        peak_memory_mib=score.peak_memory_mib,
        peak_memory_interval_mib=score.peak_memory_interval,
        without_mib=rounds.beside(without, without).peak_memory_mib,
        helps=score.leaner and not is_loss(score.speedup, score.noise_floor),
    )
