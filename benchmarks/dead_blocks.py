"""What int8 gains on a network some of whose residual blocks have no effect.

    python benchmarks/dead_blocks.py [--quick] [--json]

Residual networks with none, a quarter and half of their blocks dead: the last convolution of such a
block is zero, as training begins it and sometimes leaves it. Convolutions that take floats in the
written file are counted, and `autotune compare` measures the file beside the model. For comparison
the same model is quantised by ONNX Runtime's own `quantize_static`, with the same samples.
"""

import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import program
from onnx import helper, numpy_helper

from autotune.deploy.options import Value
from autotune.deploy.telemetry import switch_off
from autotune.facts.generated import generate
from autotune.facts.graphs import operator_of
from autotune.facts.model import describe
from autotune.graph.calibration import CalibrationReader
from autotune.graph.prepare import Preparer

_SIZE, _BLOCKS = 56, 8
_STATIC: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}


def main() -> None:
    """Prints a row for each network."""
    parser = program.parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="a small network")
    arguments = parser.parse_args()
    switch_off()
    channels = 8 if arguments.quick else 64
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for dead in (0, _BLOCKS // 4, _BLOCKS // 2):
            rows.append(_row(Path(folder) / str(dead), channels, dead))
            print(
                "{dead} of {blocks} blocks dead: {in_float} of {convolutions} convolutions in "
                "float, ratio {ratio:.2f}; by ONNX Runtime's own tool {tool:.2f}".format(
                    **rows[-1]
                ),
                flush=True,
            )
    program.print_json(arguments, {"rows": rows})


def _row(folder: Path, channels: int, dead: int) -> dict[str, Any]:
    """Returns what becomes of a network with so many dead blocks."""
    from onnxruntime.quantization import QuantFormat, quantize_static

    folder.mkdir()
    source, tool = folder / "model.onnx", folder / "tool.onnx"
    onnx.save(network(channels, dead), source)
    model = describe(source)
    workload = generate(model, {})
    preparer = Preparer(model, folder / "cache", workload=workload, signature=workload.signature())
    with preparer.child.kept():
        made = preparer.prepare(_STATIC).path
    quantize_static(
        str(source), str(tool), CalibrationReader(workload.calibration),
        quant_format=QuantFormat.QDQ, per_channel=True,
    )  # fmt: skip
    graph = onnx.load(made).graph
    makers = {name: node for node in graph.node for name in node.output}
    takes = [makers.get(n.input[0]) for n in graph.node if operator_of(n) == "Conv"]
    in_float = sum(n is None or operator_of(n) != "DequantizeLinear" for n in takes)
    return {
        "dead": dead,
        "blocks": _BLOCKS,
        "convolutions": len(takes),
        "in_float": in_float,
        "ratio": _ratio(source, made),
        "tool": _ratio(source, tool),
    }


def _ratio(source: Path, made: Path) -> float:
    """Returns the latency of a file over that of its model."""
    command = [*program.AUTOTUNE, "compare", str(made), "--baseline", str(source), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(done.stderr.strip()[-300:])
    gains = json.loads(done.stdout)["configs"][0]["numbers"]["gains"]
    return 1 / float(gains["latency_ms"]["value"])


def network(channels: int, dead: int) -> onnx.ModelProto:
    """Returns a residual network; the last convolution of every second block is zero, up to `dead`.

    Each block has two convolutions of 3 x 3 pixels; one comes before all of them.
    """
    chance = np.random.default_rng(0)

    def weight(name: str, inputs: int, scale: float) -> onnx.TensorProto:
        shape = (channels, inputs, 3, 3)
        values = chance.standard_normal(shape) * scale / np.sqrt(9 * inputs)
        return numpy_helper.from_array(values.astype(np.float32), name)

    def convolution(x: str, w: str, y: str) -> onnx.NodeProto:
        return helper.make_node("Conv", [x, w], [y], pads=[1, 1, 1, 1])

    nodes = [convolution("x", "w", "c"), helper.make_node("Relu", ["c"], ["t0"])]
    weights = [weight("w", 3, 1.0)]
    for i in range(_BLOCKS):
        is_dead = i % 2 == 1 and i // 2 < dead
        weights += [weight(f"v{i}", channels, 1.0), weight(f"w{i}", channels, 0.5 * (not is_dead))]
        nodes += [
            convolution(f"t{i}", f"v{i}", f"p{i}"),
            helper.make_node("Relu", [f"p{i}"], [f"q{i}"]),
            convolution(f"q{i}", f"w{i}", f"r{i}"),
            helper.make_node("Add", [f"t{i}", f"r{i}"], [f"s{i}"]),
            helper.make_node("Relu", [f"s{i}"], [f"t{i + 1}"]),
        ]
    nodes.append(helper.make_node("GlobalAveragePool", [f"t{_BLOCKS}"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "residual",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, _SIZE, _SIZE])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, channels, 1, 1])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(4)
    main()
