"""Error against latency over the number of nodes that stay in float, for both rankings of nodes.

    python benchmarks/sensitivity.py MODEL.onnx [--fix KEY=VALUE ...] [--most K] [--json] [--quick]

For int8 static of convolutions and matrix products, per channel, or what `--fix` makes of it: the k
most sensitive nodes stay in float, for k from 0 up, by each value of `ranking`. Each model is
prepared as a study prepares it and measured against the default as a study measures it. The last
lines have the least latency of each ranking within an error. NAME_inputs.npz beside NAME.onnx is
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

from inputs import workload_of

from autotune.deploy.options import Value
from autotune.facts.model import describe
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import RUN_OFF, Measurement
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.parameters import parse_value

_PATIENCE = RUN_OFF.patience_s / RUN_OFF.time_cap_s
_RANKINGS = tuple(str(value) for value in GRAPH_PARAMETERS["ranking"].domain.choices)
_LIMITS = (0.02, 0.05, 0.1, 0.2)
_STATIC: Mapping[str, Value] = {
    "precision": "int8_static",
    "per_channel": True,
    "quantized_operators": "products",
}


def main() -> None:
    """Prints a row for each k and ranking, and which ranking is faster at the same error."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--fix", action="append", default=[], help="a value of the graph half")
    parser.add_argument("--quick", action="store_true", help="every other k")
    parser.add_argument("--most", type=int, help="largest k")
    parser.add_argument("--seconds", type=float, default=RUN_OFF.time_cap_s, help="of measuring")
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
            f"{row['kept_in_float']:>3} in float by {row['ranking']:7}: "
            f"latency {row['latency']:.3f}, error {row['error']:.3g}, "
            f"memory {row['memory']:.2f}, file {row['file_mib']:.1f} MiB",
            flush=True,
        )
    for limit in _LIMITS:
        print(f"error up to {limit}: {_fastest(rows, limit)}")
    if given.json:
        print(json.dumps(rows))


def _fastest(rows: Sequence[Mapping[str, Any]], limit: float) -> str:
    """Returns the least latency within an error, for each ranking."""
    texts = []
    for ranking in _RANKINGS:
        fitting = [
            row["latency"]
            for row in rows
            if row["error"] <= limit and (row["ranking"] == ranking or not row["kept_in_float"])
        ]
        texts.append(f"{ranking} {min(fitting):.3f}" if fitting else f"{ranking} none")
    return ", ".join(texts)


def check(
    path: Path, counts: list[int], values: Mapping[str, Value], seconds: float
) -> Iterator[dict[str, Any]]:
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
                for ranking in _RANKINGS if count else _RANKINGS[:1]:
                    half = {**values, "kept_in_float": count, "ranking": ranking}
                    candidate = Candidate.of(half)
                    outcome = measurer.measure(candidate, effort)
                    if not isinstance(outcome, Measurement):
                        print(f"{count:>3} in float by {ranking:7}: {outcome.message}")
                        continue
                    size_bytes = preparer.prepare(candidate.graph.to_json()).size_bytes
                    yield {
                        "kept_in_float": count,
                        "ranking": ranking,
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
