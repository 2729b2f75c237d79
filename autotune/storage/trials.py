"""The trials of a study in Optuna's storage: what was measured, and which worker measures what.

Several workers may share a study. A worker claims its candidate by writing it to its running trial,
and looks at the earlier trials afterwards: of two trials with one candidate the lower number keeps
it. A worker waits for an earlier trial that has not claimed yet (Lamport's bakery: "A New Solution
of Dijkstra's Concurrent Programming Problem", 1974; the numbers are the storage's), but not for
ever: the worker of that trial may be dead.
"""

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages._heartbeat import BaseHeartbeat
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.files import create, read_text
from autotune.deploy.records import Json, from_plain, to_plain
from autotune.errors import FormatError, StudyError
from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space
from autotune.storage.clock import Clock

_WORKER = ".driver"
_LARGEST_NAME_BYTES = 1 << 10
# A candidate that made three workers die is not measured a fourth time.
_MOST_TRIES = 3
_CHOOSING_S = 0.05
# Choosing takes milliseconds, or seconds where the storage is far away.
_LONGEST_CHOICE_S = 30.0

_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def worker_of(folder: Path) -> str:
    """Returns the name under which workers in `folder` claim their trials.

    One worker at a time works in a folder, so a trial that still runs under its name is dead.

    Raises:
        StudyError: the folder has another file in the place of the name.
    """
    path = folder / _WORKER
    if not os.path.lexists(path):
        return _new_worker(path)
    try:
        name = read_text(path, _LARGEST_NAME_BYTES, links=False)
        if not name:  # an earlier worker was killed before it wrote
            path.unlink()
            return _new_worker(path)
        if not re.fullmatch("[0-9a-f]{16}", name):
            raise FormatError("it must hold 16 hexadecimal digits and nothing else")
    except FormatError as error:
        raise StudyError(
            f"{path} is damaged: {error}; remove it and type the same command again"
        ) from None
    return name


def _new_worker(path: Path) -> str:
    name = secrets.token_hex(8)
    try:
        with create(path) as file:
            file.write(name.encode())
    except FormatError as error:
        raise StudyError(
            f"cannot write {path}: {error}; name another folder with --out DIR"
        ) from None
    return name


class Record:
    """The measured trials of a study, and the candidates that other workers measure.

    Args:
        study: Optuna's study.
        worker: The name under which this worker claims trials.
        machine: The name of this machine, for people.
        shared: Whether other workers may take part.
        counts: Which trials count; those that do not are measured again.
        clock: What waits.

    Attributes:
        shared: Whether other workers may take part.
        measured: The measured candidates, by every name they go by, with their trials.
        twins: The candidates among them that equal another one, with the trial of that one.
        claimed: The candidates that other workers measure now.
        given_back: The candidates that workers were measuring when they died.
    """

    def __init__(
        self,
        study: optuna.Study,
        worker: str = "",
        machine: str = "",
        *,
        shared: bool = False,
        counts: Callable[[Trial], bool] = lambda _: True,
        clock: Clock | None = None,
    ) -> None:
        self.shared = shared
        self.measured: dict[Candidate, Trial] = {}
        self.twins: dict[Candidate, Trial] = {}
        self.claimed: frozenset[Candidate] = frozenset()
        self.given_back: tuple[Candidate, ...] = ()
        self._study = study
        self._worker = worker
        self._machine = machine
        self._counts = counts
        self._clock = clock or Clock()
        self._trials: list[Trial] = []
        self._read: set[int] = set()

    @property
    def trials(self) -> Sequence[Trial]:
        """The measured trials of all workers, in order."""
        return self._trials

    @property
    def baseline(self) -> Trial | None:
        """The trial of the default, once it is measured."""
        return self.measured.get(BASELINE)

    def refresh(self) -> None:
        """Reads what other workers have added."""
        new, claimed, failed = [], set(), []
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state in _DONE and frozen.number not in self._read:
                self._read.add(frozen.number)
                if (trial := trial_of(frozen)) is not None and self._counts(trial):
                    new.append(trial)
            elif (candidate := candidate_of(frozen)) is not None:
                if frozen.state == TrialState.FAIL and "late" not in frozen.user_attrs:
                    failed.append(candidate)
                elif frozen.state == TrialState.RUNNING and not self._is_own(frozen):
                    claimed.add(candidate)
        self._trials = sorted([*self._trials, *new], key=lambda trial: trial.number)
        for trial in new:
            self.measured.setdefault(trial.candidate, trial)
        done = {trial.candidate for trial in self._trials}
        self.claimed = frozenset(claimed)
        self.given_back = tuple(
            candidate
            for candidate in dict.fromkeys(failed)
            if candidate not in done | claimed and failed.count(candidate) < _MOST_TRIES
        )

    def heal(self) -> None:
        """Gives up the trials that this worker began and did not end, and reads all trials anew.

        An earlier worker of its name began them before it was killed, or this one before the
        storage failed. Where no other worker takes part, these are all running trials.
        """
        self._give_up_own()
        self.read_anew()

    def read_anew(self) -> None:
        """Reads all trials anew."""
        self._trials = []
        self._read = set()
        self.measured = dict(self.twins)
        self.refresh()

    def _give_up_own(self) -> None:
        running, waiting = TrialState.RUNNING, TrialState.WAITING
        for _ in [] if self.shared else self._study.get_trials(deepcopy=False, states=(waiting,)):
            self._study.ask()  # only running trials can be ended
        trials = self._study.get_trials(deepcopy=False, states=(running,))
        self._give_up([t for t in trials if not self.shared or self._is_own(t)])

    def _is_own(self, frozen: FrozenTrial) -> bool:
        claim = frozen.user_attrs.get("claim")
        worker = claim.get("driver") if isinstance(claim, dict) else None
        return self._worker in (worker, frozen.user_attrs.get("run_off"))

    def claim(self, trial: optuna.Trial, candidate: Candidate, budget: int) -> bool:
        """Claims a candidate for a running trial; returns whether the worker may measure it.

        It may not if an earlier trial has the candidate, or if earlier trials spend the budget.
        A trial that is done counts as earlier: a measurement from a spool has a later number.
        """
        claim = {
            "driver": self._worker,
            "machine": self._machine,
            "candidate": candidate.to_json(),
        }
        self._beat(trial)
        trial.set_user_attr("claim", claim)
        earlier = self._earlier(trial.number)
        began_s = self._clock.monotonic()
        while choosing := [t for t in earlier if _is_choosing(t)]:
            self._clock.sleep(_CHOOSING_S)
            optuna.storages.fail_stale_trials(self._study)
            if self._clock.monotonic() - began_s > _LONGEST_CHOICE_S:
                # Optuna takes no trial for stale that never had a heartbeat
                self._give_up(choosing)
            earlier = self._earlier(trial.number)
        standing = [t for t in earlier if "duplicate_of" not in t.user_attrs and self._stands(t)]
        taken = [candidate_of(t) for t in standing]
        may = candidate not in taken and sum(c is not None for c in taken) < budget
        if not may:
            trial.set_user_attr("late", True)  # no worker died over it
        return may

    def _beat(self, trial: optuna.Trial) -> None:
        """Gives a trial its first heartbeat, before it claims anything.

        Optuna's own comes from another thread. A worker that died between its claim and that
        heartbeat would be waited for without end: Optuna takes no trial for stale that had none.
        """
        if self.shared and isinstance(trial.storage, BaseHeartbeat):
            trial.storage.record_heartbeat(trial._trial_id)  # noqa: SLF001  # it has no other name

    def _give_up(self, trials: Sequence[FrozenTrial]) -> None:
        """Ends running trials, unless another worker has ended them meanwhile."""
        for frozen in trials:
            with contextlib.suppress(optuna.exceptions.UpdateFinishedTrialError):
                self._study.tell(frozen.number, state=TrialState.FAIL, skip_if_finished=True)

    def _stands(self, frozen: FrozenTrial) -> bool:
        """Returns whether a trial keeps its candidate: not if it does not count any more."""
        trial = None if frozen.state == TrialState.RUNNING else trial_of(frozen)
        return trial is None or self._counts(trial)

    def _earlier(self, number: int) -> list[FrozenTrial]:
        """Returns the trials that are done, and the running ones before this one."""
        states = (TrialState.RUNNING, *_DONE)
        trials = self._study.get_trials(deepcopy=False, states=states)
        return [t for t in trials if t.number < number or t.state != TrialState.RUNNING]

    def claim_run_off(self, trial: optuna.Trial) -> bool:
        """Claims the final comparison for a running trial; returns whether no other was faster."""
        self._beat(trial)
        trial.set_user_attr("run_off", self._worker)
        return not any(
            frozen.state == TrialState.RUNNING and "run_off" in frozen.user_attrs
            for frozen in self._earlier(trial.number)
        )

    def add(self, trial: Trial) -> None:
        """Adds a trial that this worker has measured."""
        self._read.add(trial.number)
        self._trials.append(trial)
        self.measured[trial.candidate] = trial

    def add_twin(self, candidate: Candidate, trial: Trial) -> None:
        """Notes that `candidate` equals the candidate of a measured trial."""
        self.measured[candidate] = self.twins[candidate] = trial

    def insert(
        self, entry: Mapping[str, Any], space: Space, limits: Limits, values: Sequence[float] | None
    ) -> None:
        """Adds to Optuna's storage a trial that was measured while the storage was away.

        Args:
            entry: The trial as :func:`describe` returns it.
            space: The search space of the study.
            limits: The limits of the study.
            values: The objectives; None where the candidate failed.
        """
        candidate = Candidate.of(entry["candidate"])
        inside = space.assignment(space.nearest(candidate.to_json()))
        domains = {p.name: CategoricalDistribution(p.values) for p in space.parameters}
        outcome = outcome_of(entry)
        assert outcome is not None
        frozen = optuna.trial.create_trial(
            state=TrialState.COMPLETE if values is not None else TrialState.PRUNED,
            params=inside,
            distributions={name: domains[name] for name in inside},
            values=None if values is None else list(values),
            user_attrs={**entry, "machine": self._machine},
            constraints=limits.violations(outcome),
        )
        self._study.add_trial(frozen)


def _is_choosing(frozen: FrozenTrial) -> bool:
    """Returns whether a trial runs and has claimed neither a candidate nor the final comparison."""
    has_chosen = not frozen.user_attrs.keys().isdisjoint({"claim", "run_off", "duplicate_of"})
    return frozen.state == TrialState.RUNNING and not has_chosen


def describe(trial: Trial) -> Json:
    """Returns the user attributes that keep a trial; :func:`trial_of` reads them."""
    kind = "measurement" if trial.measurement else "failure"
    return {"candidate": trial.candidate.to_json(), kind: to_plain(trial.outcome)}


def read_trials(study: optuna.Study) -> list[Trial]:
    """Returns the measured trials of the study, in order, without duplicates."""
    trials = (trial_of(frozen) for frozen in study.get_trials(deepcopy=False, states=_DONE))
    return [trial for trial in trials if trial is not None]


def trial_of(frozen: FrozenTrial) -> Trial | None:
    """Returns the trial that Optuna keeps; None where it repeats an earlier one."""
    candidate, outcome = candidate_of(frozen), outcome_of(frozen.user_attrs)
    if candidate is None or outcome is None:
        return None
    return Trial(number=frozen.number, candidate=candidate, outcome=outcome)


def trial_in(entry: Mapping[str, Any]) -> Trial | None:
    """Returns the trial that a line of the spool holds; None where it holds no valid one.

    Its number is 0: the storage numbers the trial when it gets there.
    """
    outcome = outcome_of(entry)
    try:
        candidate = Candidate.from_json(entry.get("candidate"))
    except FormatError:
        return None
    return None if outcome is None else Trial(number=0, candidate=candidate, outcome=outcome)


def candidate_of(frozen: FrozenTrial) -> Candidate | None:
    """Returns the candidate of a trial, measured or claimed; None where it has none.

    A storage may come from a stranger: values that no parameter takes are ignored.
    """
    claim = frozen.user_attrs.get("claim")
    claimed = claim.get("candidate") if isinstance(claim, dict) else None
    try:
        return Candidate.from_json(frozen.user_attrs.get("candidate", claimed))
    except FormatError:
        return None


def outcome_of(entry: Mapping[str, Any]) -> Outcome | None:
    """Returns the outcome that a trial's attributes hold; None where they hold no valid one."""
    try:
        if "measurement" in entry:
            return from_plain(Measurement, entry["measurement"])
        if "failure" in entry:
            return from_plain(Failure, entry["failure"])
    except FormatError:
        pass
    return None
