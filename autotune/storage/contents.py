"""The contents of a storage, which may come from a stranger: checked once, when it is opened.

Optuna believes its tables. A number of the wrong type, a state that there is not, or a value beside
its distribution ends in an exception of any class, in the middle of a study.
"""

import math
import os
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.errors import FormatError, StudyError
from autotune.storage.faults import FAULTS

_FIXED = "fixed_params"
# A file name has 255 bytes at most; that of a spool has 12 more than its study's.
_LONGEST_NAME = 243


def check_contents(storage: optuna.storages.RDBStorage, place: str) -> None:
    """Refuses a storage whose studies or trials Optuna cannot work with.

    Raises:
        StudyError: there is such a study; the message names it.
    """
    name = "the list of studies"
    try:
        for study in storage.get_all_studies():
            name = f"the study {study.study_name[:100]!r}"
            _check_text(study.study_name)
            trials = storage.get_all_trials(study._study_id, deepcopy=False)  # noqa: SLF001
            if [trial.number for trial in trials] != list(range(len(trials))):
                raise FormatError("its trials are not numbered from 0 on")
            for trial in trials:
                _check_trial(trial, len(study.directions))
    except FAULTS:
        raise
    except Exception as error:  # noqa: BLE001  # Optuna's readers fail in any way
        reason = str(error)[:200] or type(error).__name__
        raise StudyError(
            f"{place} is damaged: {name} cannot be read ({reason}); move it away "
            "and type the same command again, or restore it from a copy"
        ) from None


def _check_text(name: str) -> None:
    """Refuses a name of a study that no file can carry: a study's files are named after it."""
    if not name or set(name) & {"/", "\0", os.sep} or len(name.encode()) > _LONGEST_NAME:
        raise FormatError("its name is not one that autotune gives")


def _check_trial(trial: FrozenTrial, objectives: int) -> None:
    """Refuses a trial that Optuna itself would not make."""
    numbers: Sequence[Any] = [*(trial.values or []), *trial.constraints.values()]
    if any(type(number) not in {int, float} or math.isnan(number) for number in numbers):
        raise FormatError(f"trial {trial.number} has a value that is no number")
    if trial.state == TrialState.COMPLETE and len(trial.values or []) != objectives:
        raise FormatError(f"trial {trial.number} has another number of objectives")
    if not isinstance(trial.system_attrs.get(_FIXED, {}), dict):
        raise FormatError(f"the parameters of trial {trial.number} are no object")
    # makes the same checks as for a new trial: its values lie within their distributions
    create_trial(
        state=trial.state,
        values=trial.values,
        params=trial.params,
        distributions=trial.distributions,
    )
