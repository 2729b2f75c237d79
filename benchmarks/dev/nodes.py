"""The time of each node in float and in int8, and what `slow_in_float` makes of it.

    python benchmarks/dev/nodes.py [MODEL.onnx ...] [--rows N] [--seconds S] [--json] [--quick]

Each model gets the pre-pass algebra. Nodes that ONNX Runtime computes by one kernel are one row;
the rows that differ most between both forms are printed, then latency, memory and error of float,
int8 and int8 with slow nodes in float, over the default's, measured as a study measures them.
Without models it takes a MobileNetV3 and an EfficientNet of random weights. NAME_inputs.npz beside
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
from exporter_models import efficientnet, mobilenet_v3
from forms import measured_forms

from autotune.deploy.options import Value
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload
from autotune.graph import by_time
from autotune.graph.float_model import FloatModel
from autotune.graph.int8 import StaticOptions, quantiser
from autotune.graph.intermediates import Intermediates
from autotune.graph.passes import PASSES
from autotune.measure.outcome import FINAL_COMPARISON, Failure

_INT8: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}
_FORMS: Mapping[str, Mapping[str, Value]] = {
    "float": {"pre_pass": "algebra"},
    "int8": {"pre_pass": "algebra", **_INT8},
    "slow in float": {"pre_pass": "algebra", **_INT8, "slow_in_float": True},
}


def main() -> None:
    """Prints the tables of each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rows", type=int, default=16, help="rows of a table")
    parser.add_argument(
        "--seconds", type=float, default=FINAL_COMPARISON.time_cap_s, help="of measuring"
    )
    parser.add_argument("--quick", action="store_true", help="small models, one second")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    seconds = 1.0 if given.quick else given.seconds
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in given.models or _made(Path(folder), blocks=2 if given.quick else 8):
            model = describe(path)
            workload = workload_of(path, model)
            print(path.stem)
            rows = _times(path, workload, Path(folder))
            for row in sorted(rows, key=lambda row: -abs(row["gain_us"]))[: given.rows]:
                print(
                    f"  {row['float_us']:8.0f} us in float {_text(row['int8_us']):>8} in int8  "
                    f"{row['kept']:5}  {row['operators']} {row['shape']}"
                )
            forms = _measured(model, workload, seconds)
            for name, form in forms.items():
                print("  " + "  ".join([f"{name:13}", *(f"{k} {v}" for k, v in form.items())]))
            found[path.stem] = {"rows": rows, "forms": forms}
    if given.json:
        print(json.dumps(found))


def _made(folder: Path, blocks: int) -> list[Path]:
    builders = {"mobilenet_v3": mobilenet_v3, "efficientnet": efficientnet}
    paths = [folder / f"{name}.onnx" for name in builders]
    for path, build in zip(paths, builders.values(), strict=True):
        onnx.save(build(blocks), path)
    return paths


def _text(time_us: float) -> str:
    return f"{time_us:.0f} us" if time_us < by_time.NEVER_US else "none"


def _times(path: Path, workload: Workload, folder: Path) -> list[dict[str, Any]]:
    """Returns a row for each unit of the model after the pre-pass."""
    passed = folder / f"{path.stem}-algebra.onnx"
    PASSES["algebra"].run(path, passed)
    ready = FloatModel.ready(passed, workload.calibration, Intermediates())
    ranges = ready.ranges("minmax", folder / "calibrated.onnx")
    model = ready.load()
    how = StaticOptions(per_channel=True)
    times = by_time.measure(model, workload.calibration, quantiser(ranges, how))
    in_float = set(by_time.best_in_float(model, times))
    shapes = {
        item.name: [size.dim_value or size.dim_param for size in item.type.tensor_type.shape.dim]
        for item in model.graph.value_info
    }
    rows = []
    for unit, members in enumerate(times.units):
        nodes = [model.graph.node[i] for i in members]
        spent = times.float_us[unit], times.int8_us[unit]
        rows.append(
            {
                "operators": "+".join(node.op_type for node in nodes),
                "shape": shapes.get(nodes[-1].output[0], ""),
                "float_us": spent[0],
                "int8_us": spent[1],
                "gain_us": 0.0 if spent[1] >= by_time.NEVER_US else spent[0] - spent[1],
                "kept": "float" if nodes[0].name in in_float else "int8",
            }
        )
    return rows


def _measured(model: Model, workload: Workload, seconds: float) -> dict[str, Any]:
    """Returns the figures of each form, over the default's."""
    forms: dict[str, Any] = {}
    measured = measured_forms(model, workload, _FORMS.values(), seconds)
    for name, form in zip(_FORMS, measured, strict=True):
        if isinstance(form, Failure):
            forms[name] = {"failure": form.message}
            continue
        forms[name] = {
            "latency": round(form.latency.value, 3),
            "low": round(form.latency.low, 3),
            "high": round(form.latency.high, 3),
            "memory": round(form.memory, 2),
            "error": float(f"{form.error:.2g}"),
        }
    return forms


if __name__ == "__main__":
    main()
