"""What shapes fixed in the file bring before the pre-passes and before int8.

    python benchmarks/dev/static_shapes.py [MODEL.onnx ...] [--seconds S] [--json] [--quick]

For each model and each set of graph parameters, with open dimensions, with dimensions fixed in the
session (`fixed_dimensions`) and with shapes fixed in the file (`static_shapes`): latency, memory
and error over the default's, measured as a study measures them, and nodes after ONNX Runtime's
level extended. Without models it takes a text encoder with open dimensions. NAME_inputs.npz beside
NAME.onnx is its input.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from common import workload_of
from forms import measured_forms

from autotune.deploy.options import Value
from autotune.facts import sample_models
from autotune.facts.feeds import Feed
from autotune.facts.model import describe
from autotune.graph import static_shapes
from autotune.graph.model_file import write_optimised
from autotune.graph.passes import PASSES
from autotune.measure.outcome import FINAL_COMPARISON, Failure

_SETS: Mapping[str, Mapping[str, Value]] = {
    "algebra": {"pre_pass": "algebra"},
    "onnxslim": {"pre_pass": "onnxslim"},
    "algebra, int8_static": {"pre_pass": "algebra", "precision": "int8_static"},
    "onnxslim, int8_dynamic": {"pre_pass": "onnxslim", "precision": "int8_dynamic"},
}
_QUICK = ("algebra",)
_SHAPES: Mapping[str, Mapping[str, Value]] = {
    "": {},
    ", in the session": {"fixed_dimensions": True},
    ", in the file": {"static_shapes": True},
}


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=FINAL_COMPARISON.time_cap_s, help="of measuring"
    )
    parser.add_argument("--quick", action="store_true", help="one pre-pass, one second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = _QUICK if given.quick else tuple(_SETS)
    tables = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in given.models or [_encoder(Path(folder))]:
            print(path.stem)
            tables[path.stem] = _table(path, names, 1.0 if given.quick else given.seconds)
    if given.json:
        print(json.dumps(tables))


def _encoder(folder: Path) -> Path:
    path = folder / "encoder.onnx"
    onnx.save(sample_models.transformer(), path)
    return path


def _table(path: Path, names: tuple[str, ...], seconds: float) -> dict[str, Any]:
    """Returns, and prints, the figures of each set with each kind of shapes."""
    model = describe(path)
    workload = workload_of(path, model)
    sets = {
        name + shapes: {**_SETS[name], **fixed}
        for name in names
        for shapes, fixed in _SHAPES.items()
    }
    rows: dict[str, Any] = {}
    measured = measured_forms(model, workload, sets.values(), seconds)
    for (name, parameters), form in zip(sets.items(), measured, strict=True):
        if isinstance(form, Failure):
            rows[name] = {"failure": form.message}
        else:
            rows[name] = {
                "latency": round(form.latency.value, 3),
                "low": round(form.latency.low, 3),
                "high": round(form.latency.high, 3),
                "memory": round(form.memory, 2),
                "error": float(f"{form.error:.2g}"),
            }
            if not {"precision", "fixed_dimensions"} & parameters.keys():
                rows[name]["nodes"] = _nodes(
                    path,
                    parameters,
                    workload.calibration if "static_shapes" in parameters else None,
                )
        print("  " + "  ".join([f"{name:38}", *(f"{k} {v}" for k, v in rows[name].items())]))
    return rows


def _nodes(path: Path, parameters: Mapping[str, Value], samples: tuple[Feed, ...] | None) -> int:
    """Returns how many nodes are left after the pre-pass and ONNX Runtime's level extended."""
    with tempfile.TemporaryDirectory() as folder:
        source, passed, optimised = (Path(folder) / f"{name}.onnx" for name in "abc")
        if samples is not None:
            static_shapes.fix(path, source, samples)
        PASSES[str(parameters["pre_pass"])].run(path if samples is None else source, passed)
        write_optimised(passed, optimised, "ORT_ENABLE_EXTENDED")
        return sum(node.op_type != "Constant" for node in onnx.load(optimised).graph.node)


if __name__ == "__main__":
    main()
