"""The search: Optuna's own loop.

Other workers may take part in the same study, on machines of the same kind: the budget is that of
all together, and a worker that finds no trials left waits for running ones to finish.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import optuna
import threadpoolctl
from optuna.trial import FrozenTrial

from autotune.errors import CannotMeasureError
from autotune.measure.outcome import Failure, Measurer
from autotune.search.optuna_trials import enqueue
from autotune.search.record import Record
from autotune.search.sampler import EffectsSampler
from autotune.search.trial import Trial
from autotune.space.configuration import Configuration
from autotune.storage.database import Clock
from autotune.study.measured_trial import MeasuredTrial
from autotune.study.progress import OnProgress, Progress
from autotune.study.workers import Workers

# A sampler that proposes what is measured so often in a row has nothing more to propose.
_MOST_REPEATED = 100
# Optuna begins no trial once its time is up, and the first one is the default.
_SHORTEST_S = 1e-3


@dataclass
class Search:
    """A search, as far as this worker takes part in it.

    Attributes:
        start: What is measured before the sampler is asked, the default first.
        effects: The sampler, where it is the one that sees when nothing is worth a trial.
        record: What the study holds.
        measurer: What measures a configuration.
        report: What is called with the state of the search.
        ended: Why the search ended before its budget was spent; empty if it did not.
    """

    study: optuna.Study
    objective: MeasuredTrial
    start: Sequence[Configuration]
    clock: Clock = field(default_factory=Clock)
    effects: EffectsSampler | None = None
    record: Record = field(init=False)
    measurer: Measurer = field(init=False)
    report: OnProgress = field(init=False)
    ended: str = field(default="", init=False)
    _workers: Workers = field(init=False)
    _timeout_s: float | None = field(default=None, init=False)
    _began_s: float = field(default=0.0, init=False)
    _before: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        objective = self.objective
        self.record, self.measurer = objective.record, objective.measurer
        self.report = objective.report
        self._workers = Workers(self.study, self.record, self.clock)

    @property
    def trials(self) -> Sequence[Trial]:
        """The measured trials, in order."""
        return self.record.trials

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return self.record.baseline

    def run(self, budget: int, timeout_s: float | None) -> None:
        """Measures until the study has `budget` trials, time is up or nothing is left to measure.

        Raises:
            CannotMeasureError: the default fails.
            StorageError: the disk is full, or the database is away for long.
        """
        self.objective.budget, self._timeout_s = budget, timeout_s
        self._enqueue_start()
        self._began_s, self._before = self.clock.monotonic(), len(self.trials)
        self._progress(self.study)
        # the models are small: more threads take longer, and spin beside the measured processes
        with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
            if not self._workers.have_spent(budget) and not self._is_ended():
                self._optimize(time.monotonic())
        self._workers.await_running()
        self._progress(self.study)
        if self.baseline is None or self.baseline.measurement is None:
            failure = self.baseline.outcome if self.baseline else None
            reason = failure.message if isinstance(failure, Failure) else "no trial"
            raise CannotMeasureError(f"the default itself could not be measured: {reason}")

    def _enqueue_start(self) -> None:
        """Releases what an earlier run left open, and enqueues what is measured first."""
        objective = self.objective
        if not objective.worker:
            self._workers.release_running()
        self.record.read(self.study)
        missing = [c for c in dict.fromkeys(self.start) if c not in self.record]
        room = objective.budget - len(self.trials) - len(self.record.waiting)
        for configuration in missing[: max(0, room)]:
            enqueue(self.study, configuration, objective.ctx.space, objective.names)

    def _optimize(self, began_s: float) -> None:
        """Runs Optuna's loop; goes on where another worker took this one for dead."""
        while True:
            left_s = None
            if self._timeout_s is not None:
                left_s = max(_SHORTEST_S, self._timeout_s - (time.monotonic() - began_s))
            try:
                self.study.optimize(
                    self.objective,
                    timeout=left_s,
                    callbacks=[self._keep_to_budget, self._stop_early, self._progress],
                )
            except ValueError:  # so Optuna says that the trial has been ended already
                if not self.objective.was_released:
                    raise
                self.objective.was_released = False
            else:
                return

    def _keep_to_budget(self, study: optuna.Study, _: FrozenTrial) -> None:
        """Stops Optuna's loop once all workers together have spent the budget."""
        is_late = self._timeout_s is not None and self._spent_s >= self._timeout_s
        if self._workers.have_spent(self.objective.budget) or is_late:
            study.stop()

    def _stop_early(self, study: optuna.Study, _: FrozenTrial) -> None:
        """Stops Optuna's loop where nothing is left to measure, or worth it."""
        if len(self.trials) < self.objective.budget and self._is_ended():
            study.stop()

    def _is_ended(self) -> bool:
        self.ended = self._reason_to_end()
        # what other workers find may change that
        while self.ended and self.record.claimed:
            self._workers.poll()
            self.ended = self._reason_to_end()
        return bool(self.ended)

    def _reason_to_end(self) -> str:
        if self.objective.repeated >= _MOST_REPEATED:
            return f"the sampler proposed what is measured {_MOST_REPEATED} times in a row"
        return "" if self.effects is None else self.effects.reason_to_end(self.study)

    def _progress(self, _: optuna.Study, __: FrozenTrial | None = None) -> None:
        self.report(
            Progress(
                stage="search",
                done=len(self.trials),
                total=self.objective.budget,
                best=self.record.best,
                baseline=self.baseline,
                remaining_s=self._left_s(),
                trials=tuple(self.trials),
            )
        )

    @property
    def _spent_s(self) -> float:
        return self.clock.monotonic() - self._began_s

    def _left_s(self) -> float | None:
        """Returns how long the search will go on; None if that is unknown."""
        spent_s, done = self._spent_s, len(self.trials)
        fresh, left = done - self._before, self.objective.budget - done
        by_count = spent_s / fresh * left if fresh else None
        by_time = None if self._timeout_s is None else max(0.0, self._timeout_s - spent_s)
        return min((s for s in (by_count, by_time) if s is not None), default=None)
