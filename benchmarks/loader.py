"""What `autotune.load` costs above opening the same session by hand.

    python benchmarks/loader.py CONFIG [--json] [--quick]

Each repetition is a fresh process that has onnxruntime imported: the time of importing the loader,
reading and checking the config, and opening the session, less that of opening it directly. The
memory is what the process holds more after all of this but the session itself (Linux alone; Python
keeps the loader compiled, as pip does when it installs a package).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from autotune.deploy.telemetry import switch_off

_SCRIPT = """
import sys, time
import onnxruntime
began = time.perf_counter()
import autotune
autotune.load
imported = time.perf_counter()
path = sys.argv[1]
from pathlib import Path
from autotune.deploy.config import TunedConfig
from autotune.deploy.opening import open_session
config = TunedConfig.read(Path(path))
model = Path(path).parent / config.model.file
open_session(model, config.session)          # the first one warms the page cache
loads, opens = [], []
for _ in range(5):
    start = time.perf_counter()
    autotune.load(path)
    middle = time.perf_counter()
    open_session(model, config.session)
    loads.append(middle - start)
    opens.append(time.perf_counter() - middle)
print(imported - began, sorted(loads)[2] - sorted(opens)[2])
"""
_MEMORY_SCRIPT = """
import re, sys
import onnxruntime

def held_kib():
    with open("/proc/self/status") as status:
        return int(re.search(r"VmRSS:\\s+(\\d+) kB", status.read())[1])

onnxruntime.SessionOptions()
before = held_kib()
import autotune
autotune.session_options(sys.argv[1])
print(held_kib() - before)
"""


def main() -> None:
    """Prints the median over processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("config")
    parser.add_argument("--quick", action="store_true", help="5 processes")
    parser.add_argument("--processes", type=int, default=15, help="repetitions")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    switch_off()  # the processes below inherit it
    processes = 5 if given.quick else given.processes
    with tempfile.TemporaryDirectory() as compiled:
        # as in an installed package, the modules are compiled already in all processes but one
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        _printed(_SCRIPT, given.config, environment)
        times = [_printed(_SCRIPT, given.config, environment) for _ in range(processes)]
        memory = [_printed(_MEMORY_SCRIPT, given.config, environment) for _ in range(processes)]
    import_ms = statistics.median(pair[0] for pair in times) * 1e3
    load_ms = statistics.median(pair[1] for pair in times) * 1e3
    memory_mib = statistics.median(kib for (kib,) in memory) / 1024
    print(f"importing the loader {import_ms:.1f} ms, loading a config {load_ms:.1f} ms")
    print(f"added to a session's creation: {import_ms + load_ms:.1f} ms, {memory_mib:.2f} MiB")
    if given.json:
        summary = {"import_ms": import_ms, "load_ms": load_ms, "memory_mib": memory_mib}
        print(json.dumps(summary))


def _printed(script: str, config: str, environment: dict[str, str]) -> list[float]:
    """Returns the numbers that a fresh process prints."""
    command = [sys.executable, "-c", script, config]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


if __name__ == "__main__":
    main()
