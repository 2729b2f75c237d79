"""How far models are from the machine's roof, under default options.

    python benchmarks/roofline.py MODEL.onnx ... [--json] [--quick]

Operations and bytes are counted from shapes; the peaks are measured in the same run, in processes
of their own; the latency is that of a duet with the default (--quick takes the median of a second
of plain runs). NAME_inputs.npz beside NAME.onnx is its input.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from inputs import workload_of

from autotune.deploy.session import SessionConfig
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload
from autotune.inspection.headroom import headroom, measure_peaks
from autotune.inspection.profile import profile_session
from autotune.inspection.reading import read_model
from autotune.measure.measurer import DuetMeasurer


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    print(
        f"{'model':24} {'Mop':>8} {'MiB moved':>9} {'ms':>8} {'GOP/s':>7} {'peak':>7} "
        f"{'GB/s peak':>9} {'roof ms':>8} {'of roof':>7}  bound"
    )
    figures = {}
    for path in given.models:
        row = check(path, quick=given.quick)
        figures[path.stem] = row
        print(
            f"{path.stem:24} {row['operations'] / 1e6:8.1f} {row['least_bytes'] / 2**20:9.1f} "
            f"{row['latency_ms']:8.3f} {row['operations_per_s'] / 1e9:7.1f} "
            f"{row['float_per_s'] / 1e9:7.1f} {row['bytes_per_s'] / 1e9:9.1f} "
            f"{row['roof_ms']:8.3f} {row['share']:7.1%}  {row['bound']}",
            flush=True,
        )
    if given.json:
        print(json.dumps(figures))


def check(path: Path, *, quick: bool) -> dict[str, Any]:
    """Returns the figures of one model."""
    model = describe(path)
    workload = workload_of(path, model)
    work = read_model(model, workload, run=True).work
    latency_ms = _latency_ms(model, workload, quick=quick)
    peaks = measure_peaks(work.least_bytes)
    return {
        "operations": work.operations,
        "int8_operations": work.int8_operations,
        "least_bytes": work.least_bytes,
        "traffic_bytes": work.traffic_bytes,
        **vars(peaks),
        **headroom(work, peaks, latency_ms).to_json(),
    }


def _latency_ms(model: Model, workload: Workload, *, quick: bool) -> float:
    """Returns the latency of a run under default options."""
    if quick:
        return profile_session(model.path, SessionConfig(), workload).run_ms
    measurer = DuetMeasurer(model, workload, max_error=1.0)
    try:
        return measurer.reference_ms
    finally:
        measurer.close()


if __name__ == "__main__":
    main()
