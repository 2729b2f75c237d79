"""What a storage holds, and how one of its studies goes on."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import optuna

from autotune.deploy.records import from_plain
from autotune.errors import FormatError, RequestError, StudyError, did_you_mean
from autotune.facts.hardware import Facts
from autotune.storage.database import DATABASE, VARIABLE, Place, open_storage, quiet_optuna
from autotune.storage.relatives import facts_of
from autotune.storage.trials import read_trials
from autotune.study.request import Request


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A study in a storage.

    Attributes:
        name: Its name.
        model: Name of the model's file.
        facts: Of its machine.
        objectives: Names of what it makes small.
        trials: How many it has measured.
        request: What it was asked for; None where it does not say.
        has_metric: Whether a metric of the user's judges its answers.
    """

    name: str
    model: str
    facts: Facts
    objectives: Sequence[str]
    trials: int
    request: Request | None
    has_metric: bool

    @property
    def budget(self) -> int | None:
        """How many trials it was asked for; None where that is not known."""
        return self.request.trials if self.request else None

    @property
    def machine(self) -> str:
        """Its machine in a few words."""
        known = self.facts.get
        return f"{known('CPU', 'unknown')}, {known('usable cores', '?')} cores"

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
    if not (folder / DATABASE).is_file():
        raise StudyError(
            f"{folder} holds no study ({DATABASE} is missing); name the folder that "
            "`autotune study` wrote, or the URL of a storage"
        )
    return Place.of(f"sqlite:///{(folder / DATABASE).resolve()}", folder), folder


def entries(place: Place) -> list[Entry]:
    """Returns the studies in a storage, by name.

    Raises:
        StorageError: it cannot be read.
    """
    with quiet_optuna(), open_storage(place) as database:
        return [
            _entry(optuna.load_study(study_name=found.study_name, storage=database))
            for found in sorted(database.get_all_studies(), key=lambda study: study.study_name)
            if "model_sha256" in found.user_attrs
        ]


def _entry(study: optuna.Study) -> Entry:
    told = study.user_attrs
    try:
        request = from_plain(Request, told.get("request"))
    except FormatError:
        request = None
    return Entry(
        name=study.study_name,
        model=told.get("model", "unknown"),
        facts=facts_of(told),
        objectives=told.get("objectives", "").split(","),
        trials=len(read_trials(study)),
        request=request,
        has_metric=bool(told.get("metric")),
    )


def choose(found: Sequence[Entry], name: str | None, place: Place) -> Entry:
    """Returns the study of that name, or the only one, or the one that was asked for last.

    Raises:
        RequestError: there is none of that name, or several models to choose from.
    """
    if not found:
        raise RequestError(f"{place} holds no study")
    if name is not None:
        for entry in found:
            if entry.name == name:
                return entry
        near = did_you_mean(name, [entry.name for entry in found])
        raise RequestError(f"--study: there is none called '{name}'.{near}")
    if len({entry.request.model if entry.request else entry.model for entry in found}) > 1:
        names = ", ".join(entry.name for entry in found)
        raise RequestError(f"{place} holds several studies; choose one with --study NAME: {names}")
    return max(found, key=lambda entry: entry.trials)


def request_of(
    entry: Entry,
    *,
    model: Path | None,
    data: Path | None,
    trials: int | None,
    metric: str | None,
) -> dict[str, Any]:
    """Returns the arguments with which :func:`autotune.tune` goes on with a study.

    A storage may come from a stranger, and code is never taken from it: the metric is asked for.

    Raises:
        RequestError: something has to be named, because it is not where it was.
    """
    if entry.request is None:
        raise RequestError(
            f"{entry.name} does not say what it was asked for; type its `autotune study` command"
        )
    if entry.has_metric and metric is None:
        raise RequestError(f"the answers of {entry.name} are judged by a metric; add --metric")
    wishes = {"model": model, "data": data, "trials": trials}
    changed = {name: wish for name, wish in wishes.items() if wish is not None}
    request = replace(entry.request, **changed)  # type: ignore[arg-type]  # each of its own type
    for path, option in ((request.model, "--model"), (request.data, "--data")):
        if path is not None and not path.exists():
            raise RequestError(f"{path} is not here; say where it is with {option} PATH")
    return {**request.arguments(), "metric": metric}
