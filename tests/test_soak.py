"""A study in which processes misbehave at random leaves nothing behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_SOAK = Path(__file__).parent.parent / "benchmarks" / "soak.py"


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_study_full_of_faults_leaves_nothing() -> None:
    """Every trial ends with an outcome, and no process, file, descriptor or thread is left."""
    done = subprocess.run(
        [sys.executable, str(_SOAK), "--quick", "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["trials"] == 24
    assert sum(figures["outcomes"].values()) == 24
    assert {"measured", "crashed", "timeout", "killed", "protocol"} <= figures["outcomes"].keys()
    left = {name: figures[name] for name in ("processes", "files", "descriptors", "threads")}
    assert left == dict.fromkeys(left, 0)
    # what libraries load on their first use lies within it, a leak in each trial does not
    assert figures["growth_mib"] < 15
