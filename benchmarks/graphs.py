"""What pre-passes and storage forms do to models: the table that people make by hand.

    python benchmarks/graphs.py MODEL.onnx ... [--trials 40] [--json] [--quick] [OPTIONS OF STUDY]

Runs `autotune study --space graphs` on each model and prints operators, parameters, file size,
latency and memory over the default's, and the error. NAME_inputs.npz beside NAME.onnx is its input.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import program
from inputs import file_beside


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="15 trials")
    parser.add_argument("--json", action="store_true")
    given, options = parser.parse_known_args()
    tables = {}
    for path in given.models:
        rows = study(path, 15 if given.quick else given.trials, options)
        tables[path.stem] = rows
        print(f"\n{path.stem}")
        print(
            f"  {'graph':52} {'operators':>9} {'parameters':>11} {'file MiB':>8} "
            f"{'latency':>7} {'memory':>6} {'error':>7}"
        )
        for row in rows:
            print(f"  {row['words']:52} {_numbers(row)}", flush=True)
    if given.json:
        print(json.dumps(tables))


def study(path: Path, trials: int, options: list[str]) -> list[dict[str, Any]]:
    """Returns the rows of one model."""
    data = file_beside(path)
    inputs = [] if data is None else ["--data", str(data)]
    with tempfile.TemporaryDirectory() as folder:
        command = [*program.AUTOTUNE, "study", str(path), *inputs]
        command += ["--space", "graphs", "--trials", str(trials), "--out", folder, "--json"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{path}: {done.stderr}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)["graphs"]
    return rows


def _numbers(row: dict[str, Any]) -> str:
    if row["latency"] is None:
        return str(row["failure"])[:80]
    size = f"{row['size_bytes'] / 2**20:.1f}"
    return (
        f"{row['operators'] or 0:>9} {row['parameters'] or 0:>11} {size:>8} "
        f"{row['latency']:7.2f} {row['memory']:6.2f} {row['error']:7.1g}"
    )


if __name__ == "__main__":
    main()
