"""What a study holds so far, as the search reads it: trials, duplicates, what others measure."""

import copy
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace

import optuna
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from autotune.measure.outcome import Failure
from autotune.search import pareto
from autotune.search.objective import Objective, Values, values
from autotune.search.optuna_trials import DONE, configuration_of, duplicate_in, trial_of
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration

WORKER = "worker"
"""User attribute of a trial in a shared study: which worker measures it."""

# A configuration that three workers died of is not measured a fourth time.
_MOST_RETRIES = 2
# Between its beginning and its first parameter lies a moment, and no heartbeat. A storage without
# heartbeats never says that a worker is dead.
_LOST_BEFORE_PARAMETERS_S = 60.0
_LOST_S = 3600.0


def retry() -> RetryHeartbeatStaleTrialCallback:
    """Returns what enqueues the configuration of a trial whose worker died."""
    return RetryHeartbeatStaleTrialCallback(max_retry=_MOST_RETRIES)


class Record:
    """The trials of a study.

    Args:
        limits: The limits; they decide which trials count, as :meth:`Limits.count` says.
        clock_s: Any clock, in s.

    Attributes:
        trials: The measured trials of all workers that count, in order, one for each configuration.
        measured: The same by their configurations.
        equal: Duplicates: configurations with the other one that opens the same session.
        waiting: The configurations that are enqueued.
        claimed: The configurations that other workers measure now, by the numbers of their trials;
            None where one is still being chosen.
        begun: The numbers of those of them that have begun to measure.
        exhausted: Configurations that too many workers died of.
        lost: Running trials that nobody measures any more.
        gone: The runtimes that are no longer there.
        unfit: Values with which no file of the model can be made, each with the reason.
        own: The numbers of the trials that this process measured.
    """

    def __init__(
        self,
        objectives: Sequence[Objective],
        limits: Limits,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.trials: list[Trial] = []
        self.measured: dict[Configuration, Trial] = {}
        self.equal: dict[Configuration, Configuration] = {}
        self.waiting: set[Configuration] = set()
        self.claimed: dict[int, Configuration | None] = {}
        self.begun: set[int] = set()
        self.exhausted: set[Configuration] = set()
        self.lost: list[FrozenTrial] = []
        self.gone: set[str] = set()
        self.unfit: list[Failure] = []
        self.own: set[int] = set()
        self._objectives = objectives
        self._limits = limits
        self._clock_s = clock_s
        self._seen_s: dict[int, float] = {}
        self._read: set[int] = set()
        self._spent_s: dict[str, float] = defaultdict(float)
        self._repeated_graphs: set[Configuration] = set()

    def read(self, study: optuna.Study, running: int | None = None) -> None:
        """Reads what this worker and others have added.

        Args:
            running: The number of this worker's own running trial.
        """
        self.waiting, self.claimed, self.lost = set(), {}, []
        self.begun = set()
        for frozen in study.get_trials(deepcopy=False):
            if frozen.state in DONE:
                if frozen.number not in self._read:
                    self._add(frozen)
            elif frozen.number != running:
                self._sort_in(frozen)
        self.trials.sort(key=lambda trial: trial.number)

    def __contains__(self, configuration: object) -> bool:
        """Returns whether a configuration needs no further measurement."""
        assert isinstance(configuration, Configuration)
        return (
            configuration in self.measured
            or configuration in self.equal
            or configuration in self.waiting
            or configuration in self.exhausted
            or configuration in self.claimed.values()
            or (bool(self.gone) and configuration.runtime in self.gone)
            or self.refusal(configuration) is not None
            or (bool(self._repeated_graphs) and configuration.graph in self._repeated_graphs)
        )

    def refusal(self, configuration: Configuration) -> Failure | None:
        """Returns the failure that says why no file can be made for a configuration."""
        values = configuration.to_json()
        return next(
            (
                failure
                for failure in self.unfit
                if all(values.get(name) in refused for name, refused in failure.unfit.items())
            ),
            None,
        )

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return self.measured.get(BASELINE)

    @property
    def spent_s(self) -> float:
        """How long the measurements took, in s; with several workers those of the busiest one."""
        return max(self._spent_s.values(), default=0.0)

    @property
    def front(self) -> list[Trial]:
        """The trials within the limits that no other dominates."""
        return pareto.front(self._admitted(), self._values, self._objectives)

    @property
    def best(self) -> Trial | None:
        """The trial within the limits that is best in the first objective."""
        first = self._objectives[0]
        return min(
            self._admitted(),
            key=lambda trial: (first.cost(self._values(trial)[first.name]), trial.number),
            default=None,
        )

    def _admitted(self) -> list[Trial]:
        return [
            t for t in self.trials if (m := t.measurement) and self._limits.admit_measurement(m)
        ]

    def _values(self, trial: Trial) -> Values:
        assert trial.measurement is not None
        return values(trial.measurement, self._objectives)

    def _add(self, frozen: FrozenTrial) -> None:
        self._read.add(frozen.number)
        if (other := duplicate_in(frozen)) is not None:
            configuration = configuration_of(frozen)
            if configuration is not None and configuration != other:
                self.equal[configuration] = other
                if configuration.graph != other.graph:
                    # graph parameters that equal others do so in every session
                    self._repeated_graphs.add(configuration.graph)
            return
        trial = trial_of(frozen)
        if trial is None:
            return
        if isinstance(trial.outcome, Failure) and trial.outcome.unfit:
            self._learn(trial.outcome)
        if (m := trial.measurement) is not None:
            self._spent_s[str(frozen.user_attrs.get(WORKER))] += sum(m.spent_s.values())
        # of two workers that measured one configuration the first counts; what this process has
        # measured is not measured again, even where the next run measures it once more
        counts = trial.number in self.own or self._limits.count(trial)
        if counts and trial.configuration not in self.measured:
            self.trials.append(trial)
            self.measured[trial.configuration] = trial

    def _learn(self, failure: Failure) -> None:
        """Keeps a refusal; what is refused twice in the same words is so whatever comes before."""
        same = [earlier for earlier in self.unfit if earlier.message == failure.message]
        self.unfit.append(failure)
        for earlier in same:
            common = dict(failure.unfit.items() & earlier.unfit.items())
            if common:
                self.unfit.append(replace(failure, unfit=common))

    def _sort_in(self, frozen: FrozenTrial) -> None:
        configuration = configuration_of(frozen)
        if frozen.state == TrialState.RUNNING:
            if self._is_lost(frozen):
                self.lost.append(frozen)
            else:
                self.claimed[frozen.number] = configuration
                if WORKER in frozen.user_attrs:
                    self.begun.add(frozen.number)
        elif configuration is None:
            return
        elif frozen.state == TrialState.WAITING:
            self.waiting.add(configuration)
        elif len(RetryHeartbeatStaleTrialCallback.retry_history(frozen)) >= _MOST_RETRIES:
            self.exhausted.add(configuration)

    def _is_lost(self, frozen: FrozenTrial) -> bool:
        """Returns whether a running trial has stood still for longer than any does."""
        now_s = self._clock_s()
        seen_s = now_s - self._seen_s.setdefault(frozen.number, now_s)
        return seen_s > (_LOST_S if frozen.params else _LOST_BEFORE_PARAMETERS_S)


def release(study: optuna.Study, trials: Sequence[FrozenTrial]) -> None:
    """Ends running trials that nobody measures any more, and enqueues their configurations."""
    for frozen in trials:
        study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
        retry()(study, copy.deepcopy(frozen))  # it appends to a list of Optuna's cache
