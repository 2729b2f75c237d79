"""A PostgreSQL server for tests, on loopback, from the programs that the system has."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "pass-word-that-must-not-show"
_USER = "autotune"
_PLACES = ("/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt")


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    folder: Path

    def log(self) -> str:
        """Returns the last lines that the server wrote."""
        return "\n".join((self.folder / "log").read_text().splitlines()[-20:])

    def url(self, database: str, port: int | None = None) -> str:
        self.run(f"CREATE DATABASE {database}")
        return f"postgresql://{_USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{database}"

    def run(self, statement: str) -> None:
        import psycopg

        place = f"host=127.0.0.1 port={self.port} dbname=postgres user={_USER}"
        with psycopg.connect(f"{place} password={PASSWORD}", autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def server(*, durable: bool = False) -> Iterator[Server]:
    """Starts a server and ends it; skips the test where there is none to start.

    Only a `durable` one writes to the disk before it answers.
    """
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL's server is not installed (apt-get install postgresql)")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        folder.chmod(0o755)
        data, words = folder / "data", folder / "words"
        data.mkdir(mode=0o700)
        words.write_text(PASSWORD)
        user = _unprivileged()
        if user is not None:
            for path in (folder, data, words):
                shutil.chown(path, user)
        port = _free_port()
        make = [str(programs / "initdb"), "-D", str(data), "-U", _USER, "-A", "scram-sha-256"]
        _run([*make, f"--pwfile={words}", "--no-sync"], user, folder)
        fsync = "on" if durable else "off"
        options = f"-p {port} -h 127.0.0.1 -k {folder} -c fsync={fsync}"
        control = [str(programs / "pg_ctl"), "-D", str(data), "-w"]
        _run([*control, "-o", options, "-l", str(folder / "log"), "start"], user, folder)
        try:
            yield Server(port, folder)
        finally:
            _run([*control, "-m", "immediate", "stop"], user, folder)


def find_programs() -> Path | None:
    """Returns the folder of the server's programs; None where there is none."""
    initdb = shutil.which("initdb")
    if initdb and shutil.which("pg_ctl"):
        return Path(initdb).resolve().parent
    for place in _PLACES:
        for folder in sorted(Path(place).glob("*/bin"), reverse=True):
            if (folder / "initdb").exists() and (folder / "pg_ctl").exists():
                return folder
    return None


def _unprivileged() -> str | None:
    """Returns a user to run as; the server refuses to run as root."""
    if sys.platform == "win32" or os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name).pw_name
    return None


def _run(command: list[str], user: str | None, folder: Path) -> None:
    subprocess.run(
        command, user=user, cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=60
    )


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
