"""What smoothing and its companions bring to int8: error, latency, nodes that must stay in float.

    python benchmarks/dev/smoothing.py [MODEL.onnx ...] [--seconds S] [--quick] [--json]

The sample transformer with planted outliers (one channel in fifty thirty times as large) is always
measured. Each configuration is prepared as a study prepares it and measured against the default as
a study measures it. The second table has the least number of nodes in float that keeps the error
within 0.05 and 0.1. NAME_inputs.npz beside NAME.onnx is its input.
"""

import argparse
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from common import workload_of
from onnx import helper, numpy_helper

from autotune.deploy.options import Value
from autotune.facts.hardware import hardware
from autotune.facts.model import Model, describe
from autotune.facts.sample_models import transformer
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import FINAL_COMPARISON, Measurement
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve

_RARE, _LARGE = 50, 30.0
_LIMITS = (0.05, 0.1)
_PATIENCE = FINAL_COMPARISON.patience_s / FINAL_COMPARISON.time_cap_s

_PRECISIONS: Mapping[str, Mapping[str, Value]] = {
    "dynamic": {"precision": "int8_dynamic", "per_channel": True},
    "static": {
        "precision": "int8_static",
        "per_channel": True,
        "quantized_operators": "products",
    },
}
_CHANGES: Mapping[str, Mapping[str, Value]] = {
    "as it is": {},
    **{f"smoothed {alpha}": {"smoothing": alpha} for alpha in ("0.5", "0.7", "0.85")},
    "float outputs": {"float_outputs": True},
    "float outputs, smoothed 0.5": {"float_outputs": True, "smoothing": "0.5"},
    "one scale": {"per_channel": False},
    "one scale, smoothed 0.5": {"per_channel": False, "smoothing": "0.5"},
}
_RANGES: Mapping[str, Mapping[str, Value]] = {
    "full": {},
    "reduced": {"reduce_range": True},
    "unsigned": {"unsigned_weights": True},
    "exact": {"session.x64quantprecision": "1"},
}


def main() -> None:
    """Prints two tables for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--seconds", type=float, default=2.0, help="of measuring a configuration")
    parser.add_argument("--quick", action="store_true", help="fewer configurations, a small sample")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        sample = Path(folder) / "transformer_with_outliers.onnx"
        onnx.save(with_outliers(_sample(quick=given.quick)), sample)
        for path in [*given.models, sample]:
            results[path.stem] = _check(path, given.seconds, quick=given.quick)
    if given.json:
        print(json.dumps(results))


def _sample(*, quick: bool) -> onnx.ModelProto:
    return transformer(width=64 if quick else 256, heads=4, layers=1 if quick else 4)


def with_outliers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a model of the same answers, the inputs of whose products have outlier channels.

    Every input of products with constant weights is multiplied, one channel in fifty by thirty, and
    the weights are divided by the same.
    """
    weights = {item.name: item for item in model.graph.initializer}
    planted: dict[str, str] = {}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            tensor, weight = node.input[0], weights[node.input[1]]
            values = numpy_helper.to_array(weight)
            scale = np.ones(values.shape[0], np.float32)
            scale[::_RARE] = _LARGE
            weight.CopyFrom(numpy_helper.from_array(values / scale[:, None], weight.name))
            if tensor not in planted:
                planted[tensor] = f"{tensor}_planted"
                name = f"{tensor}_scale"
                model.graph.initializer.append(numpy_helper.from_array(scale, name))
                nodes.append(helper.make_node("Mul", [tensor, name], [planted[tensor]]))
            node.input[0] = planted[tensor]
        nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def _check(path: Path, seconds: float, *, quick: bool) -> dict[str, Any]:
    """Prints and returns the figures of one model."""
    with tempfile.TemporaryDirectory() as scratch:
        bench = _Bench(path, Path(scratch), seconds)
        try:
            print(f"\n{path.stem}: latency over the default's, error")
            rows = list(bench.rows(quick=quick))
            print("  least nodes in float for an error of")
            counts = list(bench.nodes_in_float(quick=quick))
        finally:
            bench.close()
    return {"configurations": rows, "nodes_in_float": counts}


class _Bench:
    """Measures configurations of one model."""

    def __init__(self, path: Path, scratch: Path, seconds: float) -> None:
        self._model: Model = describe(path)
        workload = workload_of(path, self._model)
        self._effort = replace(FINAL_COMPARISON, time_cap_s=seconds, patience_s=_PATIENCE * seconds)
        self._preparer = Preparer(
            self._model, scratch, workload=workload, signature=workload.signature()
        )
        self._measurer = DuetMeasurer(self._model, workload, self._preparer, max_error=math.inf)
        self._space = resolve(find_space("quantize"), self._model, workload, hardware())
        base = self._measure(BASELINE)
        if not isinstance(base, Measurement):
            raise SystemExit(f"{path} cannot be measured: {base}")
        self._base = base

    def close(self) -> None:
        """Ends the processes."""
        self._measurer.close()

    def _measure(self, configuration: Configuration) -> Measurement | str:
        """Returns the measurement, or why there is none."""
        try:
            outcome = self._measurer.measure(configuration, self._effort)
        except PreparationError as error:
            return error.message
        return outcome if isinstance(outcome, Measurement) else outcome.message

    def _offered(self, values: Mapping[str, Value]) -> bool:
        """Returns whether a study of the preset `quantize` could try these values of the graph."""
        graph = Configuration.of(values).graph
        return self._space.nearest(graph.to_json()) == graph

    def rows(self, *, quick: bool) -> Iterator[dict[str, Any]]:
        """Yields the figures of each precision with each change and each range of weights."""
        for precision, base in _PRECISIONS.items():
            for change, more in _CHANGES.items():
                for kind, last in _RANGES.items():
                    values = {**base, **more, **last}
                    skipped = quick and (
                        kind != "exact" or change not in {"as it is", "smoothed 0.5"}
                    )
                    if skipped or not self._offered(values):
                        continue
                    row: dict[str, Any] = {"precision": precision, "change": change, "range": kind}
                    outcome = self._measure(Configuration.of(values))
                    text = outcome if isinstance(outcome, str) else ""
                    if isinstance(outcome, Measurement):
                        row["latency"] = outcome.ratio.value / self._base.ratio.value
                        row["error"] = outcome.fidelity.error
                        text = f"{row['latency']:.2f} {row['error']:.4f}"
                    row["failure"] = None if isinstance(outcome, Measurement) else outcome
                    print(f"  {precision:8} {change:28} {kind:8} {text[:80]}", flush=True)
                    yield row

    def nodes_in_float(self, *, quick: bool) -> Iterator[dict[str, Any]]:
        """Yields how many nodes must stay in float, with exact products, for each limit."""
        changes = list(_CHANGES)[:6]
        for precision, base in _PRECISIONS.items():
            for change in changes[:2] if quick else changes:
                values = {**base, **_CHANGES[change], **_RANGES["exact"]}
                if not self._offered(values):
                    continue
                least = self._least_counts(values, quick=quick)
                texts = ", ".join(f"{limit}: {least[limit]}" for limit in _LIMITS)
                print(f"  {precision:8} {change:28} {texts}", flush=True)
                yield {
                    "precision": precision,
                    "change": change,
                    "least": {str(limit): least[limit] for limit in _LIMITS},
                }

    def _least_counts(self, values: Mapping[str, Value], *, quick: bool) -> dict[float, int | None]:
        """Returns the least count of nodes in float for each limit; None where none will do."""
        least: dict[float, int | None] = dict.fromkeys(_LIMITS)
        counts = [int(count) for count in GRAPH_PARAMETERS["kept_in_float"].domain.choices]
        for count in counts[:2] if quick else counts:
            configuration = {**values, "kept_in_float": count}
            if not self._offered(configuration):
                continue
            outcome = self._measure(Configuration.of(configuration))
            if not isinstance(outcome, Measurement):
                continue
            for limit in _LIMITS:
                if least[limit] is None and outcome.fidelity.error <= limit:
                    least[limit] = count
            if None not in least.values():
                break
        return least


if __name__ == "__main__":
    main()
