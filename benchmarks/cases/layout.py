"""One convolution, and the same with max-pooling: where the change of layout eats the gain.

    python benchmarks/cases/layout.py [--size S] [--json]

ONNX Runtime computes convolutions in a blocked layout (NCHWc). What follows in the plain layout
costs a passage over all numbers. Behind a single convolution that passage is over its whole
output; max-pooling has the blocked layout too, and leaves a quarter of the numbers to it. Prints
the share of the layout changes as `autotune inspect` measures it, at the full graph level and at
extended, for both models.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.deploy.session import SessionConfig
from autotune.facts.generated import generate
from autotune.inspection.inspect import inspect_model
from autotune.inspection.profile import REORDERS, profile_session

_CHANNELS = 32


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--size", type=int, default=256, help="height and width of the image")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = {}
    print("model           reorders  share at all  share at extended  ms at all  ms at extended")
    with tempfile.TemporaryDirectory() as folder:
        for name, pooled in (("convolution", False), ("with pooling", True)):
            row = check(Path(folder) / "model.onnx", given.size, pooled=pooled)
            figures[name] = row
            print(
                f"{name:15} {row['reorders']:8.0f} {row['share_all']:13.1%} "
                f"{row['share_extended']:18.1%} {row['all_ms']:10.3f} {row['extended_ms']:15.3f}"
            )
    for name, row in figures.items():
        print(f"{name}: {row['finding'] or 'no finding'}")
    if given.json:
        print(json.dumps(figures))


def check(path: Path, size: int, *, pooled: bool) -> dict[str, Any]:
    """Returns the figures of one model."""
    onnx.save(model(size, pooled=pooled), path)
    inspection = inspect_model(path)
    default = inspection.profile
    if default is None:
        raise SystemExit(inspection.failure)
    workload = generate(inspection.model, {})
    level = SessionConfig(options={"graph_optimization_level": "ORT_ENABLE_EXTENDED"})
    extended = profile_session(path, level, workload)
    findings = [f for f in inspection.findings if f.name == "layout reorders"]
    effects = [f.effect for f in findings if f.effect is not None]
    return {
        "reorders": default.overhead(REORDERS).nodes,
        "share_all": default.overhead(REORDERS).share,
        "share_extended": extended.overhead(REORDERS).share,
        "all_ms": default.run_ms,
        "extended_ms": extended.run_ms,
        "finding": findings[0].evidence if findings else "",
        "without_layout": effects[0].latency.value if effects else None,
    }


def model(size: int, *, pooled: bool) -> onnx.ModelProto:
    """Returns a model of one 3 x 3 convolution, with max-pooling behind it or without."""
    random = np.random.default_rng(0)
    weight = random.normal(0, 0.2, (_CHANNELS, 3, 3, 3)).astype(np.float32)
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [helper.make_node("Conv", ["image", "weight"], ["y"], **same)]
    if pooled:
        half: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes.append(helper.make_node("MaxPool", ["y"], ["pooled"], **half))
    side = size // 2 if pooled else size
    graph = helper.make_graph(
        nodes,
        "layout",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])],
        [
            helper.make_tensor_value_info(
                nodes[-1].output[0], TensorProto.FLOAT, [1, _CHANNELS, side, side]
            )
        ],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    main()
