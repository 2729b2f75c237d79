"""A network whose weights became subnormal, as weight decay and long training make them.

    python benchmarks/cases/subnormal.py [--width W] [--trials N] [--json]

Two networks of the same shape, one with normal weights, one with nine tenths of them below 1e-38.
Prints the latency of both, what `autotune inspect` finds, and whether the config that a study
chooses treats subnormal numbers as zero.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.inspection.inspect import Inspection, inspect_model
from autotune.study.options import StudyOptions
from autotune.study.tune import tune

_LAYERS = 4
_SUBNORMAL_SHARE = 0.9
_OPTION = "session.set_denormal_as_zero"


def main() -> None:
    """Prints what inspection and study say of both networks."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--trials", type=int, default=8, help="of the study")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = check(Path(folder), given.width, given.trials)
    print(
        f"latency {figures['normal_ms']:.3f} ms with normal weights, "
        f"{figures['subnormal_ms']:.3f} ms with subnormal ones\n"
        f"inspect: {figures['evidence']}\n"
        f"  as zero: {figures['as_zero']:.2f} of the latency "
        f"({figures['as_zero_low']:.2f} to {figures['as_zero_high']:.2f})\n"
        f"study: best.json {'sets' if figures['chosen'] else 'does not set'} {_OPTION}, "
        f"{figures['speedup']:.2f} times as fast as the default"
    )
    if given.json:
        print(json.dumps(figures))


def check(folder: Path, width: int, trials: int) -> dict[str, Any]:
    """Returns the figures of both networks.

    Args:
        folder: Where models and studies are written.
        width: Width of the layers.
        trials: Trials of the study.
    """
    normal, subnormal = folder / "normal.onnx", folder / "subnormal.onnx"
    onnx.save(network(width, 0.0), normal)
    onnx.save(network(width, _SUBNORMAL_SHARE), subnormal)
    inspection = inspect_model(subnormal)
    finding = next(f for f in inspection.findings if f.name == "subnormal weights")
    if finding.effect is None:
        raise SystemExit(f"the remedy could not be measured: {finding.failure}")
    space = folder / "space.toml"
    space.write_text(
        f'description = "subnormal numbers"\n[parameters."{_OPTION}"]\n'
        'values = ["0", "1"]\ndefault = "0"\nneeds = ["subnormals"]\n'
    )
    result = tune(StudyOptions.of(subnormal, trials=trials, space=str(space)))
    return {
        "normal_ms": _latency_ms(inspect_model(normal)),
        "subnormal_ms": _latency_ms(inspection),
        "evidence": finding.evidence,
        "as_zero": finding.effect.latency.value,
        "as_zero_low": finding.effect.latency.low,
        "as_zero_high": finding.effect.latency.high,
        "chosen": _OPTION in result.best.configuration,
        "speedup": result.best.evidence.speedup.value,
    }


def network(width: int, share: float) -> onnx.ModelProto:
    """Returns layers of matrix products, with this share of their weights subnormal."""
    random = np.random.default_rng(0)
    nodes, weights = [], []
    name = "x"
    for layer in range(_LAYERS):
        weight = random.normal(0, 1 / np.sqrt(width), (width, width)).astype(np.float32)
        weight[random.random(weight.shape) < share] *= np.float32(1e-38)
        weights.append(numpy_helper.from_array(weight, f"weight_{layer}"))
        nodes.append(helper.make_node("MatMul", [name, f"weight_{layer}"], [f"y_{layer}"]))
        name = f"y_{layer}"
    shape = [16, width]
    graph = helper.make_graph(
        nodes,
        "subnormal",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _latency_ms(inspection: Inspection) -> float:
    if inspection.headroom is None:
        raise SystemExit(inspection.failure)
    return inspection.headroom.latency_ms


if __name__ == "__main__":
    main()
