"""Gives hostile files to every reader: each must be refused with a sentence, or be right.

    python benchmarks/hostile.py [--quick] [--seed 0] [--json]

A sound file of each kind is changed at random (mutations.py). A reader may refuse it with an error
for users, an `AutotuneError`, or accept it where it is sound by a check of this script's own. Any
other exception, a wait of a minute, and a file accepted though it is not sound count as anything
else. The exit code is 1 if there is any.

Configs are loaded and models are described in processes of their own, which they could crash.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from hostile_readers import READERS, Reader, loaded
from hostile_world import World
from mutations import no_files

from autotune.errors import AutotuneError

_LONGEST_S = 60
# A share of the full number of mutations, for a few seconds.
_QUICK = 0.02
# What a message may have at most: more would fill a terminal.
_LONGEST_MESSAGE = 4000


@dataclass
class Row:
    """The outcomes of one reader.

    Attributes:
        tried: How many mutations it was given.
        right: How many of them it accepted, rightly.
        refused: How many it refused with a sentence.
        otherwise: Everything else: the number of the mutation, and what happened.
    """

    tried: int = 0
    right: int = 0
    refused: int = 0
    otherwise: list[str] = field(default_factory=list)


class TooLongError(Exception):
    """A reader did not come to an end."""


def main() -> int:
    """Prints the table; returns 1 if there is anything else."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a few of the mutations")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    began = time.monotonic()
    rows = run(_QUICK if given.quick else 1.0, given.seed)
    if not given.quick:
        for name, row in rows.items():
            if not row.right:  # some files are left as they are
                row.otherwise.append(f"{name}: nothing is accepted, not even a sound file")
    print(
        f"{'reader':20} {'tried':>6} {'accepted rightly':>17} {'refused cleanly':>16} anything else"
    )
    total: Counter[str] = Counter()
    for name, row in rows.items():
        counts = {"tried": row.tried, "right": row.right, "refused": row.refused}
        counts["otherwise"] = len(row.otherwise)
        total.update(counts)
        _print_row(name, counts)
    _print_row("all", total)
    for name, row in rows.items():
        for line in row.otherwise[:5]:
            print(f"{name}: {line}")
    print(f"seed {given.seed}, {time.monotonic() - began:.0f} s")
    if given.json:
        print(json.dumps({name: vars(row) for name, row in rows.items()}))
    return int(total["otherwise"] > 0)


def run(share: float, seed: int) -> dict[str, Row]:
    """Returns the outcomes of all readers, for a share of the mutations."""
    rows: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for reader in READERS:
            print(f"{reader.name} ...", file=sys.stderr, flush=True)
            rows[reader.name] = _run(reader, world, Path(folder), share, seed)
    return rows


def _run(reader: Reader, world: World, folder: Path, share: float, seed: int) -> Row:
    choose = random.Random(f"{seed} {reader.name}")
    row = Row()
    accepted = {}
    for number in range(max(2, round(reader.mutations * share))):
        path = _case(reader, world, folder / f"{reader.name} {number}")
        reader.change(world, path, choose)
        if _try(row, reader, world, path, f"mutation {number}") and reader.name == "configs":
            accepted[path] = f"mutation {number}"
        else:
            shutil.rmtree(path.parent)
    for number, make in enumerate(no_files() if reader.takes_files else []):
        path = _case(reader, world, folder / f"{reader.name} no file {number}")
        path.unlink(missing_ok=True)
        make(path)
        _try(row, reader, world, path, f"no file {number}")
    for path, outcome in loaded(list(accepted)):
        if outcome != "loaded":
            row.right -= 1
            if outcome == "refused":
                row.refused += 1
            else:
                row.otherwise.append(f"{accepted[path]}: {outcome}")
    return row


def _case(reader: Reader, world: World, case: Path) -> Path:
    """Returns the reader's file in a new copy of the sound study."""
    case.mkdir()
    world.fill(case)
    return reader.file(world, case)


def _try(row: Row, reader: Reader, world: World, path: Path, label: str) -> bool:
    """Counts what the reader makes of the file; returns whether it accepts it, rightly."""
    row.tried += 1
    try:
        problem = _in_time(lambda: reader.read(world, path))
    except AutotuneError as error:
        if 0 < len(str(error)) <= _LONGEST_MESSAGE:
            row.refused += 1
        else:
            row.otherwise.append(f"{label}: a message of {len(str(error))} characters")
    except Exception as error:  # noqa: BLE001  # it is what the script looks for
        row.otherwise.append(f"{label}: {type(error).__name__}: {str(error)[:200]}")
    else:
        if problem is None:
            row.right += 1
            return True
        row.otherwise.append(f"{label}: accepted in spite of {problem[:300]}")
    return False


def _in_time(read: Callable[[], str | None]) -> str | None:
    """Returns what `read` returns, if that does not take too long."""

    def stop(_: int, __: FrameType | None) -> NoReturn:
        raise TooLongError(f"no end after {_LONGEST_S} s")

    if not hasattr(signal, "setitimer"):
        return read()
    earlier = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S)
    try:
        return read()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)


def _print_row(name: str, counts: Any) -> None:
    print(
        f"{name:20} {counts['tried']:6} {counts['right']:17} {counts['refused']:16} "
        f"{counts['otherwise']:13}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
