"""Which study a command belongs to.

The same model, inputs, space, wishes and kind of machine find the same study.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.study import StudyDirection

from autotune.deploy.records import read
from autotune.errors import FormatError, StudyError
from autotune.facts.hardware import Facts, differences
from autotune.search.context import Context
from autotune.search.objective import OBJECTIVES
from autotune.search.optuna_trials import read_trials
from autotune.search.transfer import RelatedStudy
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE
from autotune.storage.database import Place
from autotune.storage.locks import DATABASE

# Characters of the model's name; each has four bytes at most, and files are named after a study.
_LONGEST_STEM = 50


Identity = Mapping[str, str]
"""What the trials of one study have in common, by name."""


def identity_of(ctx: Context) -> Identity:
    """Returns the identity of a study: another one has trials of its own.

    Two versions of autotune may measure, or make files, in different ways.
    """
    return {
        "model_sha256": ctx.model.sha256,
        "workload": ctx.workload.signature(),
        "space": ctx.space.digest(),
        "machine": ctx.environment.fingerprint,
        "objectives": ",".join(objective.name for objective in ctx.objectives),
        "metric": ctx.metric_name,
        "metric_source": ctx.metric_source,
        "clients": str(ctx.clients),
        "autotune": ctx.environment.autotune,
    }


def digest(identity: Identity) -> str:
    """Returns 12 hexadecimal digits that differ for different studies."""
    return hashlib.sha256(" ".join(identity.values()).encode()).hexdigest()[:12]


def open_study(
    database: optuna.storages.BaseStorage,
    place: Place,
    ctx: Context,
    identity: Identity,
    name: str | None = None,
) -> optuna.Study:
    """Returns the study of this identity; makes it if there is none.

    Args:
        name: The name that the user gives the study; one is made if None. Where an older autotune
            made the study of that name, the version is added to it.

    Raises:
        StudyError: the folder's own database belongs to another model, or the study of that name
            has another identity.
    """
    model = ctx.model.path
    if place.file == ctx.folder.resolve() / DATABASE:
        _check_folder(database, ctx.folder, identity)
    objectives = identity["objectives"].split(",")
    directions = [
        StudyDirection.MAXIMIZE if OBJECTIVES[each].maximised else StudyDirection.MINIMIZE
        for each in objectives
    ]
    study = optuna.create_study(
        storage=database,
        study_name=name or _name_of(database, model, identity),
        directions=directions,
        load_if_exists=True,
    )
    theirs = study.user_attrs
    if name is not None and "facts" in theirs:
        differ = [key for key, part in identity.items() if theirs.get(key) != part]
        if differ == ["autotune"]:
            # after an upgrade it goes on beside its older self, and starts from what that found
            return open_study(database, place, ctx, identity, f"{name}-{identity['autotune']}")
        if differ:
            raise StudyError(
                f"the study {name} differs from this one in its {differ[0].replace('_', ' ')}; "
                "give this one another name: autotune study MODEL --set study_name=NAME"
            )
    if study.directions != directions:
        raise StudyError(
            f"{place} is damaged: the study {study.study_name} has other objectives than its name "
            "says; move it away and type the same command again"
        )
    if "facts" not in study.user_attrs:
        study.set_metric_names(objectives)
        study.set_user_attr("model", model.name)
        for key, part in identity.items():
            study.set_user_attr(key, part)
        study.set_user_attr("facts", json.dumps(dict(ctx.facts)))
    return study


def _name_of(database: optuna.storages.BaseStorage, model: Path, identity: Identity) -> str:
    """Returns the name of the study of this identity, which it may have got from another file."""
    names = (study.study_name for study in database.get_all_studies())
    ending = f"-{digest(identity)}"
    # the name of the model as a database and the names of files can carry it
    stem = model.stem[:_LONGEST_STEM].encode(errors="replace").decode()
    return next((name for name in names if name.endswith(ending)), f"{stem}{ending}")


def _check_folder(database: optuna.storages.BaseStorage, folder: Path, identity: Identity) -> None:
    for other in database.get_all_studies():
        theirs = other.user_attrs.get("model_sha256")
        if theirs is not None and theirs != identity["model_sha256"]:
            name = str(other.user_attrs.get("model", "unknown"))[:100]
            raise StudyError(
                f"{folder} holds a study of another model "
                f"({name}, or an earlier version of this one); "
                "give this one a folder of its own with --out DIR"
            )


def facts_of(attributes: Mapping[str, Any]) -> Facts:
    """Returns the facts of the machine in a study's attributes; empty where there are none."""
    try:
        facts: Facts = read(Facts, json.loads(attributes.get("facts", "{}")), "facts")
    except (ValueError, TypeError, RecursionError, FormatError):
        return {}
    return facts


def related_studies(database: optuna.storages.BaseStorage, own: str) -> list[RelatedStudy]:
    """Returns the related studies of the study `own`, those with most trials first."""
    studies = database.get_all_studies()
    mine = next(study for study in studies if study.study_name == own).user_attrs
    related = []
    for study in studies:
        theirs = study.user_attrs
        same = all(theirs.get(key) == mine.get(key) for key in ("model_sha256", "objectives"))
        if study.study_name == own or not same:
            continue
        loaded = optuna.load_study(study_name=study.study_name, storage=database)
        measured = [trial for trial in read_trials(loaded) if trial.measurement is not None]
        if any(trial.configuration == BASELINE for trial in measured):
            related.append(
                RelatedStudy(name=study.study_name, facts=facts_of(theirs), trials=measured)
            )
    return sorted(related, key=lambda study: -len(study.trials))


def notes_on(related: Sequence[RelatedStudy], facts: Facts, trials: Sequence[Trial]) -> list[str]:
    """Returns a remark on the largest related study of a study that has no trials yet."""
    notes = []
    for study in related[:1] if not trials else ():
        differ = differences(facts, study.facts)
        if differ:
            notes.append(
                f"The study {study.name} in this storage is of another machine or ONNX Runtime "
                f"({'; '.join(differ)}). This one is new; it starts from what that one found, "
                "and measures it again."
            )
        else:
            notes.append(
                f"The study {study.name} in this storage is of the same machine, and of another "
                "space, other inputs, another metric, another number of clients or another version "
                "of autotune. This one starts from what it found, and measures it again."
            )
    return notes
