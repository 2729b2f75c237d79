"""What `autotune.load` costs above opening the same session by hand.

    python benchmarks/loader.py CONFIG [--json] [--quick]

Each repetition is a fresh process that has onnxruntime imported: the time of importing the loader,
reading and checking the config, and opening the session, less that of opening it directly.
"""

import argparse
import json
import statistics
import subprocess
import sys

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
    pairs = []
    for _ in range(5 if given.quick else given.processes):
        command = [sys.executable, "-c", _SCRIPT, given.config]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        pairs.append([float(word) * 1e3 for word in done.stdout.split()])
    import_ms = statistics.median(pair[0] for pair in pairs)
    load_ms = statistics.median(pair[1] for pair in pairs)
    print(f"importing the loader {import_ms:.1f} ms, loading a config {load_ms:.1f} ms")
    print(f"added to a session's creation: {import_ms + load_ms:.1f} ms")
    if given.json:
        print(json.dumps({"import_ms": import_ms, "load_ms": load_ms}))


if __name__ == "__main__":
    main()
