"""Error against latency over the number of nodes that stay in float.

    python benchmarks/dev/sensitivity.py MODEL.onnx [--fix KEY=VALUE ...] [--most K]
                                         [--json] [--quick]

For int8 static of convolutions and matrix products, per channel, or what `--fix` makes of it: the k
most sensitive nodes stay in float, for k from 0 up. Each model is
prepared as a study prepares it and measured against the default as a study measures it. The last
lines have the least latency within an error. NAME_inputs.npz beside NAME.onnx is
its input.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import workload_of

from autotune.deploy.options import Value
from autotune.facts.model import describe
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import FINAL_COMPARISON, Measurement
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import parse_value

_PATIENCE = FINAL_COMPARISON.patience_s / FINAL_COMPARISON.time_cap_s
_LIMITS = (0.02, 0.05, 0.1, 0.2)
_STATIC: Mapping[str, Value] = {
    "precision": "int8_static",
    "per_channel": True,
    "quantized_operators": "products",
}


def main() -> None:
    """Prints a row for each k, and the least latency within each error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--fix", action="append", default=[], help="a value of the graph parameters"
    )
    parser.add_argument("--quick", action="store_true", help="every other k")
    parser.add_argument("--most", type=int, help="largest k")
    parser.add_argument(
        "--seconds", type=float, default=FINAL_COMPARISON.time_cap_s, help="of measuring"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    pairs = [text.partition("=")[::2] for text in given.fix]
    values = {**_STATIC, **{name: parse_value(name, text) for name, text in pairs}}
    counts = [
        int(count)
        for count in GRAPH_PARAMETERS["kept_in_float"].domain.choices
        if given.most is None or int(count) <= given.most
    ]
    rows = []
    for row in check(given.model, counts[::2] if given.quick else counts, values, given.seconds):
        rows.append(row)
        print(
            f"{row['kept_in_float']:>3} in float: "
            f"latency {row['latency']:.3f}, error {row['error']:.3g}, "
            f"memory {row['memory']:.2f}, file {row['file_mib']:.1f} MiB",
            flush=True,
        )
    for limit in _LIMITS:
        print(f"error up to {limit}: {_fastest(rows, limit)}")
    if given.json:
        print(json.dumps(rows))


def _fastest(rows: Sequence[Mapping[str, Any]], limit: float) -> str:
    """Returns the least latency within an error."""
    fitting = [row["latency"] for row in rows if row["error"] <= limit]
    return f"{min(fitting):.3f}" if fitting else "none"


def check(
    path: Path, counts: list[int], values: Mapping[str, Value], seconds: float
) -> Iterator[dict[str, Any]]:
    """Gives the figures for each count, over the default's; each measured for so long."""
    effort = replace(FINAL_COMPARISON, time_cap_s=seconds, patience_s=_PATIENCE * seconds)
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
                configuration = Configuration.of({**values, "kept_in_float": count})
                outcome = measurer.measure(configuration, effort)
                if not isinstance(outcome, Measurement):
                    print(f"{count:>3} in float: {outcome.message}")
                    continue
                size_bytes = preparer.prepare(configuration.graph.to_json()).size_bytes
                yield {
                    "kept_in_float": count,
                    "latency": outcome.ratio.value / base.ratio.value,
                    "error": outcome.fidelity.error,
                    "memory": outcome.peak_memory_mib / base.peak_memory_mib,
                    "file_mib": size_bytes / 2**20,
                }
        except PreparationError as error:
            raise SystemExit(error.message) from None
        finally:
            measurer.close()


if __name__ == "__main__":
    main()
