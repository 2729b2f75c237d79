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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from common import workload_of
from forms import measured_forms

from autotune.deploy.options import Value
from autotune.facts.model import describe
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.graph.prepare import PreparationError
from autotune.measure.outcome import FINAL_COMPARISON, Failure
from autotune.space.parameters import parse_value

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
    model = describe(path)
    workload = workload_of(path, model)
    halves = [{**values, "kept_in_float": count} for count in counts]
    try:
        for count, form in zip(
            counts, measured_forms(model, workload, halves, seconds), strict=True
        ):
            if isinstance(form, Failure):
                print(f"{count:>3} in float: {form.message}")
                continue
            yield {
                "kept_in_float": count,
                "latency": form.latency.value,
                "error": form.error,
                "memory": form.memory,
                "file_mib": form.file_mib,
            }
    except PreparationError as error:
        raise SystemExit(error.message) from None


if __name__ == "__main__":
    main()
