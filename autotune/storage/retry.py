"""The database of a shared study may be away for a while: what it is asked for is tried again."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import optuna
from sqlalchemy.exc import SQLAlchemyError


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Two functions of the module ``time``."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


FAULTS = (SQLAlchemyError, optuna.exceptions.StorageInternalError)


# How long a database may be away, and the pauses between the attempts to reach it.
_PATIENCE_S = 180.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0

T = TypeVar("T")


def until_available(act: Callable[[], T], clock: Clock, note: Callable[[str], None]) -> T:
    """Returns what `act` returns, which is called again while the database is away.

    Args:
        act: Does something with the database; it may be called again after it failed in between.
        note: Called with a sentence when the connection is lost, and when it is back.

    Raises:
        Exception: the database is still away after minutes.
    """
    began_s, pause_s = clock.monotonic(), _FIRST_PAUSE_S
    was_lost = False
    while True:
        try:
            result = act()
        except FAULTS:
            if clock.monotonic() - began_s >= _PATIENCE_S:
                raise
            if not was_lost:
                note("Database connection lost; retrying.")
            was_lost = True
            clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        else:
            if was_lost:
                note("The database connection is back.")
            return result
