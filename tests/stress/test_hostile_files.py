"""Hostile files at random, for every reader: each is refused with a sentence, or is right.

    AUTOTUNE_STRESS=5 pytest tests/stress/test_hostile_files.py    # five times as many

A sound file of each kind is changed at random (mutations.py). A reader may refuse it with an error
for users, an `AutotuneError`, or accept it where it is sound by a check of another kind. Any other
exception, a wait of a minute, and a file accepted though it is not sound are failures.

Configs are loaded and models are described in processes of their own, which they could crash.
"""

import random
import shutil
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
from hostile_readers import READERS, Reader, loaded
from hostile_world import World
from mutations import no_files
from share import SHARE

from autotune.errors import AutotuneError

pytestmark = pytest.mark.stress

_LONGEST_S = 60
# What a message may have at most: more would fill a terminal.
_LONGEST_MESSAGE = 4000


class TooLongError(Exception):
    """A reader did not come to an end."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A finished study, with everything that a reader may read."""
    return World(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_a_hostile_file_is_refused_or_right(reader: Reader, world: World, tmp_path: Path) -> None:
    """Some of the files are left as they are, and these are accepted."""
    choose = random.Random(f"0 {reader.name}")
    accepted, problems = [], []
    for number in range(round(reader.mutations * SHARE)):
        path = _case(reader, world, tmp_path / f"mutation {number}")
        reader.change(world, path, choose)
        if (problem := _problem(reader, world, path)) is None:
            accepted.append(path)
        elif problem:
            problems.append(f"{path.parent.name}: {problem}")
        if problem or reader.name != "configs":
            shutil.rmtree(path.parent)
    for number, make in enumerate(no_files() if reader.takes_files else []):
        path = _case(reader, world, tmp_path / f"no file {number}")
        path.unlink(missing_ok=True)
        make(path)
        if problem := _problem(reader, world, path):
            problems.append(f"{path.parent.name}: {problem}")
    if reader.name == "configs":
        for path, outcome in loaded(accepted):
            if outcome not in {"loaded", "refused"}:
                problems.append(f"{path.parent.name}: {outcome}")
    assert not problems
    assert accepted, "not even a sound file is accepted"


def _case(reader: Reader, world: World, case: Path) -> Path:
    """Returns the reader's file in a new copy of the sound study."""
    case.mkdir()
    world.fill(case)
    return reader.file(world, case)


def _problem(reader: Reader, world: World, path: Path) -> str | None:
    """Returns what is wrong with how the file is read.

    None where it is accepted rightly, an empty text where it is refused with a sentence.
    """

    def stop(_: int, __: FrameType | None) -> NoReturn:
        raise TooLongError(f"no end after {_LONGEST_S} s")

    earlier = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
    try:
        fault = reader.read(world, path)
    except AutotuneError as error:
        size = len(str(error))
        return "" if 0 < size <= _LONGEST_MESSAGE else f"a message of {size} characters"
    except Exception as error:  # noqa: BLE001  # it is what the test looks for
        return f"{type(error).__name__}: {str(error)[:200]}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
    return None if fault is None else f"accepted in spite of {fault[:300]}"
