"""Where studies are kept, and who may work there: URLs, locks, and the spool."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune.errors import RequestError, StorageError, StudyError
from autotune.storage import locks, spool
from autotune.storage.database import Place
from autotune.study.resume import place_of

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
    for text in (str(place), repr(place), f"{place}"):
        assert SECRET not in text
        assert "host" in text


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://me:{SECRET}@{SECRET}@host/name",
        f"postgresql://me:@{SECRET}/{SECRET}@host/name",
        f"postgresql://me:a@{SECRET}:{SECRET}@host/name",
        f"postgresql://me:{SECRET}@host:{SECRET}/name",
        f"me:{SECRET}@host/name",
        f"//me:{SECRET}@host/name",
        f"postgresql:/me:{SECRET}@host/name",
        f"postgresql:me:{SECRET}@host",
        f"nonsense://me:{SECRET}@host",
    ],
)
def test_an_url_that_cannot_be_read_is_not_printed(url: str, tmp_path: Path) -> None:
    """The refusal says how an URL is written, and has no part of this one."""
    with pytest.raises(RequestError) as refusal:
        Place.of(url, tmp_path)
    assert SECRET not in str(refusal.value)
    assert "--storage" in str(refusal.value)
    assert SECRET not in "".join(traceback.format_exception(refusal.value))
    with pytest.raises(RequestError) as refusal:
        place_of(url)
    assert SECRET not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "must be a URL"),
        ("mysql://host/name", "not in mysql"),
        ("redis://host", "not in redis"),
    ],
)
def test_other_storages_are_refused(url: str, message: str) -> None:
    """With what is possible."""
    with pytest.raises(RequestError, match=message):
        Place.of(url, Path())


_HOLD_FOLDER = (
    "import pathlib, sys\n"
    "from autotune.storage import locks\n"
    "locks.lock_folders = lambda: []\n"
    "with locks.exclusive_use(*map(pathlib.Path, sys.argv[1:])):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)
_HOLD_CORE = (
    "import os, pathlib, sys\n"
    "from autotune.storage import locks\n"
    "os.sched_setaffinity(0, {int(sys.argv[2])})\n"
    "with locks.exclusive_use(pathlib.Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


@contextlib.contextmanager
def _held(script: str, *arguments: object) -> Iterator[Callable[[], None]]:
    """Runs a script that holds locks in a process of its own; gives what ends it."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        yield holder.stdin.close


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The folders of two studies."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.process
def test_a_database_elsewhere_serves_one_driver(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """A second one on the same file is told what serves many."""
    one, two = folders
    database = tmp_path / "shared.db"
    with (
        _held(_HOLD_FOLDER, one, database),
        pytest.raises(StudyError, match="postgresql://"),
        locks.exclusive_use(two, database),
    ):
        pass


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_two_drivers_do_not_share_cores(folders: tuple[Path, Path]) -> None:
    """On the same cores the second is refused; on cores of its own it may work."""
    one, two = folders
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("there is one core only")
    first, second = sorted(mine)[:2]
    with _held(_HOLD_CORE, one, first):
        try:
            with (
                pytest.raises(StudyError, match=r"measures on these cores.*--wait.*taskset"),
                locks.exclusive_use(two),
            ):
                pass
            os.sched_setaffinity(0, {second})
            with locks.exclusive_use(two):
                pass
        finally:
            os.sched_setaffinity(0, mine)


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_a_study_can_wait_for_the_cores(folders: tuple[Path, Path]) -> None:
    """It says once what it waits for, and goes on as soon as the other study has ended."""
    one, two = folders
    core = min(os.sched_getaffinity(0))
    sentences: list[str] = []
    with _held(_HOLD_CORE, one, core) as end:

        def note(sentence: str) -> None:
            sentences.append(sentence)
            end()

        with locks.exclusive_use(two, wait=True, on_note=note, poll_s=0.01):
            assert len(sentences) == 1
            with (
                pytest.raises(StudyError, match="measures on these cores"),
                locks.exclusive_use(one),
            ):
                pass
    assert "another autotune measures on these cores" in sentences[0]
    assert "waiting" in sentences[0]


def test_a_study_that_finds_all_free_does_not_wait(tmp_path: Path) -> None:
    """There is nothing to say then."""
    sentences: list[str] = []
    with locks.exclusive_use(tmp_path, wait=True, on_note=sentences.append):
        assert sentences == []


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_wait_can_be_interrupted(folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Ctrl-C ends it, and what was held already is free again."""
    one, two = folders
    database = tmp_path / "shared.db"
    interrupt = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    # a shell's background jobs start with Ctrl-C ignored
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _held(_HOLD_FOLDER, one, database):
            with (
                pytest.raises(KeyboardInterrupt),
                locks.exclusive_use(
                    two, database, wait=True, on_note=lambda _: interrupt.start(), poll_s=0.01
                ),
            ):
                pass
            with locks.exclusive_use(two):
                pass
    finally:
        signal.signal(signal.SIGINT, earlier)


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
    with pytest.raises(StorageError, match="make room") as refused:
        kept.check_room()
    assert refused.value.exit_code == 75


def test_a_spool_is_not_written_through_a_link(tmp_path: Path) -> None:
    """A folder of a stranger must not lead to a file of the user's."""
    kept = spool.Spool(tmp_path, "study")
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / "study.spool.jsonl").symlink_to(mine)
    with pytest.raises(StorageError, match="it is a link"):
        kept.keep({})
    with pytest.raises(StudyError, match=r"it is a link.*move it away"):
        kept.entries()
    assert mine.read_text() == "mine"


def test_a_spool_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """With its name and what to do."""
    (tmp_path / "study.spool.jsonl").mkdir()
    with pytest.raises(StudyError, match=r"study\.spool\.jsonl: it is a folder.*move it away"):
        spool.Spool(tmp_path, "study").entries()
