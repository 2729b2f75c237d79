"""The readers of hostile files, each with a way to change its file and a check of another kind."""

import json
import math
import sqlite3
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import decoder_models
import numpy as np
from decoder_models import VOCABULARY
from hostile_world import World
from mutations import VALUES, Random, changed_bytes, changed_json, changed_npz, changed_values
from rich.console import Console

from autotune.deploy.config import TunedConfig
from autotune.deploy.records import to_plain
from autotune.facts.model import Model, describe
from autotune.facts.prompts import workload_of_prompts
from autotune.facts.workload import read
from autotune.report.changes import view_why
from autotune.report.page.sections import sections_of
from autotune.report.page.state import read_state
from autotune.report.page.writing import render_page
from autotune.report.profile import view_profile
from autotune.report.result import view_effects, view_ending, view_result
from autotune.report.terminal import renderable
from autotune.report.view import View
from autotune.results.profiling import kept_profile
from autotune.results.result import StudyResult, choose_member
from autotune.search.trial import Trial
from autotune.space.files import read_space
from autotune.space.parameters import PARAMETERS
from autotune.space.start import read_configuration

_LOAD = """
import sys, warnings, autotune
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    try:
        autotune.load(path)
        print("loaded", flush=True)
    except autotune.AutotuneError:
        print("refused", flush=True)
    except BaseException as error:
        print(type(error).__name__, str(error)[:200].replace("\\n", " "), flush=True)
"""


@dataclass(frozen=True)
class Reader:
    """A reader of files."""

    name: str
    mutations: int
    file: Callable[[World, Path], Path]
    change: Callable[[World, Path, Random], None]
    read: Callable[[World, Path], str | None]
    takes_files: bool = True


def _named(name: str) -> Callable[[World, Path], Path]:
    return lambda _, case: case / name


def _change_json(name: str) -> Callable[[World, Path, Random], None]:
    def change(world: World, path: Path, choose: Random) -> None:
        path.write_bytes(changed_json(json.loads((world.sound / name).read_bytes()), choose))

    return change


def _change_model(world: World, path: Path, choose: Random) -> None:
    path.write_bytes(changed_bytes(world.path.read_bytes(), choose))


# --- configs ---------------------------------------------------------------------------------


def _read_config(_: World, path: Path) -> str | None:
    TunedConfig.read(path)
    return None


def loaded(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yields each config with what loading it in another process came to: a word or an error."""
    left = list(paths)
    while left:
        command = [sys.executable, "-c", _LOAD, *map(str, left)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        lines = done.stdout.splitlines()
        yield from zip(left, lines, strict=False)
        left = left[len(lines) :]
        if left and done.returncode != 0:
            yield left.pop(0), f"the process ended with {done.returncode}"


# --- results, starting points, spaces, inputs, models ----------------------------------------


def _show(view: View) -> None:
    """Prints a view as a narrow terminal gets it."""
    Console(file=StringIO(), width=60).print(renderable(view))


def _read_front(_: World, path: Path) -> str | None:
    result = StudyResult.read(path.parent)
    for view in (view_result, view_effects, view_why):
        _show(view(result))
    _show(view_ending(result, ""))
    render_page(read_state(path.parent))
    choose_member(result, prefer=None, max_memory_mib=None, max_latency_ms=None)
    return None


def _read_profile(_: World, path: Path) -> str | None:
    profiling = kept_profile(path.parent)
    if profiling is None:
        return None  # a changed digest: the profile of another config
    _show(view_profile(profiling))
    state = replace(read_state(path.parent), profiling=profiling)
    assert "profile" in sections_of(state, {})
    same = to_plain(profiling) == json.loads(path.read_bytes())
    return None if same else "it was read as another profile"


def _change_start(_: World, path: Path, choose: Random) -> None:
    sound = {"intra_op_num_threads": 2, "spinning": "off", "arena": "off"}
    path.write_bytes(changed_json(sound, choose))


def _read_start(_: World, path: Path) -> str | None:
    configuration = read_configuration(path)
    values = json.loads(path.read_bytes())
    changed = {n: v for n, v in values.items() if v != PARAMETERS[n].default}
    return None if configuration.to_json() == changed else "another configuration"


_SPACE = """description = "threads"
[parameters.intra_op_num_threads]
values = [0, 1, 2, "cores"]
default = 0
needs = ["several_cores"]
[parameters.spinning]
values = ["on", "off"]
default = "on"
unless = { intra_op_num_threads = 1 }
[parameters.enable_mem_pattern]
values = [true, false]
default = true
when = { spinning = ["on", "off"] }
"""
_TOML = [
    *('"²"', "0x" + "f" * 5000, "9" * 6000, "1979-05-27", "inf", "nan", "-1", "[[]]", "{}", "true"),
    *("{ a = 1 }", "[" * 2000, '"\\ud800"', '"""', "''", "[1, 'a', 2.5]", '"' + "x" * 70_000 + '"'),
]


def _change_space(_: World, path: Path, choose: Random) -> None:
    if choose.random() < 0.3:
        path.write_bytes(changed_bytes(_SPACE.encode(), choose))
        return
    lines = _SPACE.splitlines()
    for _times in range(choose.choice((0, 1, 1, 1, 2))):
        place = choose.randrange(len(lines))
        key, equals, _value = lines[place].partition(" = ")
        kind = choose.randrange(4)
        if kind < 2 and equals:
            lines[place] = f"{key} = {choose.choice(_TOML)}"
        elif kind == 2:
            lines.insert(place, choose.choice(lines))
        else:
            lines.pop(place)
    path.write_text("\n".join(lines), encoding="utf-8")


def _read_space(_: World, path: Path) -> str | None:
    space = read_space(path)
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["parameters"]
    values = {parameter.name: list(parameter.values) for parameter in space.parameters}
    same = values == {name: table["values"] for name, table in tables.items()}
    return None if same else "another space"


def _change_npz(world: World, path: Path, choose: Random) -> None:
    path.write_bytes(changed_npz(world.samples, choose))


def _read_npz(world: World, path: Path) -> str | None:
    workload = read(world.model, path)
    with np.load(path, allow_pickle=False) as archive:
        same = all(
            np.array_equal(archive[name][i], array, equal_nan=True)
            for i, feed in enumerate(workload.feeds)
            for name, array in feed.items()
        )
    return None if same else "other arrays"


def _read_model(_: World, path: Path) -> str | None:
    model = describe(path)
    return None if model.size_bytes == path.stat().st_size else "another model"


_PROMPTS = [
    {"tokens": [1, 15, 27, 3]},
    {"held_tokens": list(range(20))},
    {"tokens": [5, 6]},
    {"held_tokens": [8, 9]},
]


def _change_prompts(_: World, path: Path, choose: Random) -> None:
    lines = [
        changed_json(line, choose) if choose.random() < 0.4 else json.dumps(line).encode()
        for line in _PROMPTS
    ]
    data = b"\n".join(lines)
    path.write_bytes(changed_bytes(data, choose) if choose.random() < 0.3 else data)


def _read_prompts(world: World, path: Path) -> str | None:
    workload = workload_of_prompts(_decoder(world.path.with_name("decoder.onnx")), path)
    ids = np.concatenate([*(feed["input_ids"].ravel() for feed in workload.feeds), *workload.held])
    return None if ids.size and ids.min() >= 0 and ids.max() < VOCABULARY else "other tokens"


@cache
def _decoder(path: Path) -> Model:
    return describe(decoder_models.write("plain", path))


# --- storages --------------------------------------------------------------------------------


def _go_on(world: World, path: Path) -> str | None:
    return trials_fault(world.go_on(path.parent))


def trials_fault(trials: Sequence[Trial]) -> str | None:
    for trial in trials:
        if (numbers := trial.measurement) is not None:
            parts = [*vars(numbers).values(), *vars(numbers.memory).values()]
            if any(isinstance(n, float) and not math.isfinite(n) for n in parts):
                return f"trial {trial.number} is not finite"
            if numbers.latency_ms <= 0:
                return f"trial {trial.number} took no time"
    return None


_ATTRIBUTES = ("study_user", "study_system", "trial_user", "trial_system")
_SCHEMAS = [
    "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i FROM n) SELECT i FROM n",
    "CREATE TRIGGER t AFTER INSERT ON trials BEGIN DELETE FROM trials; END",
    "CREATE VIRTUAL TABLE v USING fts5(x)",
    "DROP TABLE trial_values",
    "DROP TABLE alembic_version",
    "DELETE FROM version_info",
    "UPDATE version_info SET schema_version = 1",
    "UPDATE alembic_version SET version_num = 'v0.0.1'",
    "ALTER TABLE trials RENAME COLUMN state TO stat",
    """DROP TABLE studies; CREATE VIEW studies AS WITH RECURSIVE n(study_id, study_name) AS
    (SELECT 1, 'a' UNION ALL SELECT study_id + 1, 'b' FROM n) SELECT * FROM n""",
]


def _change_storage(world: World, path: Path, choose: Random) -> None:
    kind = choose.random()
    if kind < 0.1:
        path.write_bytes(changed_bytes((world.sound / path.name).read_bytes(), choose))
        return
    with sqlite3.connect(path) as connection:
        if kind < 0.2:
            connection.executescript(choose.choice(_SCHEMAS))
        elif kind < 0.4:
            _change_cell(connection, choose)
        else:
            _change_attribute(connection, choose)
    connection.close()


def _change_cell(connection: sqlite3.Connection, choose: Random) -> None:
    tables = [
        name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")
    ]
    table = choose.choice(tables)
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    rows = [row for (row,) in connection.execute(f"SELECT rowid FROM {table}")]
    if rows:
        value = choose.choice(
            [None, -1, 2**62, 0.5, "", "x" * 1000, b"\xff", "FAIL", "../x", 1e308]
        )
        change = f"UPDATE OR IGNORE {table} SET {choose.choice(columns)} = ? WHERE rowid = ?"
        try:
            connection.execute(change, (value, choose.choice(rows)))
        except sqlite3.IntegrityError:
            connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (choose.choice(rows),))


def _change_attribute(connection: sqlite3.Connection, choose: Random) -> None:
    tables = [f"{name}_attributes" for name in _ATTRIBUTES]
    places = [
        (table, row, text)
        for table in tables
        for row, text in connection.execute(f"SELECT rowid, value_json FROM {table}")
    ]
    table, row, text = choose.choice(places)
    kind = choose.randrange(4)
    if kind == 0:
        changed: Any = changed_bytes(text.encode(), choose).decode(errors="replace")
    elif kind == 1 and text[:1] in "[{":
        changed = json.dumps(changed_values(json.loads(text), choose))
    else:
        changed = json.dumps(choose.choice(VALUES))
    if choose.random() < 0.15:
        key = choose.choice(["duplicate_of", "worker", "fixed_params", "constraints", "failure"])
        connection.execute(f"UPDATE OR IGNORE {table} SET key = ? WHERE rowid = ?", (key, row))
    connection.execute(f"UPDATE {table} SET value_json = ? WHERE rowid = ?", (changed, row))


READERS: tuple[Reader, ...] = (
    Reader("configs", 180, _named("best.json"), _change_json("best.json"), _read_config),
    Reader("front.json", 100, _named("front.json"), _change_json("front.json"), _read_front),
    Reader("profile.json", 40, _named("profile.json"), _change_json("profile.json"), _read_profile),
    Reader("starting points", 60, _named("start.json"), _change_start, _read_start),
    Reader("search spaces", 80, _named("space.toml"), _change_space, _read_space),
    Reader("inputs (.npz)", 100, _named("inputs.npz"), _change_npz, _read_npz),
    Reader("prompts", 100, _named("prompts.jsonl"), _change_prompts, _read_prompts),
    Reader("storages", 80, _named("study.db"), _change_storage, _go_on),
    Reader("models", 24, _named("model.onnx"), _change_model, _read_model, takes_files=False),
)
"""All readers, those of whole studies last but for the models, which take a process each."""
