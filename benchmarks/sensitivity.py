"""Error against latency over the number of nodes that stay in float.

    python benchmarks/sensitivity.py MODEL.onnx [--operators products] [--most K] [--json] [--quick]

For int8 static, per channel: the k most sensitive nodes stay in float, for k from 0 up. Each model
is prepared as a study prepares it and measured against the default as a study measures it.
NAME_inputs.npz beside NAME.onnx is its input.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from inputs import workload_of

from autotune.facts.model import describe
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import RUN_OFF, Measurement
from autotune.space.candidate import BASELINE, Candidate

_PATIENCE = RUN_OFF.patience_s / RUN_OFF.time_cap_s


def main() -> None:
    """Prints a row for each k."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--operators", default="products", help="which are quantised")
    parser.add_argument("--quick", action="store_true", help="every other k")
    parser.add_argument("--most", type=int, help="largest k")
    parser.add_argument("--seconds", type=float, default=RUN_OFF.time_cap_s, help="of measuring")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    counts = [
        int(count)
        for count in GRAPH_PARAMETERS["kept_in_float"].domain.choices
        if given.most is None or int(count) <= given.most
    ]
    rows = []
    counts = counts[::2] if given.quick else counts
    for row in check(given.model, counts, given.operators, given.seconds):
        rows.append(row)
        print(
            f"{row['kept_in_float']:>3} in float: latency {row['latency']:.3f}, "
            f"error {row['error']:.3g}, memory {row['memory']:.2f}, file {row['file_mib']:.1f} MiB",
            flush=True,
        )
    if given.json:
        print(json.dumps(rows))


def check(
    path: Path, counts: list[int], operators: str, seconds: float
) -> Iterator[dict[str, float]]:
    """Gives the figures for each count, over the default's; each measured for so long."""
    effort = replace(RUN_OFF, time_cap_s=seconds, patience_s=_PATIENCE * seconds)
    model = describe(path)
    workload = workload_of(path, model)
    with tempfile.TemporaryDirectory() as scratch:
        preparer = Preparer(model, Path(scratch), workload=workload, signature=workload.signature())
        measurer = DuetMeasurer(model, workload, preparer, max_error=math.inf)
        try:
            base = measurer.measure(BASELINE, effort)
            if not isinstance(base, Measurement):
                raise SystemExit(f"{path} cannot be measured: {base.message}")
            for count in counts:
                candidate = _candidate(operators, count)
                outcome = measurer.measure(candidate, effort)
                if not isinstance(outcome, Measurement):
                    print(f"{count:>3} in float: {outcome.message}")
                    continue
                yield {
                    "kept_in_float": count,
                    "latency": outcome.ratio.value / base.ratio.value,
                    "error": outcome.fidelity.error,
                    "memory": outcome.peak_memory_mib / base.peak_memory_mib,
                    "file_mib": preparer.prepare(candidate.graph.to_json()).size_bytes / 2**20,
                }
        except PreparationError as error:
            raise SystemExit(error.message) from None
        finally:
            measurer.close()


def _candidate(operators: str, count: int) -> Candidate:
    """Returns the int8 static candidate that keeps so many nodes in float."""
    return Candidate.of(
        {
            "precision": "int8_static",
            "per_channel": True,
            "quantized_operators": operators,
            "kept_in_float": count,
        }
    )


if __name__ == "__main__":
    main()
