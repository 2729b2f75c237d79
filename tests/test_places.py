"""Where studies are kept, and who may work there: URLs, locks, and the spool."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.errors import RequestError, StorageError, StudyError
from autotune.storage import locks, spool
from autotune.storage.database import Place, without_secrets

SECRET = "s3cr3t"  # a password in an URL


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests does not matter."""
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)


def test_a_folder_has_its_own_database(tmp_path: Path) -> None:
    """Where nothing is said the record is a file in the folder."""
    place = Place.of(None, tmp_path)
    assert place.file == (tmp_path / "study.db").resolve()
    assert not place.is_shared
    assert str(place) == str(place.file)


def test_the_variable_names_the_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the password out of the list of processes; the option comes first."""
    monkeypatch.setenv("AUTOTUNE_STORAGE", f"postgresql://me:{SECRET}@host/name")
    place = Place.of(None, tmp_path)
    assert place.is_shared
    assert place.url.drivername == "postgresql+psycopg"
    assert place.url.password == SECRET
    assert Place.of("sqlite:///other.db", tmp_path).file == Path("other.db")


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@host/name",
        f"postgresql+psycopg://me:{SECRET}@host:5433/name?sslpassword={SECRET}",
        f"postgresql://host/name?user=me&password={SECRET}",
    ],
)
def test_secrets_are_not_printed(url: str) -> None:
    """Neither as a place nor as a word of a command, however it is written."""
    place = Place.of(url, Path())
    for text in (str(place), repr(place), f"{place}", without_secrets(url)):
        assert SECRET not in text
        assert "host" in text
    assert SECRET not in without_secrets(f"--storage={url}")


@pytest.mark.parametrize("text", ["--trials", "model.onnx", "sqlite:///a.db", "a=b", "x://"])
def test_other_words_stay(text: str) -> None:
    """What holds no secret is repeated as it was typed."""
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("nonsense", "must be a URL"),
        ("mysql://host/name", "not in mysql"),
        ("redis://host", "not in redis"),
    ],
)
def test_other_storages_are_refused(url: str, told: str) -> None:
    """With what is possible."""
    with pytest.raises(RequestError, match=told):
        Place.of(url, Path())


@contextlib.contextmanager
def _held(script: str, *arguments: object) -> Iterator[None]:
    """Runs a script in a process of its own that holds a lock until the end of the context."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield


def test_a_database_elsewhere_serves_one_driver(tmp_path: Path) -> None:
    """A second one on the same file is told what serves many."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    database = tmp_path / "shared.db"
    script = (
        "import pathlib, sys\n"
        "from autotune.storage import locks as lock\n"
        "lock._core_locks = lambda: []\n"
        "with lock.sole_driver(*map(pathlib.Path, sys.argv[1:])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with (
        _held(script, tmp_path / "one", database),
        pytest.raises(StudyError, match="postgresql://"),
        locks.sole_driver(tmp_path / "two", database),
    ):
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_two_drivers_do_not_share_cores(tmp_path: Path) -> None:
    """On the same cores the second is refused; on cores of its own it may work."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("there is one core only")
    first, second = sorted(mine)[:2]
    script = (
        "import os, pathlib, sys\n"
        "from autotune.storage import locks as lock\n"
        "os.sched_setaffinity(0, {int(sys.argv[2])})\n"
        "with lock.sole_driver(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with _held(script, tmp_path / "one", first):
        try:
            with (
                pytest.raises(StudyError, match="measures on these cores"),
                locks.sole_driver(tmp_path / "two"),
            ):
                pass
            os.sched_setaffinity(0, {second})
            with locks.sole_driver(tmp_path / "two"):
                pass
        finally:
            os.sched_setaffinity(0, mine)


def test_the_spool_keeps_whole_lines(tmp_path: Path) -> None:
    """What was cut short is left out; what was kept comes back in order, until it is cleared."""
    kept = spool.Spool(tmp_path, "study-1")
    assert kept.entries() == []
    kept.keep({"candidate": {"arena": "off"}})
    kept.keep({"candidate": {}})
    (path,) = tmp_path.iterdir()
    with path.open("a") as file:
        file.write('{"candidate": {"ar')
    assert kept.entries() == [{"candidate": {"arena": "off"}}, {"candidate": {}}]
    assert spool.Spool(tmp_path, "study-2").entries() == []
    kept.clear()
    assert kept.entries() == []


def test_a_full_disk_is_seen_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is measured that could not be kept."""
    kept = spool.Spool(tmp_path, "study")
    kept.check_room()
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(StorageError, match="make room") as told:
        kept.check_room()
    assert told.value.exit_code == 75
