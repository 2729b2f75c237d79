"""The record of a study: its trials in one append-only list, duplicates among them.

Optuna's study keeps it. Before a trial reaches the database it is on this disk (the spool), so
nothing that was measured is lost. Of workers that share a study each claims a configuration before
it measures it (:mod:`autotune.storage.claims`).
"""

import contextlib
import functools
import secrets
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import RandomSampler
from optuna.storages._heartbeat import BaseHeartbeat, BaseHeartbeatThread, get_heartbeat_thread
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.records import Json
from autotune.measure.outcome import Measurement, Outcome
from autotune.search.context import Context
from autotune.search.objective import Objective, values
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space
from autotune.storage.claims import FINAL_COMPARISON, Claim, Claims
from autotune.storage.database import Place
from autotune.storage.identity import identity_of, open_study
from autotune.storage.retry import Clock, until_available
from autotune.storage.spool import Spool
from autotune.storage.trials import (
    DONE,
    DUPLICATE_OF,
    attributes_of,
    configuration_of,
    describe,
    distribution_of,
    duplicate_in,
    parameters_of,
    read_trials,
    trial_in,
    trial_of,
)

_WORKER, _RESULT = "worker", "result"

P = ParamSpec("P")
T = TypeVar("T")


def _reliably(
    method: Callable[Concatenate["Store", P], T],
) -> Callable[Concatenate["Store", P], T]:
    """Lets a method begin anew where a server is away; a full disk is not waited for."""

    @functools.wraps(method)
    def run(store: "Store", /, *arguments: P.args, **named: P.kwargs) -> T:
        return store.reliably(lambda: method(store, *arguments, **named))

    return run


@dataclass
class Store:
    """The trials of a study, and the configurations that other workers measure.

    Attributes:
        limits: The limits; they decide which trials count, as :meth:`Limits.count` says.
        spool: Keeps measurements until the storage has them; None in a study in memory.
        claims: The claims of a study that several workers share; None where this is the only one.
        note: Called with a sentence when the database is away, and when it is back.
        trials: The measured trials of all workers that count, in order, one for each configuration.
        measured: The same by their configurations.
        equal: Duplicates: configurations with the other one that opens the same session.
        claimed: The configurations that other workers measure now.
        released: The configurations that workers were measuring when they died.
        exhausted: Those of them that too many workers died of; nobody measures them again.
    """

    study: optuna.Study
    space: Space
    objectives: Sequence[Objective]
    limits: Limits
    _: KW_ONLY
    spool: Spool | None = None
    claims: Claims | None = None
    worker: str = ""
    clock: Clock = field(default_factory=Clock)
    note: Callable[[str], None] = lambda _: None
    trials: list[Trial] = field(default_factory=list, init=False)
    measured: dict[Configuration, Trial] = field(default_factory=dict, init=False)
    equal: dict[Configuration, Configuration] = field(default_factory=dict, init=False)
    claimed: frozenset[Configuration] = field(default=frozenset(), init=False)
    released: tuple[Configuration, ...] = field(default=(), init=False)
    exhausted: frozenset[Configuration] = field(default=frozenset(), init=False)

    def __post_init__(self) -> None:
        self.study.sampler = RandomSampler()  # it is never asked: trials begin with parameters
        self._read: set[int] = set()
        self._failed: set[int] = set()
        self._spent_s: dict[str, float] = defaultdict(float)
        self._is_open = False
        self._running: optuna.Trial | None = None
        self._heartbeat: BaseHeartbeatThread | None = None

    @classmethod
    def open(
        cls,
        database: optuna.storages.RDBStorage,
        place: Place,
        ctx: Context,
        name: str | None,
        clock: Clock,
        note: Callable[[str], None],
    ) -> "Store":
        """Returns the record of a study with all its trials; makes it if there is none.

        Args:
            name: The name that the user gives the study; one is made if None.

        Raises:
            StudyError: the folder's own database belongs to another model, or the study of that
                name has another identity.
        """
        study = open_study(
            database, place, ctx.folder, ctx.model.path, identity_of(ctx), ctx.facts, name
        )
        number = database.get_study_id_from_name(study.study_name)
        store = cls(
            study,
            ctx.space,
            ctx.objectives,
            ctx.limits,
            spool=Spool(ctx.folder, study.study_name),
            claims=Claims(database.engine, number) if place.is_shared else None,
            worker=secrets.token_hex(8) if place.is_shared else "",
            clock=clock,
            note=note,
        )
        store.refresh()
        return store

    @property
    def is_shared(self) -> bool:
        """Whether other workers may take part."""
        return self.claims is not None

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return self.measured.get(BASELINE)

    @property
    def count(self) -> int:
        """How many trials Optuna's study has: duplicates and those without an end too."""
        return len(self.study.get_trials(deepcopy=False))

    @property
    def spent_s(self) -> float:
        """How long the measurements took, in s; with several workers those of the busiest one."""
        return max(self._spent_s.values(), default=0.0)

    def has_tried_all(self, ctx: Context) -> bool:
        """Returns whether the user's configurations were measured, and each runtime in some one."""
        known = {*self.measured, *self.equal}
        runtimes = {configuration.runtime for configuration in known}
        return known.issuperset(ctx.first) and runtimes.issuperset(ctx.runtimes)

    def refresh(self) -> None:
        """Reads what this worker and others have added."""
        self.reliably(self._refresh)

    @_reliably
    def recover(self) -> None:
        """Adds what was measured and never reached the storage, and ends the trials it left open.

        An earlier run began them before it was killed. They are ended last: a configuration is
        measured again once its trial has failed.
        """
        self._refresh()
        stored = [(trial.configuration, trial.outcome) for trial in read_trials(self.study)]
        for trial in filter(None, map(trial_in, self.spool.entries() if self.spool else ())):
            # a failure that does not count is there already; what came of measuring it again may
            # not be
            if (trial.configuration, trial.outcome) not in stored:
                self._insert(trial)
        # of a shared study the missing heartbeat ends them
        running = () if self.is_shared else (TrialState.RUNNING,)
        for frozen in self.study.get_trials(deepcopy=False, states=running):
            self.study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
        self._refresh()

    @_reliably
    def begin(self, configuration: Configuration, budget: int) -> bool:
        """Begins the trial of a configuration; returns False where it is another worker's.

        Args:
            budget: How many trials the study may have in all.
        """
        self.abandon()
        trial = self._open(parameters_of(configuration, self.space))
        if self.claims is None:
            return True
        if self.claims.take(configuration.key, trial.number, self._is_free, budget):
            return True
        self.abandon()
        return False

    def append(self, configuration: Configuration, outcome: Outcome) -> None:
        """Ends the trial that was begun, with its outcome: on this disk first, then in the storage.

        Raises:
            StorageError: the disk is full.
        """
        assert self._running is not None
        measured = Trial(number=self._running.number, configuration=configuration, outcome=outcome)
        if self.spool is not None:
            self.spool.keep(describe(measured))
        self.reliably(lambda: self._end(measured))

    @_reliably
    def append_duplicate(self, configuration: Configuration, other: Configuration) -> None:
        """Ends the trial that was begun: its configuration opens the same session as another."""
        trial = self._running
        assert trial is not None
        with contextlib.suppress(UpdateFinishedTrialError):
            trial.set_user_attr(DUPLICATE_OF, other.to_json())
            self.study.tell(trial, state=TrialState.PRUNED, skip_if_finished=True)
        if self.claims is not None:
            self.claims.remove(configuration.key)
        self._refresh()
        self.equal[configuration] = other
        self._close()

    def abandon(self) -> None:
        """Ends the trial that was begun without an outcome, where there is one."""
        if self._is_open:
            # by its worker, not by its number: the reply to its beginning may have been lost
            for frozen in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                if frozen.user_attrs.get(_WORKER) == self.worker:
                    self.study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)
        self._close()

    @_reliably
    def begin_final_comparison(self) -> bool:
        """Claims the final comparison of a shared study; returns whether no other worker makes it.

        A trial without parameters stands for it, so that the claim of a worker that dies is
        released; :meth:`abandon` ends it.
        """
        assert self.claims is not None
        self.abandon()
        self._refresh()
        trial = self._open({})
        if self.claims.take(FINAL_COMPARISON, trial.number, self._is_free):
            return True
        self.abandon()
        return False

    @_reliably
    def publish(self, result: Json) -> None:
        """Keeps the result of the final comparison for the other workers."""
        self.study.set_user_attr(_RESULT, result)

    @_reliably
    def published(self) -> object:
        """Returns the result of the final comparison that a worker kept; None without one."""
        return self.study.user_attrs.get(_RESULT)

    def clear_spool(self) -> None:
        """Removes the spool: the storage has everything."""
        if self.spool is not None:
            self.spool.clear()

    def check_room(self) -> None:
        """Checks that the disk has room for the next measurement.

        Raises:
            StorageError: the disk is nearly full.
        """
        if self.spool is not None:
            self.spool.check_room()

    def reliably(self, act: Callable[[], T]) -> T:
        """Returns what `act` returns, which is called again where a server is away."""
        return until_available(act, self.clock, self.note) if self.is_shared else act()

    def _refresh(self) -> None:
        if self.is_shared:
            optuna.storages.fail_stale_trials(self.study)
        running: dict[int, FrozenTrial] = {}
        for frozen in self.study.get_trials(deepcopy=False):
            if frozen.state in DONE and frozen.number not in self._read:
                self._add(frozen)
            elif frozen.state in (TrialState.FAIL, TrialState.RUNNING):
                running[frozen.number] = frozen
        self.trials.sort(key=lambda trial: trial.number)
        self._failed = {n for n, frozen in running.items() if frozen.state == TrialState.FAIL}
        self._refresh_claims(running)

    def _add(self, frozen: FrozenTrial) -> None:
        self._read.add(frozen.number)
        if (other := duplicate_in(frozen)) is not None:
            configuration = configuration_of(frozen)
            if configuration is not None and configuration != other:
                self.equal[configuration] = other
            return
        trial = trial_of(frozen)
        if trial is None:
            return
        if (m := trial.measurement) is not None:
            self._spent_s[str(frozen.user_attrs.get(_WORKER))] += sum(m.spent_s.values())
        # a worker that seemed dead may have ended a trial that another one had taken over
        if self.limits.count(trial) and trial.configuration not in self.measured:
            self.trials.append(trial)
            self.measured[trial.configuration] = trial

    def _refresh_claims(self, running: Mapping[int, FrozenTrial]) -> None:
        """Sorts the claims of other workers into those that hold and those of dead workers."""
        claimed: list[Configuration] = []
        released: list[Configuration] = []
        exhausted: list[Configuration] = []
        for claim in self.claims.all() if self.claims else ():
            frozen = running.get(claim.trial)
            if frozen is None or claim.configuration == FINAL_COMPARISON:
                continue
            configuration = configuration_of(frozen)
            if configuration is None or configuration in self.measured:
                continue
            if frozen.state == TrialState.FAIL:
                (released if claim.may_be_tried_again else exhausted).append(configuration)
            elif self._running is None or frozen.number != self._running.number:
                claimed.append(configuration)
        self.claimed, self.released = frozenset(claimed), tuple(released)
        self.exhausted = frozenset(exhausted)

    def _open(self, parameters: Mapping[str, Any]) -> optuna.Trial:
        """Returns a new running trial; in a shared study its heart beats from the beginning."""
        self._is_open = True
        storage = self.study._storage  # noqa: SLF001  # Optuna names it nowhere else
        trial_id = storage.create_new_trial(
            self.study._study_id,  # noqa: SLF001
            optuna.trial.create_trial(
                state=TrialState.RUNNING,
                params=dict(parameters),
                distributions={name: distribution_of(name) for name in parameters},
                user_attrs={_WORKER: self.worker},
            ),
        )
        trial = self._running = optuna.Trial(self.study, trial_id)
        if self.is_shared and isinstance(storage, BaseHeartbeat):
            # a trial that never had a heartbeat is never taken for dead
            storage.record_heartbeat(trial_id)
            self._heartbeat = get_heartbeat_thread(trial_id, storage)
            self._heartbeat.start()
        return trial

    def _close(self) -> None:
        self._is_open, self._running = False, None
        if self._heartbeat is not None:
            self._heartbeat.join()
            self._heartbeat = None

    def _is_free(self, claim: Claim) -> bool:
        """Returns whether a claim holds no longer: its trial failed, or does not count."""
        if claim.configuration == FINAL_COMPARISON:
            return claim.trial in self._read or claim.trial in self._failed
        counts = any(trial.number == claim.trial for trial in self.trials)
        is_key = any(c.key == claim.configuration for c in self.measured)
        ended = claim.trial in self._read and not (counts or is_key)
        return ended or (claim.trial in self._failed and not is_key)

    def _end(self, measured: Trial) -> None:
        trial = self._running
        assert trial is not None
        numbers = _values(measured.outcome, self.objectives)
        try:
            for name, attribute in self._attributes(measured.outcome).items():
                trial.set_user_attr(name, attribute)
            known = self.study.get_trials(deepcopy=False)[trial.number].constraints
            for name, violation in self.limits.violations(measured.outcome).items():
                if name not in known:  # the first attempt may have failed half-way
                    trial.set_constraint(name, violation)
            # pruned, not failed: samplers learn nothing from failed trials and propose them again
            state = TrialState.PRUNED if numbers is None else TrialState.COMPLETE
            ended = self.study.tell(trial, numbers, state=state, skip_if_finished=True)
        except UpdateFinishedTrialError:
            ended = self.study.get_trials(deepcopy=False)[trial.number]
        self._refresh()
        if ended.state == TrialState.FAIL:
            self._insert(measured)  # this worker seemed dead: it was suspended, or cut off
        elif measured.configuration not in self.measured:
            # it does not count for the next run, which measures it again; for this one it does
            self.trials.append(measured)
            self.measured[measured.configuration] = measured
        self._close()  # last: where the connection is lost before, all of this is done once more

    def _insert(self, measured: Trial) -> None:
        """Adds a trial that was measured and has no running trial any more."""
        if measured.configuration in self.measured:
            return
        parameters = parameters_of(measured.configuration, self.space)
        numbers = _values(measured.outcome, self.objectives)
        self.study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.PRUNED if numbers is None else TrialState.COMPLETE,
                params=parameters,
                distributions={name: distribution_of(name) for name in parameters},
                values=numbers,
                user_attrs=self._attributes(measured.outcome),
                constraints=self.limits.violations(measured.outcome),
            )
        )
        self._refresh()
        if self.claims is not None and measured.configuration in self.measured:
            number = self.measured[measured.configuration].number
            self.claims.take(measured.configuration.key, number, lambda _: True)

    def _attributes(self, outcome: Outcome) -> dict[str, object]:
        return {**attributes_of(outcome), _WORKER: self.worker}


def _values(outcome: Outcome, objectives: Sequence[Objective]) -> list[float] | None:
    """Returns the objectives of an outcome; None where it is a failure."""
    return list(values(outcome, objectives).values()) if isinstance(outcome, Measurement) else None
