"""What the pre-pass `algebra` makes of a model: nodes, latency, memory and error, with and without.

    python benchmarks/algebra.py MODEL.onnx ... [--counts] [--quick] [--json]

NAME_inputs.npz beside NAME.onnx is its input.

The rows of a model are the pass itself, and dynamic and static int8 after the pass against the same
without it. Nodes are counted in the file,
and in the graph that ONNX Runtime makes of it. An error is that of the optimised session against
the unoptimised model, without and with the pass, on the first sample. `autotune compare` measures
the two files side by side; a ratio below 1 is faster, or needs less memory, with the pass.
`--counts` leaves that out.
"""

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import program
from inputs import file_beside, workload_of

from autotune.deploy.options import Value
from autotune.deploy.telemetry import switch_off
from autotune.facts.model import describe
from autotune.graph.algebra.model import simplify
from autotune.graph.optimizers import firing_optimizers
from autotune.graph.prepare import PreparationError, Preparer

_STATIC: Mapping[str, Value] = {
    "precision": "int8_static",
    "quantized_operators": "products",
    "per_channel": True,
}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Value]]] = {
    "algebra": ("algebra", {}),
    "int8_dynamic": ("algebra", {"precision": "int8_dynamic", "per_channel": True}),
    "int8_static": ("algebra", _STATIC),
}
"""The rows of a model: the pass, and the graph parameters beside it, with it and without."""


def main() -> None:
    """Prints the rows of each model."""
    parser = program.parser_of(__doc__)
    parser.add_argument("models", metavar="MODEL.onnx", nargs="+", type=Path)
    parser.add_argument("--counts", action="store_true", help="measure no latency and no memory")
    parser.add_argument("--quick", action="store_true", help="in float alone")
    given = parser.parse_args()
    switch_off()
    print(f"onnxruntime {onnxruntime.__version__}; a ratio below 1 favours the pass")
    print(f"{'':22} {'nodes':>11} {'optimised':>11}  {'error':>15}  latency / memory")
    results = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in given.models:
            comparison = Comparison(file, folder / f"{file.stem}-cache", measures=not given.counts)
            print(comparison.headline(), flush=True)
            names = [v for v in VARIANTS if not (given.quick and "int8" in v)]
            rows = {}
            for variant in names:
                rows[variant] = comparison.row(variant)
                print(_text(variant, rows[variant]), flush=True)
            results[file.stem] = {"rules": comparison.rules, "variants": rows}
    program.print_json(given, {"models": results})


class Comparison:
    """One model with the pass and without.

    Args:
        file: The model.
        cache: Where the files are written to.
        measures: Whether latency and memory are measured too.
    """

    def __init__(self, file: Path, cache: Path, *, measures: bool) -> None:
        self._file = file
        self._model = describe(file)
        workload = workload_of(file, self._model)
        self._feed = dict(workload.feeds[0])
        self._preparer = Preparer(
            self._model, cache, workload=workload, signature=workload.signature()
        )
        self._measures = measures
        model = onnx.load(file)
        self.rules: dict[str, int] = dict(simplify(model))

    def headline(self) -> str:
        """Returns the model's name, its rules and ONNX Runtime's fusions, a line each."""
        rules = ", ".join(f"{rule} {count}" for rule, count in self.rules.items())
        fusions = ", ".join(firing_optimizers(self._model))
        return (
            f"{self._file.stem}\n    rules: {rules or 'none'}"
            f"\n    fusions of ONNX Runtime: {fusions or 'none'}"
        )

    def row(self, variant: str) -> dict[str, Any]:
        """Returns the figures of one row."""
        name, others = VARIANTS[variant]
        try:
            before = self._preparer.prepare(others).path
            after = self._preparer.prepare({**others, "pre_pass": name}).path
        except PreparationError as error:
            return {"refused": error.message}
        expected = self._answers(self._file, "ORT_DISABLE_ALL")
        row: dict[str, Any] = {
            "nodes": [_nodes(path) for path in (before, after)],
            "optimised_nodes": [self._optimised(path) for path in (before, after)],
            "errors": [
                _error(self._answers(path, "ORT_ENABLE_ALL"), expected) for path in (before, after)
            ],
        }
        return {**row, **self._measured(before, after)} if self._measures else row

    def _measured(self, before: Path, after: Path) -> dict[str, Any]:
        data = file_beside(self._file)
        command = [*program.AUTOTUNE, "compare", str(after), "--baseline", str(before), "--json"]
        command += ["--data", str(data)] if data else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not done.stdout.strip():
            return {"failure": done.stderr.strip()[-300:]}
        gains = json.loads(done.stdout)["configs"][0]["numbers"]["gains"]
        latency, memory = gains["latency_ms"], gains["peak_memory_mib"]
        return {
            "latency_ratio": [1 / latency[key] for key in ("value", "high", "low")],
            "memory_ratio": 1 / memory["value"],
        }

    def _optimised(self, file: Path) -> int:
        """Returns how many nodes ONNX Runtime makes of a model, before the layout."""
        with tempfile.TemporaryDirectory() as folder:
            written = str(Path(folder) / "optimised.onnx")
            _session(file, "ORT_ENABLE_EXTENDED", written)
            return _nodes(Path(written))

    def _answers(self, file: Path, level: str) -> list[Any]:
        outputs: list[Any] = _session(file, level).run(None, self._feed)
        return outputs


def _session(file: Path, level: str, written: str = "") -> onnxruntime.InferenceSession:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    settings.optimized_model_filepath = written
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])


def _nodes(file: Path) -> int:
    counts = Counter(n.op_type for n in onnx.load(file, load_external_data=False).graph.node)
    return counts.total() - counts["Constant"]


def _error(found: list[Any], expected: list[Any]) -> float:
    """Returns the largest relative L2 error of an output."""
    return max(
        float(np.linalg.norm(np.asarray(y, np.float64) - x) / (np.linalg.norm(x) or 1))
        for x, y in zip(expected, found, strict=True)
    )


def _text(variant: str, row: Mapping[str, Any]) -> str:
    if "refused" in row:
        return f"    {variant:18} refused: {row['refused']}"
    counts = [f"{a:5} {b:5}" for a, b in (row["nodes"], row["optimised_nodes"])]
    errors = " ".join(f"{error:7.1e}" for error in row["errors"])
    text = f"    {variant:18} {counts[0]} {counts[1]}  {errors}"
    if "latency_ratio" in row:
        value, low, high = row["latency_ratio"]
        text += f"  {value:.3f} ({low:.3f} to {high:.3f}) / {row['memory_ratio']:.2f}"
    return text + (f"  {row['failure']}" if "failure" in row else "")


if __name__ == "__main__":
    main()
