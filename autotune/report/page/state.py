"""The state of a study that a page shows: its result, its trials and what it was asked for."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import optuna

from autotune.deploy.files import is_file
from autotune.errors import StudyError
from autotune.facts.hardware import Facts
from autotune.measure.outcome import Measurement
from autotune.results.profiling import Profiling, kept_profile
from autotune.results.result import FRONT, StudyResult
from autotune.search.objective import Objective, find
from autotune.search.optuna_trials import read_trials
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.storage.identity import facts_of
from autotune.storage.locks import DATABASE
from autotune.study.options import StudyOptions
from autotune.study.resume import choose, entries


@dataclass(frozen=True, kw_only=True)
class StudyState:
    """A study as a page shows it.

    Attributes:
        name: Its name in the storage; empty while it runs.
        trials: Its measured trials, in order; empty where the storage is not at hand.
        options: What it was asked for; None where the storage has no options that can be read.
        facts: The facts of its machine; empty where they are not at hand.
        profiling: Where the time of a run goes; None where it was not profiled.
        stage: What the study is doing now, in a phrase; empty where it does not run.
    """

    name: str
    model: str
    folder: Path
    objectives: tuple[Objective, ...]
    limits: Limits
    trials: tuple[Trial, ...] = ()
    result: StudyResult | None = None
    options: StudyOptions | None = None
    facts: Facts = field(default_factory=dict)
    profiling: Profiling | None = None
    stage: str = ""

    @property
    def baseline(self) -> Measurement | None:
        """The measurement of the default in the search; None where it is not at hand."""
        # one that failed once may have been measured again
        own = (trial.measurement for trial in self.trials if trial.configuration == BASELINE)
        return next((measurement for measurement in own if measurement is not None), None)

    @property
    def chosen(self) -> Measurement | None:
        """The measurement of the chosen configuration in the search; None before there is one."""
        if self.result is None:
            return None
        picked = self.result.picked
        return next((t.measurement for t in self.trials if t.number == picked), None)


def read_state(folder: Path, storage: str | None = None, name: str | None = None) -> StudyState:
    """Returns the state of the study that wrote to `folder`.

    Args:
        storage: URL of the storage with its trials; the folder's own, or else that of the variable
            ``AUTOTUNE_STORAGE``, if None. Where there is none, the page has the result alone.
        name: Name of the study in the storage; that of the result, or the only one, if None.

    Raises:
        StudyError: the folder holds neither a result nor a study.
        StorageError: the storage cannot be read.
    """
    own = is_file(folder / DATABASE)
    result = None
    if is_file(folder / FRONT) or not (own or storage):
        result = StudyResult.read(folder)
    if result is not None and name not in {None, result.study}:
        result = None
    place = Place.of_folder(folder) if own and not storage else Place.of(storage, folder)
    if place.file is not None and not is_file(place.file):  # opening it would make it
        if storage or result is None:
            raise StudyError(f"there is no storage {place}; name that of the study with --storage")
        return _of_result(result)
    studies = entries(place)
    if result is not None and result.study not in [entry.name for entry in studies]:
        return _of_result(result)
    entry = choose(studies, name if result is None else result.study, place)
    with quiet_optuna(), open_storage(place) as database:
        study = optuna.load_study(study_name=entry.name, storage=database)
        trials, attributes = tuple(read_trials(study)), study.user_attrs
    if not trials:
        raise StudyError(f"{folder}: no trial of the study {entry.name} has ended yet")
    asked = Limits() if entry.options is None else entry.options.limits
    return StudyState(
        name=entry.name,
        model=entry.model,
        folder=folder,
        objectives=find(tuple(entry.objectives)),
        limits=asked if result is None else _limits_of(result),
        trials=trials,
        result=result,
        options=entry.options,
        facts=facts_of(attributes),
        profiling=None if result is None else kept_profile(folder),
    )


def _of_result(result: StudyResult) -> StudyState:
    """Returns the state of a study whose storage is not at hand."""
    return StudyState(
        name=result.study,
        model=result.model.name,
        folder=result.folder,
        objectives=find(result.objectives),
        limits=_limits_of(result),
        result=result,
        profiling=kept_profile(result.folder),
    )


def _limits_of(result: StudyResult) -> Limits:
    limits = dict(result.limits)
    error = limits.pop("max_error")
    return Limits(max_error=math.inf if error is None else error, **limits)
