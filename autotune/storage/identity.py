"""Which study a command belongs to: the same model, inputs, space and kind of machine find it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import optuna
from optuna.study import StudyDirection

from autotune.errors import StudyError
from autotune.facts.hardware import Facts, differences
from autotune.search.objective import OBJECTIVES
from autotune.search.transfer import Relative
from autotune.storage.database import DATABASE, Place

BATCHING = "batching"
"""The user attribute of a study with its batch sizes; missing where it has none."""

# Characters of the model's name; each has four bytes at most, and files are named after a study.
_LONGEST_STEM = 50


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What the trials of one study have in common.

    Attributes:
        model_sha256: Digest of the model, external data included.
        workload: Signature of the inputs.
        space: Digest of the resolved space.
        machine: Fingerprint of the machine and its ONNX Runtime.
        objectives: Names of the objectives, separated by commas.
        metric: Name of the user's metric; empty if there is none.
        clients: How many clients run at once.
    """

    model_sha256: str
    workload: str
    space: str
    machine: str
    objectives: str
    metric: str
    clients: int = 1

    @property
    def parts(self) -> dict[str, str]:
        """What it consists of, by name.

        One client is no part of it: studies of earlier versions had one.
        """
        parts = {name: str(part) for name, part in asdict(self).items()}
        return {name: part for name, part in parts.items() if (name, part) != ("clients", "1")}

    @property
    def digest(self) -> str:
        """12 hexadecimal digits that differ for different studies."""
        text = " ".join(self.parts.values())
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def open_study(
    database: optuna.storages.RDBStorage,
    place: Place,
    folder: Path,
    model: Path,
    identity: Identity,
    facts: Facts,
) -> optuna.Study:
    """Returns the study of this identity; makes it if there is none.

    Raises:
        StudyError: the folder's own database belongs to another model.
    """
    if place.file == folder.resolve() / DATABASE:
        _check_folder(database, folder, identity)
    objectives = identity.objectives.split(",")
    directions = [
        StudyDirection.MAXIMIZE if OBJECTIVES[name].maximised else StudyDirection.MINIMIZE
        for name in objectives
    ]
    names = (frozen.study_name for frozen in database.get_all_studies())
    # the model's file may have had another name
    earlier = next((name for name in names if name.endswith(f"-{identity.digest}")), None)
    study = optuna.create_study(
        storage=database,
        study_name=earlier or f"{_short_name(model)}-{identity.digest}",
        directions=directions,
        load_if_exists=True,
    )
    if study.directions != directions:
        raise StudyError(
            f"{place} is damaged: the study {study.study_name} has other objectives than its name "
            "says; move it away and type the same command again"
        )
    if "facts" not in study.user_attrs:
        study.set_metric_names(objectives)
        study.set_user_attr("model", model.name)
        for key, part in identity.parts.items():
            study.set_user_attr(key, part)
        study.set_user_attr("facts", json.dumps(dict(facts)))
    return study


def _short_name(model: Path) -> str:
    """Returns the name of the model as a database and the names of files can carry it."""
    return model.stem[:_LONGEST_STEM].encode(errors="replace").decode()


def _check_folder(database: optuna.storages.RDBStorage, folder: Path, identity: Identity) -> None:
    for other in database.get_all_studies():
        theirs = other.user_attrs.get("model_sha256")
        if theirs is not None and theirs != identity.model_sha256:
            name = str(other.user_attrs.get("model", "unknown"))[:100]
            raise StudyError(
                f"{folder} holds a study of another model "
                f"({name}, or an earlier version of this one); "
                "give this one a folder of its own with --out DIR"
            )


def notes_on(kin: Sequence[Relative], facts: Facts, study: optuna.Study) -> list[str]:
    """Returns remarks on the relatives of a study that begins, a sentence or two each."""
    if study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,)):
        return []
    notes = []
    for relative in kin[:1]:
        differ = differences(facts, relative.facts)
        if differ:
            notes.append(
                f"The study {relative.name} in this storage is of another machine or ONNX Runtime "
                f"({'; '.join(differ)}). This one is new; it starts from what that one found, "
                "and measures it again."
            )
        else:
            notes.append(
                f"The study {relative.name} in this storage is of the same machine, and of another "
                "space, other inputs, another metric or another number of clients. This one starts "
                "from what it found, and measures it again."
            )
    return notes
