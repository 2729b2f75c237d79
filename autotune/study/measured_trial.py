"""One trial of a study: what Optuna's loop calls to measure a configuration."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from autotune.errors import StorageError
from autotune.measure.outcome import (
    NO_RUNTIME,
    SEARCH,
    Failure,
    Measurement,
    Measurer,
    Outcome,
    never_dominated,
)
from autotune.search.context import Context
from autotune.search.objective import complete, effort_for, is_dominated, values
from autotune.search.optuna_trials import (
    DUPLICATE_OF,
    attributes_of,
    enqueue,
    outcome_of,
    parameter_names,
    suggest,
)
from autotune.search.record import WORKER, Record
from autotune.space.configuration import BASELINE, Configuration
from autotune.storage.database import Clock
from autotune.study.progress import OnProgress, Progress

# After so many trials in a row on a noisy machine, trials hardly wait for a quiet one.
_NOISY_TRIALS = 5
# How often, and how many times, a worker looks whether another one gives way.
_LOOK_S = 0.25
_MOST_LOOKS = 40
# Room for a trial with its raw run times, and for what the end of a study writes.
_LEAST_FREE_BYTES = 8 << 20


@dataclass
class MeasuredTrial:
    """Optuna's objective function: suggests, measures and records.

    Attributes:
        names: The parameters' names in Optuna's study.
        worker: The name of this worker in a shared study; empty where it is the only one.
        budget: How many trials the study may have in all.
        repeated: How many trials in a row needed no measurement.
        was_released: Whether another worker took this one for dead, and ended its trial.
    """

    study: optuna.Study
    ctx: Context
    record: Record
    measurer: Measurer
    report: OnProgress
    worker: str = ""
    clock: Clock = field(default_factory=Clock)
    budget: int = field(default=0, init=False)
    repeated: int = field(default=0, init=False)
    was_released: bool = field(default=False, init=False)
    names: Mapping[str, str] = field(init=False)
    _noisy: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.names = parameter_names(self.study, self.ctx.space)

    def __call__(self, trial: optuna.Trial) -> list[float]:
        """Returns the objectives of a trial's configuration.

        Raises:
            optuna.TrialPruned: it fails, or needs no measurement; attributes say why.
            StorageError: the disk is nearly full.
        """
        configuration = suggest(trial, self.ctx.space, self.names)
        self.record.read(self.study, trial.number)
        self._prune_needless(trial, configuration)
        # a worker that died may have measured it
        outcome = outcome_of(trial.user_attrs)
        if outcome is None:
            self._check_room()
            outcome = self._measure(configuration)
            self._keep(trial, outcome)
        self.record.own.add(trial.number)
        self._note_noise(outcome)
        self._note_runtime(configuration, outcome)
        if self.was_released:
            raise optuna.TrialPruned("another worker has ended this trial")
        if isinstance(outcome, Failure):
            # pruned, not failed: samplers learn nothing from failed trials and propose them again
            raise optuna.TrialPruned(outcome.message)
        return list(values(outcome, self.ctx.objectives).values())

    def _prune_needless(self, trial: optuna.Trial, configuration: Configuration) -> None:
        """Prunes a trial whose configuration is measured, or equals another one."""
        if configuration.runtime in self.record.gone:
            raise optuna.TrialPruned(f"{configuration.runtime} is no longer there")
        refusal = self.record.refusal(configuration)
        if refusal is not None and configuration not in self.record.measured:
            self.repeated += 1
            raise optuna.TrialPruned(refusal.message)
        earlier = [number for number in self.record.claimed if number < trial.number]
        if len(self.record.trials) + len(earlier) >= self.budget:
            raise optuna.TrialPruned("the trials of other workers spend the budget")
        if configuration in self.record.measured or self._is_of_another(trial, configuration):
            same = configuration
        else:
            same = self.measurer.canonical(configuration)
            if same == configuration:
                self.repeated = 0
                return
        self.repeated += 1
        trial.set_user_attr(DUPLICATE_OF, same.to_json())
        if same != configuration and same not in self.record:
            enqueue(self.study, same, self.ctx.space, self.names)
        raise optuna.TrialPruned(f"it equals {same.in_words()}")

    def _is_of_another(self, trial: optuna.Trial, configuration: Configuration) -> bool:
        """Returns whether another worker measures a configuration; else it is this worker's.

        Where two begin it at the same moment, the later trial gives way, unless it had begun before
        the earlier one could be seen: that one waits until it knows.
        """
        for _ in range(_MOST_LOOKS):
            numbers = [n for n, claimed in self.record.claimed.items() if claimed == configuration]
            if not numbers:
                break
            if min(numbers) < trial.number or not self.record.begun.isdisjoint(numbers):
                return True
            self.clock.sleep(_LOOK_S)
            self.record.read(self.study, trial.number)
        if self.worker:
            trial.set_user_attr(WORKER, self.worker)
        return False

    def _measure(self, configuration: Configuration) -> Outcome:
        """Measures; a configuration that the present front clearly dominates is stopped early."""
        rivals = [values(m, self.ctx.objectives) for t in self.record.front if (m := t.measurement)]

        def dominated(measurement: Measurement) -> bool:
            fidelity = measurement.fidelity
            if not self.ctx.limits.admit_answers(fidelity.error, fidelity.drop):
                return True  # timed only to say what a looser limit would allow
            best_ms = measurement.latency_ms * measurement.ratio.low / measurement.ratio.value
            if self.ctx.limits.latency_excess(replace(measurement, latency_ms=best_ms)) > 0:
                return True
            return is_dominated(measurement, rivals, self.ctx.objectives)

        # a percentile needs all of its runs
        needs_all = any(objective.fewest_runs for objective in self.ctx.objectives)
        never = configuration == BASELINE or needs_all
        effort = effort_for(SEARCH, self.ctx.objectives, self.ctx.limits.fewest_runs)
        outcome = self.measurer.measure(
            configuration, effort, never_dominated if never else dominated
        )
        return complete(outcome, self.ctx.objectives)

    def _keep(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Records an outcome; it comes last, so that a trial with one has its constraints too."""
        constraints = self.ctx.limits.violations(outcome)
        attributes = attributes_of(outcome)
        try:
            for name, violation in constraints.items():
                trial.set_constraint(name, violation)
            for name, attribute in attributes.items():
                trial.set_user_attr(name, attribute)
        except UpdateFinishedTrialError:  # it was suspended for a while, or cut off
            self.was_released = True
            numbers = None
            if isinstance(outcome, Measurement):
                numbers = list(values(outcome, self.ctx.objectives).values())
            self.study.add_trial(
                optuna.trial.create_trial(
                    state=TrialState.PRUNED if numbers is None else TrialState.COMPLETE,
                    values=numbers,
                    params=trial.params,
                    distributions=trial.distributions,
                    user_attrs={**trial.user_attrs, **attributes},
                    constraints=constraints,
                )
            )

    def _check_room(self) -> None:
        """Checks that the disk has room for the next measurement.

        Raises:
            StorageError: the disk is nearly full.
        """
        free = shutil.disk_usage(self.ctx.folder).free
        if free < _LEAST_FREE_BYTES:
            raise StorageError(
                f"the disk of {self.ctx.folder} is full ({free >> 10} KiB left). What was "
                "measured is kept; make room and type the same command again to go on."
            )

    def _note_noise(self, outcome: Outcome) -> None:
        """Says that the machine is noisy, once it was for several trials in a row."""
        if isinstance(outcome, Measurement) and not outcome.stopped_early:
            self._noisy = 0 if outcome.is_undisturbed else self._noisy + 1
            if self._noisy == _NOISY_TRIALS:
                note = (
                    f"The machine was noisy for {_NOISY_TRIALS} trials in a row, so trials do not "
                    "wait for a quiet one now. The final comparison decides."
                )
                self.report(Progress(stage="search", note=note))

    def _note_runtime(self, configuration: Configuration, outcome: Outcome) -> None:
        """Goes on without an ONNX Runtime that is no longer there, and says so."""
        if isinstance(outcome, Failure) and outcome.kind == NO_RUNTIME:
            runtime = configuration.runtime
            self.record.gone.add(runtime)
            note = (
                f"{runtime} is no longer there, so the search goes on without it. Type "
                f"autotune runtimes add {runtime} and the same command to measure the rest of it."
            )
            self.report(Progress(stage="search", note=note))
