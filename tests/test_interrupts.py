"""Ctrl-C and SIGTERM end the program without a traceback, whenever they come."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from brief_studies import Program

from autotune.facts import sample_models

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(os.name != "posix", reason="signals are POSIX"),
]

# Python itself shows its own words while it starts; the program begins with this import.
_PROGRAM = "import autotune.__main__ as program; print('begun', flush=True); program.main()"
_BOTH = pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)


@_BOTH
@pytest.mark.parametrize("delay_s", [0.004, 0.08, 0.5])
def test_a_signal_in_the_first_moments_shows_no_traceback(
    number: signal.Signals, code: int, delay_s: float
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, "spaces"],
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
    # a shell shows 143 as well where the system ends the program, before it handles SIGTERM itself;
    # on a fast machine the program may be done before the signal
    assert process.returncode in {code, 0, -signal.SIGTERM}
    assert "Traceback" not in errors


@pytest.mark.slow
def test_an_interrupted_study_keeps_what_it_has(tmp_path: Path) -> None:
    sample_models.write("lstm", tmp_path / "model.onnx")
    study = Program(tmp_path, "--trials", "200")
    study.wait_for_trials()
    study.process.send_signal(signal.SIGTERM)
    assert study.process.wait(timeout=60) == 143, study.words()
    assert "Traceback" not in study.words()
    again = "autotune study model.onnx --set early_stop=no --space session --trials 200"
    assert again in " ".join(study.words().split())
    folder = tmp_path / "model.autotune"
    assert json.loads((folder / "best.json").read_text(encoding="utf-8"))["evidence"]
    front = json.loads((folder / "front.json").read_text(encoding="utf-8"))
    assert front["complete"] is False
    assert front["trials"] >= study.reported()
    assert list((folder / "samples").iterdir())
    assert (tmp_path / "printed.txt").read_text(encoding="utf-8")
