"""The exported Python file, in processes in which autotune cannot be imported."""

import ast
import json
from pathlib import Path

import numpy as np
import pytest
from command_line import printed
from export_cases import FEED, HOSTILE, expected_answers
from test_config import make_config

from autotune.export.targets import TARGETS
from autotune.export.writing import export

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
def test_python_without_autotune(frozen_config: Path, tmp_path: Path) -> None:
    """A process in which autotune cannot be imported loads the config, with equal answers."""
    export(frozen_config, "python")
    np.savez(tmp_path / "feed.npz", **FEED)  # type: ignore[arg-type]
    files = [tmp_path / name for name in ("feed.npz", "answers.npz")]
    said = printed(_VENDORED, *files, PYTHONPATH=str(frozen_config.parent))
    assert said.split() == ["1", "2", "cpu:0", "ConfigError"]
    answers = np.load(tmp_path / "answers.npz")
    for answer, expected in zip(answers.values(), expected_answers(frozen_config), strict=True):
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
def test_the_vendored_loader_warns_as_ours_does(frozen_config: Path) -> None:
    """Another machine is named, and the warning points at the caller."""
    data = json.loads(frozen_config.read_text(encoding="utf-8"))
    data["environment"]["cpu"] = "another cpu"
    frozen_config.write_text(json.dumps(data), encoding="utf-8")
    export(frozen_config, "python")
    said = printed(_TWO_VENDORED, PYTHONPATH=str(frozen_config.parent))
    assert said.split() == ["True", "<string>"]


NAMES = ['a"""\nraise SystemExit\n"""b.json', "a'''b.json", "a\\", HOSTILE]


@pytest.mark.parametrize("name", NAMES)
def test_the_name_of_the_config_is_no_code(name: str) -> None:
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
