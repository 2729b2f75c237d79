"""Error against latency over the number of nodes that stay in float.

    python benchmarks/sensitivity.py MODEL.onnx [--operators products] [--json] [--quick]

For int8 static, per channel: the k most sensitive nodes stay in float, for k from 0 up. Each model
is prepared as a study does it and measured against the default in a study's duet. NAME_inputs.npz
beside NAME.onnx is its input.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

from autotune.facts import workload as workloads
from autotune.facts.model import describe
from autotune.graph.precision_options import OPTIONS
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import RUN_OFF, Measurement
from autotune.space.candidate import BASELINE, Candidate


def main() -> None:
    """Prints a row for each k."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--operators", default="products", help="which are quantised")
    parser.add_argument("--quick", action="store_true", help="every other k")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model = describe(given.model)
    data = given.model.with_name(f"{given.model.stem}_inputs.npz")
    workload = workloads.read(model, data) if data.exists() else workloads.generate(model, {})
    rows = []
    counts = OPTIONS["kept_in_float"].domain.choices
    with tempfile.TemporaryDirectory() as scratch:
        preparer = Preparer(model, Path(scratch), workload=workload, signature=workload.signature())
        measurer = DuetMeasurer(model, workload, preparer, max_error=math.inf)
        try:
            base = measurer.measure(BASELINE, RUN_OFF)
            assert isinstance(base, Measurement)
            for count in counts[::2] if given.quick else counts:
                candidate = Candidate.of(
                    {
                        "precision": "int8_static",
                        "per_channel": True,
                        "quantized_operators": given.operators,
                        "kept_in_float": count,
                    }
                )
                found = measurer.measure(candidate, RUN_OFF)
                if not isinstance(found, Measurement):
                    print(f"{count:>3} in float: {found.message}")
                    continue
                row = {
                    "kept_in_float": count,
                    "latency": found.ratio.value / base.ratio.value,
                    "error": found.fidelity.error,
                    "memory": found.peak_memory_mib / base.peak_memory_mib,
                    "file_mib": preparer.prepare(candidate.graph.to_json()).size_bytes / 2**20,
                }
                rows.append(row)
                print(
                    f"{count:>3} in float: latency {row['latency']:.3f}, error {row['error']:.3g}, "
                    f"memory {row['memory']:.2f}, file {row['file_mib']:.1f} MiB",
                    flush=True,
                )
        except PreparationError as error:
            raise SystemExit(error.message) from None
        finally:
            measurer.close()
    if given.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
