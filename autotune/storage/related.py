"""The related studies of a study in its storage: those of the same model and objectives."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import optuna

from autotune.deploy.records import read
from autotune.errors import FormatError
from autotune.facts.hardware import Facts, differences
from autotune.search.transfer import RelatedStudy
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE
from autotune.storage.trials import read_trials


def facts_of(attributes: Mapping[str, Any]) -> Facts:
    """Returns the facts of the machine in a study's attributes; empty where there are none."""
    try:
        facts: Facts = read(Facts, json.loads(attributes.get("facts", "{}")), "facts")
    except (ValueError, TypeError, RecursionError, FormatError):
        return {}
    return facts


def related_studies(database: optuna.storages.RDBStorage, own: str) -> list[RelatedStudy]:
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
