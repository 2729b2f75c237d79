"""The storage of a study: a SQLite file in its folder, or a server that many workers share.

A server may be away for a while: each call waits for it, with what the worker has measured in hand.
"""

import contextlib
import functools
import importlib
import inspect
import os
import random
import sqlite3
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
from optuna.exceptions import UpdateFinishedTrialError
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, ProgrammingError, SQLAlchemyError

from autotune.errors import MissingPackageError, RequestError, StorageError, StudyError
from autotune.process.signals import signals_later
from autotune.search.record import retry
from autotune.storage.locks import DATABASE
from autotune.storage.masking import HIDDEN
from autotune.storage.sqlite import FAULTS, Watch, check_contents, check_file

VARIABLE = "AUTOTUNE_STORAGE"
"""Environment variable that names the storage where ``--storage`` does not."""

_HEARTBEAT_S = 10
_GRACE_S = 60
# The packages of the kinds of servers.
_DRIVERS = {"postgresql": "psycopg[binary]", "grpc": "grpcio"}
# Without these a worker waits for hours for a server whose network is gone without a word.
_CONNECTION = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}

# How long a server may be away, and the pauses between the attempts to reach it.
_PATIENCE_S = 3600.0
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 8.0
_GRPC_PORT = 13000

Note = Callable[[str], None]
"""Called with a sentence for the user."""


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Two functions of the module ``time``."""

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


@dataclass(frozen=True)
class Place:
    """A storage by its URL, which may hold a password: print it with ``str`` alone."""

    url: URL

    @classmethod
    def of(cls, text: str | None, folder: Path) -> "Place":
        """Returns the storage of the URL `text`, or of the variable, or the database in `folder`.

        Raises:
            RequestError: it is no URL of a storage that can keep studies.
        """
        text = text or os.environ.get(VARIABLE)
        if not text:
            # a link in the place of the file is not followed
            return cls.of_folder(folder)
        try:
            url = make_url(text)
        except (ArgumentError, ValueError):  # the text is not printed: it may hold a password
            raise RequestError(
                "--storage must be a URL (with %40 for @, %3A for : and %2F for / in a password), "
                "such as postgresql://user@host/database or sqlite:///study.db"
            ) from None
        kind = url.get_backend_name()
        if kind != "sqlite" and "@" in f"{url.host}{url.database}":
            raise RequestError("--storage: write @ in a password as %40")
        if kind in {"http", "https", "ftp", "s3", "file"}:
            raise RequestError("a file is named by its path; download it first")
        if kind not in {"sqlite", "postgresql", "grpc"}:
            raise RequestError(
                "--storage: studies are kept in sqlite or postgresql, or behind Optuna's proxy "
                f"(grpc://HOST:PORT), not in {kind}"
            )
        if kind == "postgresql":  # the one driver that is used, whatever the URL names
            url = url.set(drivername="postgresql+psycopg")
        return cls(url)

    @classmethod
    def of_folder(cls, folder: Path) -> "Place":
        """Returns the database in a folder, whatever the characters of its name."""
        return cls(URL.create("sqlite", database=str(folder.resolve() / DATABASE)))

    @property
    def is_shared(self) -> bool:
        """Whether workers on many machines may use it at once."""
        return self.url.get_backend_name() != "sqlite"

    @property
    def text(self) -> str:
        """The URL with all its secrets."""
        return self.url.render_as_string(hide_password=False)

    @property
    def file(self) -> Path | None:
        """The database's file; None where a server keeps it."""
        return None if self.is_shared or not self.url.database else Path(self.url.database)

    def __str__(self) -> str:
        """Returns the URL without its password and other parts that may be secret."""
        if self.file is not None:
            return str(self.file)
        options = dict.fromkeys(self.url.query, HIDDEN)
        return self.url.set(query=options).render_as_string(hide_password=True)

    def __repr__(self) -> str:
        """Returns the place without secrets."""
        return f"Place({self})"


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silences Optuna's log lines and its notes that something is experimental."""
    level = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", message="Heartbeat of storage")
            yield
    finally:
        optuna.logging.set_verbosity(level)


def faults() -> tuple[type[Exception], ...]:
    """Returns the kinds of error of a database or a server that is away."""
    grpc: Any = sys.modules.get("grpc")
    return FAULTS if grpc is None else (*FAULTS, grpc.RpcError)


@contextlib.contextmanager
def storage_faults(place: Place, watch: Watch | None = None) -> Iterator[None]:
    """Turns errors of the database or the disk into a :class:`StorageError`.

    The error of the library is dropped with its text: it may hold the password.

    Args:
        watch: What watches its statements, where it is a file.
    """
    try:
        yield
    except Exception as error:
        # gRPC's kind of error is known once it is imported
        if not isinstance(error, (*faults(), sqlite3.Error, ConnectionError)):
            raise
        text = f"{error} {error.__cause__}"
        if watch is not None and "interrupted" in text:
            if not watch.has_stopped:  # it was a signal, whose exception SQLite drops
                raise KeyboardInterrupt from None
            raise StudyError(
                f"{place} is no storage of a study: reading it does not come to an end; move it "
                "away and type the same command again"
            ) from None
        if "not a database" in text or "malformed" in text:
            raise StorageError(
                f"{place} is damaged; move it away and type the same command again, "
                "or restore it from a copy"
            ) from None
        reason = "is the server there?" if place.is_shared else "is the disk full?"
        raise StorageError(
            f"the study's storage {place} failed ({type(error).__name__}: {reason}). "
            "What was measured is kept; type the same command again to go on."
        ) from None


_calls = threading.local()
"""Whether this thread is inside of a call of a storage."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Waits for a server that is away, and says so.

    Attributes:
        note: Called when the connection is lost, and when it is back.
    """

    note: Note = lambda _: None
    clock: Clock = field(default_factory=Clock)

    def call(self, act: Callable[[], Any]) -> Any:
        """Returns what `act` returns, which is called again while the server is away."""
        began_s, pause_s = self.clock.monotonic(), _FIRST_PAUSE_S
        was_lost = False
        while True:
            try:
                result = act()
            except UpdateFinishedTrialError:
                if not was_lost:
                    raise
                result = True  # the reply to the first attempt was lost
            except faults():
                if self.clock.monotonic() - began_s >= _PATIENCE_S:
                    raise
                if not was_lost:
                    self.note("Database connection lost; retrying. What was measured is kept.")
                was_lost = True
                self.clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                continue
            if was_lost:
                self.note("The database connection is back.")
            return result


def _careful(kind: type[Any], patience: Patience | None) -> type[Any]:
    """Returns a kind of storage whose calls Ctrl-C and SIGTERM do not cut through.

    An interrupt in the middle of a transaction can leave it open, and then the next one waits for
    its lock: a minute for that of a file, without end for that of a server.

    Args:
        patience: What waits for its server; None where it has none.
    """

    def careful(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:
            if getattr(_calls, "is_inside", False):
                return method(*arguments, **named)

            def once() -> Any:
                _calls.is_inside = True
                try:
                    with signals_later():
                        return method(*arguments, **named)
                finally:
                    _calls.is_inside = False

            return once() if patience is None else patience.call(once)

        return call

    methods = {
        name: careful(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        # static methods have no transactions
        if not name.startswith("__") and "self" in inspect.signature(method).parameters
    }
    if "record_heartbeat" in methods:

        def record_heartbeat(storage: Any, trial_id: int) -> None:
            with contextlib.suppress(*faults()):  # the server is away; the next one may get through
                kind.record_heartbeat(storage, trial_id)

        methods["record_heartbeat"] = record_heartbeat
    return type(f"Careful{kind.__name__}", (kind,), methods)


@contextlib.contextmanager
def open_storage(
    place: Place,
    note: Note = lambda _: None,
    *,
    clock: Clock | None = None,
    heartbeat_s: int = _HEARTBEAT_S,
    grace_s: int = _GRACE_S,
) -> Iterator[optuna.storages.BaseStorage]:
    """Opens the storage, makes it if there is none, and closes its connections in the end.

    Args:
        note: Called with a sentence when a server is away, and when it is back.
        heartbeat_s: How often a worker of a shared storage shows that it is alive.
        grace_s: A worker without a heartbeat for so long is dead, and its trial is released. A
            transaction in which a worker does nothing for so long is ended by the server.

    Raises:
        StorageError: the file is no database of Optuna, or no server answers.
        StudyError: another version of Optuna wrote it, or it holds what no study writes.
        MissingPackageError: the driver of the server's kind is not installed.
    """
    watch = None if place.is_shared else Watch()
    patience = Patience(note=note, clock=clock or Clock())
    with storage_faults(place, watch):
        try:
            if watch is not None:
                storage = _open_file(place, watch)
            elif place.url.get_backend_name() == "grpc":
                storage = _open_proxy(place, patience)
            else:
                storage = _open_server(place, patience, heartbeat_s, grace_s)
        except ImportError:
            package = _DRIVERS.get(place.url.get_backend_name(), "its driver")
            raise MissingPackageError(
                f"a package for this storage is missing: pip install '{package}'"
            ) from None
        except RuntimeError:  # how Optuna reports another schema version; its text has the URL
            raise StudyError(
                f"{place} was written by another version of Optuna. Copy it, then type: "
                "optuna storage upgrade --storage URL (with its URL in place of the word)"
            ) from None
        try:
            if watch is not None:
                check_contents(storage, str(place))
            yield storage
        finally:
            with contextlib.suppress(SQLAlchemyError):
                storage.remove_session()
            if isinstance(storage, optuna.storages.RDBStorage):
                storage.engine.dispose()
            else:
                storage.close()


@contextlib.contextmanager
def quick_commits(storage: optuna.storages.BaseStorage, place: Place) -> Iterator[None]:
    """Lets commits write to a log in the block, and not wait until the disk has them.

    A study makes some thirty commits for each trial. One that is killed loses none of them; after a
    loss of power the last ones may be missing. A storage that is no file stays as it is.
    """
    if place.file is None or not isinstance(storage, optuna.storages.RDBStorage):
        yield
        return

    def write_ahead(connection: sqlite3.Connection, _: object) -> None:
        with contextlib.suppress(sqlite3.OperationalError):  # the file system cannot share a log
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode == "wal":
                connection.execute("PRAGMA synchronous = NORMAL")

    _close_connections(storage)
    sqlalchemy.event.listen(storage.engine, "connect", write_ahead)
    try:
        yield
    finally:
        sqlalchemy.event.remove(storage.engine, "connect", write_ahead)
        _close_connections(storage)
        with (
            contextlib.suppress(sqlite3.Error),  # another process reads the file
            contextlib.closing(sqlite3.connect(place.file, timeout=0)) as connection,
        ):
            connection.execute("PRAGMA journal_mode = DELETE")


def _close_connections(storage: optuna.storages.RDBStorage) -> None:
    storage.remove_session()
    storage.engine.dispose()


def _open_proxy(place: Place, patience: Patience) -> Any:
    """Opens what `optuna.storages.run_grpc_proxy_server` serves.

    Workers behind it have no heartbeats: Optuna's proxy does not pass them on.
    """
    importlib.import_module("grpc")  # Optuna's class is imported without it, and fails later
    proxy = _careful(optuna.storages.GrpcStorageProxy, patience)(
        host=place.url.host or "localhost", port=place.url.port or _GRPC_PORT
    )
    proxy.wait_server_ready(timeout=_CONNECTION["connect_timeout"])
    return proxy


def _open_file(place: Place, watch: Watch) -> optuna.storages.RDBStorage:
    if place.file is None:
        raise RequestError("--storage: name the file of the storage, such as sqlite:///study.db")
    if place.url.query:
        raise RequestError(
            "--storage: the URL of a file has no options; leave out '?' and the rest"
        )
    check_file(place.file, watch)
    storage: optuna.storages.RDBStorage = _careful(optuna.storages.RDBStorage, None)(
        place.text, engine_kwargs={"creator": functools.partial(watch.connect, place.file)}
    )
    sqlalchemy.event.listen(storage.engine, "before_cursor_execute", watch.begin)
    return storage


def _open_server(
    place: Place, patience: Patience, heartbeat_s: int, grace_s: int
) -> optuna.storages.RDBStorage:
    """Opens a server's storage; workers that begin at once may make the same tables twice."""
    careful = _careful(optuna.storages.RDBStorage, patience)
    for pause_s in (0.2, 0.5, 1.0, None):
        try:
            storage: optuna.storages.RDBStorage = careful(
                place.text,
                engine_kwargs={"pool_pre_ping": True, "connect_args": _CONNECTION},
                heartbeat_interval=heartbeat_s,
                grace_period=grace_s,
                heartbeat_stale_trial_callback=retry(),
            )
        except (IntegrityError, ProgrammingError):
            if pause_s is None:
                raise
            time.sleep(pause_s + random.random() / 5)
        else:
            _end_forgotten_transactions(storage.engine, grace_s)
            return storage
    raise AssertionError("unreachable")


def _end_forgotten_transactions(engine: sqlalchemy.Engine, grace_s: int) -> None:
    """Makes the server end a transaction whose worker is gone; its locks stop all other workers."""

    def set_limit(connection: Any, _: object) -> None:
        connection.autocommit = True
        connection.execute(f"SET idle_in_transaction_session_timeout = '{grace_s}s'")
        connection.autocommit = False

    sqlalchemy.event.listen(engine, "connect", set_limit)
    engine.dispose()  # the first connections do not have the limit
