"""ONNX Runtime's telemetry is off wherever autotune imports it, unless the user wants it."""

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from small_models import BUILDERS
from test_config import make_config
from test_loader import write_config


def _run(script: str, folder: Path, *arguments: str, **variables: str) -> str:
    """Returns what a fresh process prints whose home and temporary folder are below `folder`."""
    for name in ("home", "tmp"):
        (folder / name).mkdir()
    kept = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    kept |= {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": ""}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


def _files(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    path = tmp_path / "model" / "best.onnx"
    onnx.save(BUILDERS["lstm"](), path)
    return path


@pytest.mark.process
def test_loading_a_config_leaves_no_trace(model: Path, tmp_path: Path) -> None:
    config = write_config(model, make_config())
    script = "import sys, autotune; print(type(autotune.load(sys.argv[1])).__name__)"
    assert "Session" in _run(script, tmp_path, str(config))
    assert _files(tmp_path / "home") == []
    assert _files(tmp_path / "tmp") == []


@pytest.mark.process
def test_describing_the_runtime_leaves_no_trace(tmp_path: Path) -> None:
    """The driver of a study imports ONNX Runtime for its version."""
    _run("from autotune.facts.runtime import runtime; runtime()", tmp_path)
    assert _files(tmp_path) == []


@pytest.mark.process
def test_a_user_can_leave_it_on(tmp_path: Path) -> None:
    """The variable of ONNX Runtime is not touched where it is set."""
    script = "import os, autotune.deploy.runtime; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    assert _run(script, tmp_path, ORT_DISABLE_TELEMETRY="0") == "0"
