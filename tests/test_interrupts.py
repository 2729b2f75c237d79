"""Ctrl-C and SIGTERM end the program without a traceback, whenever they come."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.facts import sample_models

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

# Python itself shows its own words while it starts; the program begins with this import.
_PROGRAM = "import autotune.__main__ as program; print('begun', flush=True); program.main()"


def _ended_after(delay_s: float, number: signal.Signals, *arguments: str) -> tuple[int, str]:
    """Returns exit code and stderr of the program that gets a signal so long after it began."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background jobs start with Ctrl-C ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(delay_s)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        return process.returncode, errors


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
@pytest.mark.parametrize("delay_s", [0.004, 0.03, 0.08, 0.2, 0.5])
def test_a_signal_in_the_first_moments_shows_no_traceback(
    number: signal.Signals, code: int, delay_s: float
) -> None:
    ended, errors = _ended_after(delay_s, number, "spaces")
    # a shell shows 143 as well where the system ends the program, before it handles SIGTERM itself;
    # on a fast machine the program may be done before the signal
    assert ended in {code, 0, -signal.SIGTERM}
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_study_that_a_signal_ends_says_so_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    sample_models.write("lstm", tmp_path / "model.onnx")
    ended, errors = _ended_after(1.5, number, "study", "model.onnx", "--trials", "500")
    assert ended == code
    assert "Traceback" not in errors
