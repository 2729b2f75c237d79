"""Blocks and transactions that Ctrl-C and SIGTERM do not cut through."""

import contextlib
import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import optuna
import pytest
import sqlalchemy

from autotune.process.signals import signal_waits, signals_later
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.storage.locks import DATABASE

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Both signals raise a KeyboardInterrupt."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM)
    earlier = [signal.signal(number, interrupt) for number in numbers]
    yield
    for number, handler in zip(numbers, earlier, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_a_signal_waits_for_the_end_of_the_block(number: signal.Signals) -> None:
    done = []

    def work() -> None:
        with signals_later():
            with signals_later():
                signal.raise_signal(number)
                done.append("inner")
            assert signal_waits()
            done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["inner", "outer"]
    assert not signal_waits()


def test_a_second_signal_does_not_wait() -> None:
    """A block may wait for a server that never answers."""
    done = []

    def work() -> None:
        with signals_later():
            signal.raise_signal(signal.SIGINT)
            done.append("first")
            signal.raise_signal(signal.SIGTERM)
            done.append("second")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["first"]
    assert not signal_waits()


def test_a_signal_comes_through_where_the_block_fails() -> None:
    """The failure may be of the signal's making, as where it stops a long statement."""

    def work() -> None:
        with signals_later():
            signal.raise_signal(signal.SIGINT)
            raise OSError

    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_block_in_another_thread_holds_no_signal_back() -> None:
    """Python runs the handlers in the main thread alone."""
    outcomes = []

    def work() -> None:
        with signals_later():
            outcomes.append(signal_waits())

    thread = threading.Thread(target=work)
    with signals_later():
        thread.start()
        thread.join()
    assert outcomes == [False]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[optuna.Trial]:
    """A running trial in a file, of whose commits every one is interrupted after it was asked."""
    place = Place.of(None, tmp_path)
    with quiet_optuna(), open_storage(place) as storage:
        study = optuna.create_study(storage=storage, study_name="study")
        trial = study.ask()
        assert isinstance(storage, optuna.storages.RDBStorage)
        sqlalchemy.event.listen(
            storage.engine, "commit", lambda _: signal.raise_signal(signal.SIGINT)
        )
        yield trial


def test_an_interrupt_leaves_no_transaction_open(trial: optuna.Trial, tmp_path: Path) -> None:
    """What was to be written is written, and the next writer need not wait for the file's lock."""
    with pytest.raises(KeyboardInterrupt):
        trial.set_user_attr("seed", 3)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE, timeout=0)) as other:
        assert other.execute("SELECT value_json FROM trial_user_attributes").fetchall() == [("3",)]
        other.execute("DELETE FROM trial_user_attributes")
        other.commit()
