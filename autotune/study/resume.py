"""The studies in a storage, and the options to go on with one of them."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from autotune.deploy.files import is_file
from autotune.deploy.kinds import STUDY, mistaken
from autotune.errors import FormatError, RequestError, StudyError, did_you_mean
from autotune.facts.hardware import Facts
from autotune.results.result import FRONT
from autotune.search.optuna_trials import read_trials
from autotune.storage.database import VARIABLE, Place, open_storage, quiet_optuna
from autotune.storage.identity import facts_of
from autotune.storage.locks import DATABASE
from autotune.storage.masking import without_secrets
from autotune.study.options import StudyOptions


@dataclass(frozen=True, kw_only=True)
class StoredStudy:
    """A study in a storage.

    Attributes:
        options: Its options, the user's metric by name; None where the storage has none that can
            be read.
    """

    name: str
    model: str
    facts: Facts
    objectives: Sequence[str]
    trials: int
    options: StudyOptions | None

    @property
    def budget(self) -> int | None:
        """How many trials it may have; None if unknown."""
        return self.options.trials if self.options else None

    @property
    def machine(self) -> str:
        """Its machine in a few words."""
        facts = self.facts
        return f"{facts.get('CPU', 'unknown')}, {facts.get('usable cores', '?')} cores"

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as JSON values."""
        return {
            "name": self.name,
            "model": self.model,
            "machine": dict(self.facts),
            "objectives": list(self.objectives),
            "trials": self.trials,
            "budget": self.budget,
        }


def place_of(text: str | None) -> tuple[Place, Path | None]:
    """Returns the storage that a URL or the folder of a study names, and the folder.

    Where the folder has the result of a study alone, the storage is that of the variable
    ``AUTOTUNE_STORAGE``.

    Raises:
        StudyError: the folder holds no study.
        RequestError: it is neither, and the variable is not set either.
    """
    text = text or os.environ.get(VARIABLE)
    if not text:
        raise RequestError(f"name the folder of a study or the URL of a storage, or set {VARIABLE}")
    if "://" in text:
        return Place.of(text, Path()), None
    folder = Path(text)
    if is_file(folder / DATABASE):
        return Place.of_folder(folder), folder
    if is_file(folder / FRONT) and os.environ.get(VARIABLE):
        return Place.of(None, folder), folder
    raise StudyError(
        without_secrets(mistaken(folder, STUDY))  # it may be an URL without its slashes
        or f"{without_secrets(text)} holds no study ({DATABASE} is missing); name the folder that "
        f"`autotune study` wrote, and the URL of its storage in {VARIABLE} if it has another one"
    )


def entries(place: Place) -> list[StoredStudy]:
    """Returns the studies in a storage, by name.

    Raises:
        StudyError: it is a file that is not there.
        StorageError: it cannot be read.
    """
    if place.file is not None and not is_file(place.file):
        raise StudyError(f"there is no file {place.file}; name the storage of a study")
    with quiet_optuna(), open_storage(place) as database:
        return [
            _entry(optuna.load_study(study_name=frozen.study_name, storage=database))
            for frozen in sorted(database.get_all_studies(), key=lambda study: study.study_name)
            if "model_sha256" in frozen.user_attrs
        ]


def _entry(study: optuna.Study) -> StoredStudy:
    attributes = study.user_attrs
    try:
        options = StudyOptions.from_record(attributes.get("request"))
        options = replace(options, metric=str(attributes.get("metric", "")) or None)
    except FormatError:
        options = None
    return StoredStudy(
        name=study.study_name,
        model=str(attributes.get("model", "unknown")),
        facts=facts_of(attributes),
        objectives=str(attributes.get("objectives", "")).split(","),
        trials=len(read_trials(study)),
        options=options,
    )


def choose(studies: Sequence[StoredStudy], name: str | None, place: Place) -> StoredStudy:
    """Returns the study of that name, or the only one, or of one model the largest.

    Raises:
        RequestError: there is none of that name, or there are several models to choose from.
    """
    if not studies:
        raise RequestError(f"{place} holds no study")
    if name is not None:
        for entry in studies:
            if entry.name == name:
                return entry
        near = did_you_mean(name, [entry.name for entry in studies])
        raise RequestError(f"study_name: there is none called '{name}'.{near}")
    if len({entry.options.model if entry.options else entry.model for entry in studies}) > 1:
        names = ", ".join(entry.name for entry in studies)
        raise RequestError(
            f"{place} holds several studies; choose one with --set study_name=NAME: {names}"
        )
    return max(studies, key=lambda entry: entry.trials)


def options_to_continue(where: str | None, **changes: Any) -> StudyOptions:
    """Returns the options to continue the study in a folder or in a storage.

    Args:
        where: The folder of a study or the URL of a storage; the URL in the variable
            ``AUTOTUNE_STORAGE`` if None.
        changes: Options by name that take the place of those of the study, where they are not None;
            `study_name` says which study, where there are several.

    Raises:
        StudyError: the folder holds no study.
        StorageError: the storage cannot be read.
        RequestError: there is no such study, or an option is missing, or a file is not where it
            was.
    """
    place, folder = place_of(where)
    entry = choose(entries(place), changes.pop("study_name", None), place)
    if changes.get("out") is None:
        changes["out"] = folder or _folder_of(entry)
    changes["storage"] = place.text
    return options_of(entry, **changes)


def _folder_of(entry: StoredStudy) -> Path | None:
    """Returns the folder that a study wrote to, where it is one of autotune's on this machine.

    A storage may come from a stranger, who could name any folder.
    """
    out = entry.options.out if entry.options else None
    if out is None:
        return None
    return out if is_file(out / FRONT) or is_file(out / ".lock") else None


def options_of(entry: StoredStudy, **changes: Any) -> StudyOptions:
    """Returns the options to go on with a study, those among `changes` that are not None replaced.

    A storage may come from a stranger, and code is never taken from it: a study with a metric
    needs it in `changes`.

    Raises:
        RequestError: an option is missing, or a file is not where it was.
    """
    if entry.options is None:
        raise RequestError(
            f"the options of {entry.name} cannot be read; type its `autotune study` command"
        )
    given = {name: value for name, value in changes.items() if value is not None}
    if entry.options.metric is not None and "metric" not in given:
        raise RequestError(f"a metric judges the answers of {entry.name}; add --metric")
    options = replace(entry.options, out=None).with_changes(**given)
    check_paths(options)
    return options


def check_paths(options: StudyOptions) -> None:
    """Refuses options whose model or inputs are not where they were.

    Raises:
        RequestError: that is so; the message names the option that says where they are.
    """
    for path, option in ((options.model, "--set model="), (options.data, "--data ")):
        if path is not None and not path.exists():
            raise RequestError(f"{path} is not here; say where it is with {option}PATH")
