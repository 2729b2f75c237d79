"""What studies of the same model on other machines tell one that begins.

Effects of values, and which of them matter, carry over from machine to machine far better than the
best configuration does, and numbers do not at all (docs/shared-studies.md). So a new
study starts from the fronts of its relatives, measured anew, and its model of effects expects what
theirs found until its own trials say otherwise.
"""

import json
from collections.abc import Mapping
from typing import Any

import optuna

from autotune.deploy.records import read
from autotune.errors import FormatError
from autotune.facts.hardware import Facts
from autotune.search.transfer import Relative
from autotune.space.candidate import BASELINE
from autotune.storage.trials import read_trials


def facts_of(attributes: Mapping[str, Any]) -> Facts:
    """Returns the machine that a study's attributes name; empty where they name none."""
    try:
        found: Facts = read(Facts, json.loads(attributes.get("facts", "{}")), "facts")
    except (ValueError, TypeError, RecursionError, FormatError):
        return {}
    return found


def relatives(database: optuna.storages.RDBStorage, own: str) -> list[Relative]:
    """Returns the relatives of the study `own`, those with most trials first."""
    studies = database.get_all_studies()
    mine = next(study for study in studies if study.study_name == own).user_attrs
    found = []
    for study in studies:
        theirs = study.user_attrs
        same = all(theirs.get(key) == mine.get(key) for key in ("model_sha256", "objectives"))
        if study.study_name == own or not same:
            continue
        loaded = optuna.load_study(study_name=study.study_name, storage=database)
        measured = [trial for trial in read_trials(loaded) if trial.measurement is not None]
        if any(trial.candidate == BASELINE for trial in measured):
            found.append(Relative(name=study.study_name, facts=facts_of(theirs), trials=measured))
    return sorted(found, key=lambda relative: -len(relative.trials))
