"""Other programs beside a benchmark, made on purpose."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NEIGHBOUR = """
import os, random, sys, time
chance = random.Random(sys.argv[1])
# one that was left over would burn its core in the next benchmark too
while os.getppid() == int(sys.argv[3]):
    time.sleep(chance.uniform(0.05, 1.0))
    end = time.perf_counter() + chance.uniform(0.05, float(sys.argv[2]))
    while time.perf_counter() < end:
        pass
"""


@contextmanager
def neighbours(count: int, seed: int, longest_s: float = 0.5) -> Iterator[None]:
    """Keeps processes beside us that burn a core each at random intervals.

    Args:
        count: How many.
        seed: Random seed.
        longest_s: Longest time of work; pauses last up to 1 s. With 1 s a core is busy half of the
            time.
    """
    script, rest = [sys.executable, "-c", _NEIGHBOUR], [str(longest_s), str(os.getpid())]
    processes = [subprocess.Popen([*script, f"{seed} {i}", *rest]) for i in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()
