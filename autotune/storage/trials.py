"""The trials of a study in Optuna's record: what was measured, and who is measuring what.

Several drivers may share a study. A driver claims its candidate by writing it to its running trial,
and looks at the earlier trials afterwards: of two with one candidate the lower number keeps it. An
earlier one that has not claimed yet is waited for (Lamport's bakery: "A New Solution of Dijkstra's
Concurrent Programming Problem", 1974; the numbers are the storage's).
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.records import from_plain, to_plain
from autotune.errors import FormatError
from autotune.measure.outcome import Failure, Measurement
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import Candidate
from autotune.space.space import Space

_DRIVER = ".driver"
# Who made three drivers die is not measured a fourth time.
_MOST_TRIES = 3

_CHOOSING_S = 0.05

_DONE = (TrialState.COMPLETE, TrialState.PRUNED)


def driver_of(folder: Path) -> str:
    """Returns the name under which drivers in `folder` claim their trials.

    Only one at a time works in a folder, so whatever else runs under its name is dead.
    """
    path = folder / _DRIVER
    try:
        return path.read_text(encoding="ascii")
    except FileNotFoundError:
        name = secrets.token_hex(8)
        path.write_text(name, encoding="ascii")
        return name


class Record:
    """What is known of a study's trials, kept up to date.

    Args:
        study: Optuna's study.
        driver: The name under which this driver claims trials.
        machine: The name of this machine, for people.
        shared: Whether other drivers may take part.

    Attributes:
        shared: Likewise.
        trials: What was measured, by anybody, in the order of the numbers.
        claimed: What other drivers are measuring now.
        given_back: What dead drivers were measuring.
    """

    def __init__(
        self, study: optuna.Study, driver: str = "", machine: str = "", *, shared: bool = False
    ) -> None:
        self.shared = shared
        self.trials: list[Trial] = []
        self.claimed: frozenset[Candidate] = frozenset()
        self.given_back: tuple[Candidate, ...] = ()
        self._study = study
        self._driver = driver
        self._machine = machine
        self._read: set[int] = set()

    def refresh(self) -> list[Trial]:
        """Reads what others have added; returns the new trials."""
        new, claimed, failed = [], set(), []
        for frozen in self._study.get_trials(deepcopy=False):
            if frozen.state in _DONE and frozen.number not in self._read:
                self._read.add(frozen.number)
                if (trial := trial_of(frozen)) is not None:
                    new.append(trial)
            elif (candidate := candidate_of(frozen)) is not None:
                if frozen.state == TrialState.FAIL and "late" not in frozen.user_attrs:
                    failed.append(candidate)
                elif frozen.state == TrialState.RUNNING and not self._is_own(frozen):
                    claimed.add(candidate)
        self.trials = sorted([*self.trials, *new], key=lambda trial: trial.number)
        known = {trial.candidate for trial in self.trials}
        self.claimed = frozenset(claimed)
        self.given_back = tuple(
            candidate
            for candidate in dict.fromkeys(failed)
            if candidate not in known | claimed and failed.count(candidate) < _MOST_TRIES
        )
        return new

    def reload(self) -> None:
        """Reads everything anew, after what this driver had begun was given up.

        That is what an earlier driver of its name had begun when it was killed, or this one when
        the storage gave out. Where nobody else takes part, it is all that is still running.
        """
        self._give_up_own()
        self.trials = []
        self._read = set()
        self.refresh()

    def _give_up_own(self) -> None:
        running, waiting = TrialState.RUNNING, TrialState.WAITING
        for _ in [] if self.shared else self._study.get_trials(deepcopy=False, states=(waiting,)):
            self._study.ask()  # only running trials can be told
        for frozen in self._study.get_trials(deepcopy=False, states=(running,)):
            if not self.shared or self._is_own(frozen):
                self._study.tell(frozen.number, state=TrialState.FAIL)

    def _is_own(self, frozen: FrozenTrial) -> bool:
        claim = frozen.user_attrs.get("claim")
        driver = claim.get("driver") if isinstance(claim, dict) else None
        return self._driver in {driver, frozen.user_attrs.get("run_off")}

    def claim(self, trial: optuna.Trial, candidate: Candidate, budget: int) -> bool:
        """Claims a candidate for a running trial; returns whether it may be measured.

        It may not where an earlier trial has it, or where the earlier ones spend the budget.
        """
        told = {
            "driver": self._driver,
            "machine": self._machine,
            "candidate": candidate.to_json(),
        }
        trial.set_user_attr("claim", told)
        earlier = self._earlier(trial.number)
        while any(t.state == TrialState.RUNNING and not t.user_attrs for t in earlier):
            time.sleep(_CHOOSING_S)
            optuna.storages.fail_stale_trials(self._study)
            earlier = self._earlier(trial.number)
        taken = [candidate_of(t) for t in earlier if "duplicate_of" not in t.user_attrs]
        may = candidate not in taken and sum(c is not None for c in taken) < budget
        if not may:
            trial.set_user_attr("late", True)  # nobody died over it
        return may

    def _earlier(self, number: int) -> list[FrozenTrial]:
        """Returns the trials before this one that are running or done."""
        states = (TrialState.RUNNING, *_DONE)
        found = self._study.get_trials(deepcopy=False, states=states)
        return [frozen for frozen in found if frozen.number < number]

    def claim_run_off(self, trial: optuna.Trial) -> bool:
        """Claims the run-off for a running trial; returns whether nobody was faster."""
        trial.set_user_attr("run_off", self._driver)
        return not any(
            frozen.state == TrialState.RUNNING and "run_off" in frozen.user_attrs
            for frozen in self._earlier(trial.number)
        )

    def add(self, trial: Trial) -> None:
        """Takes note of what this driver has measured."""
        self._read.add(trial.number)
        self.trials.append(trial)

    def insert(
        self, told: Mapping[str, Any], space: Space, limits: Limits, values: Sequence[float] | None
    ) -> None:
        """Adds to Optuna's record a trial that was measured and never told."""
        candidate = Candidate.of(told["candidate"])
        inside = space.assignment(space.nearest(candidate.to_json()))
        domains = {p.name: CategoricalDistribution(p.values) for p in space.parameters}
        outcome = outcome_of(told)
        assert outcome is not None
        frozen = optuna.trial.create_trial(
            state=TrialState.COMPLETE if values is not None else TrialState.PRUNED,
            params=inside,
            distributions={name: domains[name] for name in inside},
            values=None if values is None else list(values),
            user_attrs={**told, "machine": self._machine},
            constraints=limits.violations(outcome),
        )
        self._study.add_trial(frozen)


def describe(trial: Trial) -> dict[str, Any]:
    """Returns the user attributes that keep a trial; :func:`trial_of` reads them."""
    kind = "measurement" if trial.measurement else "failure"
    return {"candidate": trial.candidate.to_json(), kind: to_plain(trial.outcome)}


def read_trials(study: optuna.Study) -> list[Trial]:
    """Returns what was measured in the study, in order, without duplicates."""
    found = (trial_of(frozen) for frozen in study.get_trials(deepcopy=False, states=_DONE))
    return [trial for trial in found if trial is not None]


def trial_of(frozen: FrozenTrial) -> Trial | None:
    """Returns the trial that Optuna keeps; None where it was answered from the record."""
    candidate, outcome = candidate_of(frozen), outcome_of(frozen.user_attrs)
    if candidate is None or outcome is None:
        return None
    return Trial(number=frozen.number, candidate=candidate, outcome=outcome)


def candidate_of(frozen: FrozenTrial) -> Candidate | None:
    """Returns what a trial measures or has measured; None where it does not say.

    A storage is written by many hands: what is no value of a parameter is not believed.
    """
    claim = frozen.user_attrs.get("claim")
    claimed = claim.get("candidate") if isinstance(claim, dict) else None
    try:
        return Candidate.from_json(frozen.user_attrs.get("candidate", claimed))
    except FormatError:
        return None


def outcome_of(told: Mapping[str, Any]) -> Measurement | Failure | None:
    """Returns the outcome that attributes hold; None where they hold none to be believed."""
    try:
        if "measurement" in told:
            return from_plain(Measurement, told["measurement"])
        if "failure" in told:
            return from_plain(Failure, told["failure"])
    except FormatError:
        pass
    return None
