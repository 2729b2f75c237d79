"""How long a duet should be, and what it costs to record the first run of a turn, which is cold.

    python benchmarks/turns.py [MODEL.onnx ...] [--processes 10] [--seconds 3.2] [--json] [--quick]

The default and one thread are measured beside the default, each in several fresh processes, in
duets that do not end before their time is up: once with an unrecorded run at the beginning of each
turn (warm), and once without one (cold). Printed are the run time of the reference and the ratio of
the candidate's to it, and by how much the ratio scatters from process to process where the same
duets are cut off after an eighth, a quarter, a half of their time. NAME_inputs.npz beside NAME.onnx
is its input; without a model, one that `autotune.facts.sample_models` builds is taken.

The last line has by model, pair and kind of turns "reference_ms", "ratio" and "scatter" (standard
deviation of logarithms, by seconds).
"""

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from inputs import sample_cnn, workload_of
from raw_turns import Raw, ratios_of, turns_of

from autotune.deploy.session import SessionConfig
from autotune.facts.model import describe
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Measurement

_PAIRS = {"same": SessionConfig(), "threads": SessionConfig(options={"intra_op_num_threads": 1})}
_LONG_RUN_MS = {"warm": math.inf, "cold": 0.0}
_SHARES = (0.125, 0.25, 0.5, 1.0)


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--processes", type=int, default=10, help="of each pair")
    parser.add_argument("--seconds", type=float, default=3.2, help="of a duet")
    parser.add_argument("--quick", action="store_true", help="4 processes")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    processes = 4 if given.quick else given.processes
    figures = {}
    with tempfile.TemporaryDirectory() as scratch:
        # the processes that measure have a working directory of their own
        for path in [path.resolve() for path in given.models] or [sample_cnn(Path(scratch))]:
            figures[path.stem] = measure(path, Path(scratch) / path.stem, processes, given.seconds)
            show(path.stem, figures[path.stem])
    if given.json:
        print(json.dumps(figures))


def measure(path: Path, folder: Path, processes: int, seconds: float) -> dict[str, Any]:
    """Returns the figures of a model by pair and kind of turns."""
    model = describe(path)
    duets: dict[tuple[str, str], list[Raw]] = {
        (pair, kind): [] for pair in _PAIRS for kind in _LONG_RUN_MS
    }
    measurer = DuetMeasurer(model, workload_of(path, model), max_error=np.inf, samples=folder)
    try:
        for number in range(processes):
            for (pair, kind), raw in duets.items():
                effort = Effort(
                    time_cap_s=seconds,
                    patience_s=seconds,
                    half_width=0.0,
                    loud_share=1.0,
                    long_run_ms=_LONG_RUN_MS[kind],
                )
                outcome = measurer.measure_session(path, _PAIRS[pair], effort)
                if not isinstance(outcome, Measurement):
                    raise SystemExit(f"{path.name} could not be measured: {outcome.message}")
                with np.load(folder / str(outcome.samples)) as archive:
                    raw.append(dict(archive))
            sys.stderr.write(f"\r{path.stem}: process {number + 1} of {processes}")
    finally:
        measurer.close()
        sys.stderr.write("\n")
    return {
        pair: {kind: summarise(duets[pair, kind], seconds) for kind in _LONG_RUN_MS}
        for pair in _PAIRS
    }


def summarise(duets: list[Raw], seconds: float) -> dict[str, Any]:
    """Returns the figures of the duets of one kind."""
    ratios = [ratios_of(raw) for raw in duets]
    reference_ms = [float(np.median(turns_of(raw, "reference"))) / 1e6 for raw in duets]
    return {
        "reference_ms": float(np.median(reference_ms)),
        "ratio": float(np.median([np.median(own) for own in ratios])),
        "scatter": {
            f"{share * seconds:g}": float(
                np.std([np.log(np.median(own[: math.ceil(share * len(own))])) for own in ratios])
            )
            for share in _SHARES
        },
    }


def show(name: str, figures: dict[str, Any]) -> None:
    """Prints the table of a model."""
    cuts = list(figures["same"]["warm"]["scatter"])
    print(f"{name:24}{'reference':>12}{'ratio':>8}   scatter from process to process after")
    print(f"{'':24}{'':12}{'':8}" + "".join(f"{cut + ' s':>9}" for cut in cuts))
    for pair, kinds in figures.items():
        for kind, row in kinds.items():
            scatter = "".join(f"{row['scatter'][cut]:9.1%}" for cut in cuts)
            print(f"  {pair:9}{kind:13}{row['reference_ms']:9.2f} ms{row['ratio']:8.3f}{scatter}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
