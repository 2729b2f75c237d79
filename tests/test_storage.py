"""The record of a study on the disk, and what becomes of it when that gives out."""

import subprocess
import sys
from pathlib import Path

import optuna
import pytest
from fakes import measurement, refusal
from sqlalchemy.exc import OperationalError

from autotune.errors import StorageError, StudyError
from autotune.search.trial import Trial
from autotune.space.candidate import Candidate
from autotune.storage import locks
from autotune.storage.database import DATABASE, Place, open_storage, quiet_optuna, storage_faults
from autotune.storage.trials import describe, read_trials


def test_a_second_driver_is_refused(tmp_path: Path) -> None:
    """Two studies in one folder would measure each other; the lock goes with its holder."""
    with (
        locks.exclusive_use(tmp_path),
        pytest.raises(StudyError, match="another autotune is at work"),
        locks.exclusive_use(tmp_path),
    ):
        pass
    with locks.exclusive_use(tmp_path):
        pass


@pytest.mark.process
def test_a_driver_in_another_process_is_seen(tmp_path: Path) -> None:
    """The lock holds between processes, and a killed one does not keep it."""
    script = (
        "import pathlib, sys, time\n"
        "from autotune.storage import locks\n"
        "with locks.exclusive_use(pathlib.Path(sys.argv[1])):\n"
        "    print('holding', flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holding\n"
        with pytest.raises(StudyError), locks.exclusive_use(tmp_path):
            pass
        holder.kill()
    with locks.exclusive_use(tmp_path):
        pass


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """A lock that cannot be made is the user's to mend."""
    (tmp_path / "file").write_text("", encoding="ascii")
    with (
        pytest.raises(StudyError, match="cannot write"),
        locks.exclusive_use(tmp_path / "file" / "folder"),
    ):
        pass


@pytest.mark.parametrize(
    "fault",
    [
        OperationalError("INSERT", {}, Exception("database or disk is full")),
        optuna.exceptions.StorageInternalError("gone"),
    ],
)
def test_storage_faults_keep_what_was_measured(tmp_path: Path, fault: Exception) -> None:
    """Faults of the database end in one sentence with exit code 75."""
    with (
        pytest.raises(StorageError, match="What was measured is kept") as caught,
        storage_faults(Place.of(None, tmp_path)),
    ):
        raise fault
    assert caught.value.exit_code == 75


def test_other_faults_pass() -> None:
    """A bug is not taken for a full disk."""
    with pytest.raises(ZeroDivisionError), storage_faults(Place.of(None, Path())):
        raise ZeroDivisionError


def test_a_corrupt_database_is_told(tmp_path: Path) -> None:
    """A file that is no database is named, without a traceback of its library."""
    (tmp_path / DATABASE).write_bytes(b"this is no database " * 500)
    place = Place.of(None, tmp_path)
    with pytest.raises(StorageError, match=r"study\.db"), open_storage(place):
        pass


def test_trials_come_back_as_they_went(tmp_path: Path) -> None:
    """Measurements and failures survive the database; answers from the record are no trials."""
    first = Trial(
        number=0, candidate=Candidate.of({"arena": "off"}), outcome=measurement(1.25, 3.5)
    )
    second = Trial(
        number=1, candidate=Candidate.of({"intra_op_num_threads": 2}), outcome=refusal("no")
    )
    place = Place.of(None, tmp_path)
    with quiet_optuna(), open_storage(place) as database:
        study = optuna.create_study(
            storage=database, study_name="kept", directions=["minimize", "minimize"]
        )
        for trial in (first, second):
            asked = study.ask()
            for key, value in describe(trial).items():
                asked.set_user_attr(key, value)
            if trial.measurement:
                study.tell(asked, [1.25, 3.5])
            else:
                study.tell(asked, state=optuna.trial.TrialState.PRUNED)
        repeated = study.ask()
        repeated.set_user_attr("duplicate_of", 0)
        study.tell(repeated, [1.25, 3.5])
    with open_storage(place) as database:
        again = optuna.load_study(storage=database, study_name="kept")
        assert read_trials(again) == [first, second]


def test_quiet_optuna_is_quiet_for_a_while() -> None:
    """The level of Optuna's log is what it was afterwards, whatever happens inside."""
    before = optuna.logging.get_verbosity()
    inside = 0

    def fail() -> None:
        nonlocal inside
        inside = optuna.logging.get_verbosity()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), quiet_optuna():
        fail()
    assert inside == optuna.logging.CRITICAL
    assert optuna.logging.get_verbosity() == before
