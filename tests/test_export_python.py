"""The exported Python file, in processes in which autotune cannot be imported."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_cases import FEED, HOSTILE, copy_config, expected_answers
from test_config import make_config

from autotune.export.targets import TARGETS
from autotune.export.writing import export


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A frozen config in the folder of a study."""
    return copy_config(tmp_path)


_VENDORED = """
import sys
sys.modules["autotune"] = None  # an import of it fails
import numpy, load_best
feed = dict(numpy.load(sys.argv[1]))
session = load_best.load(strict=True)
numpy.savez(sys.argv[2], *session.run(None, feed))
options = load_best.session_options()
print(options.intra_op_num_threads)
print(load_best.load(threads=2).get_session_options().intra_op_num_threads)
print(load_best.run_options().get_run_config_entry("memory.enable_memory_arena_shrinkage"))
try:
    load_best.load(threads=-1)
except load_best.ConfigError as error:
    print(type(error).__name__)
"""


@pytest.mark.process
def test_python_without_autotune(config: Path, tmp_path: Path) -> None:
    """A process in which autotune cannot be imported loads the config, with equal answers."""
    export(config, "python")
    np.savez(tmp_path / "feed.npz", **FEED)  # type: ignore[arg-type]
    files = [str(tmp_path / name) for name in ("feed.npz", "answers.npz")]
    command = [sys.executable, "-c", _VENDORED, *files]
    environment = {**os.environ, "PYTHONPATH": str(config.parent)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["1", "2", "cpu:0", "ConfigError"]
    answers = np.load(tmp_path / "answers.npz")
    for answer, expected in zip(answers.values(), expected_answers(config), strict=True):
        np.testing.assert_array_equal(answer, expected)


_TWO_VENDORED = """
import sys, warnings
sys.modules["autotune"] = None
import load_best
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    load_best.load()
(warning,) = caught
print(warning.category is load_best.ConfigWarning, warning.filename)
"""


@pytest.mark.process
def test_the_vendored_loader_warns_as_ours_does(config: Path) -> None:
    """Another machine is named, and the warning points at the caller."""
    data = json.loads(config.read_text(encoding="utf-8"))
    data["environment"]["cpu"] = "another cpu"
    config.write_text(json.dumps(data), encoding="utf-8")
    export(config, "python")
    done = subprocess.run(
        [sys.executable, "-c", _TWO_VENDORED],
        env={**os.environ, "PYTHONPATH": str(config.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "<string>"]


NAMES = ['a"""\nraise SystemExit\n"""b.json', "a'''b.json", "a\\", HOSTILE]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_the_config_is_no_code(name: str) -> None:
    """A file may have any name; it stays a name in the exported file."""
    rendering = TARGETS["python"](make_config(), name, "model")
    ((file, text),) = rendering.texts.items()
    assert file.removesuffix(".py").isidentifier()
    names = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and node.value == name
    ]
    assert names == [name]
    assert "raise SystemExit" not in text.split("\n")
