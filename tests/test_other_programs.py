"""What other programs take of the processors."""

import subprocess
import sys
import time

import numpy as np
import pytest

from autotune.measure.other_programs import are_busy, busy_s

_AT_S = np.arange(0, 2, 0.05).tolist()


@pytest.mark.parametrize("cores", [0.5, 1.0, 2.0])
def test_cores_that_others_hold_are_seen(cores: float) -> None:
    busy = [(2 * s, cores * s) for s in _AT_S]
    assert are_busy(_AT_S, busy, 2).all()


@pytest.mark.parametrize(
    ("all_cores", "others"),
    [
        (2.0, 0.1),  # the system's own work
        (12.0, 8.0),  # there are cores left
    ],
)
def test_others_that_take_nothing_are_none(all_cores: float, others: float) -> None:
    cores = 2 if all_cores == 2 else 16
    assert not are_busy(_AT_S, [(all_cores * s, others * s) for s in _AT_S], cores).any()


def test_a_program_that_comes_late_disturbs_what_is_near() -> None:
    busy = [(2 * s, max(0.0, s - 1)) for s in _AT_S]
    seen = are_busy(_AT_S, busy, 2)
    assert not seen[np.array(_AT_S) < 0.9].any()
    assert seen[np.array(_AT_S) > 1.1].all()


def test_too_short_a_time_says_nothing() -> None:
    assert not are_busy([0.0, 0.01], [(0.0, 0.0), (0.02, 0.01)], 2).any()


@pytest.mark.process
def test_a_real_process_is_counted_unless_it_is_ours() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as hog:
        try:
            before, mine = busy_s([]), busy_s([hog.pid])
            time.sleep(0.5)
            after, mine_after = busy_s([]), busy_s([hog.pid])
        finally:
            hog.kill()
    others, without = after[1] - before[1], mine_after[1] - mine[1]
    assert others > without + 0.02
    assert after[0] - before[0] >= others - 0.05
