"""What static int8 does to boxes and scores that a detector joins into one output.

    python benchmarks/detector_heads.py MODEL.onnx ... [--json]

A MODEL takes one picture [1, 3, height, width] and gives [1, 4 + classes, boxes], as YOLOv8 and its
successors do; the wheel of the package nudenet has one (`pip download --no-deps nudenet`). Pictures
are generated: discs of random colours with noise. The relative L2 errors of boxes and of scores are
those of the optimised int8 session beside the unoptimised model, with the parts joined in float and
with the joined tensor in eight bits, as all tensors were. It measures no time.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from autotune.deploy import cpu
from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.graph import int8

_SIDE, _PICTURES = 320, 8
_OPTIONS: Mapping[str, Any] = {"per_channel": True, "calibration": "percentile"}


def main() -> None:
    """Prints two rows for each model."""
    parser = argparse.ArgumentParser(description="int8 of detectors with joined outputs.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    arguments = parser.parse_args()
    print(f"{cpu.cpu_model()}, ONNX Runtime {onnxruntime.__version__}")
    found = {}
    for path in arguments.models:
        found[path.stem] = rows = _rows(path)
        for words, row in rows.items():
            print(
                f"{path.stem}, {words}: boxes {row['boxes']:.3f}, scores {row['scores']:.3f}, "
                f"{row['distinct']} different scores, {row['in_int8']} of {row['convolutions']} "
                "convolutions in int8",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(found))


def _rows(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the errors of a model's parts in both forms."""
    (name,) = [item.name for item in onnx.load(path, load_external_data=False).graph.input]
    feeds: list[Feed] = [{name: picture(seed)} for seed in range(_PICTURES)]
    expected = _answers(path, feeds[::2], "ORT_DISABLE_ALL")
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "int8.onnx"
        for words, is_apart in (("parts joined in float", True), ("joined in eight bits", False)):
            joins = int8.unequal_joins if is_apart else lambda *_: []
            with patch.object(int8, "unequal_joins", joins):
                int8.static(path, target, feeds[1::2], **_OPTIONS)
            rows[words] = _row(expected, _answers(target, feeds[::2], "ORT_ENABLE_ALL"), target)
    return rows


def _row(
    expected: NDArray[np.float32], actual: NDArray[np.float32], target: Path
) -> dict[str, Any]:
    graph = onnx.load(target).graph
    makers = {name: node for node in graph.node for name in node.output}
    takes = [makers.get(n.input[0]) for n in graph.node if operator_of(n) == "Conv"]
    return {
        "boxes": _error(expected[:, :4], actual[:, :4]),
        "scores": _error(expected[:, 4:], actual[:, 4:]),
        "distinct": len(np.unique(actual[:, 4:])),
        "convolutions": len(takes),
        "in_int8": sum(n is not None and operator_of(n) == "DequantizeLinear" for n in takes),
    }


def _error(expected: NDArray[np.float32], actual: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(expected - actual) / np.linalg.norm(expected))


def _answers(path: Path, feeds: Sequence[Feed], level: str) -> NDArray[np.float32]:
    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    # products of eight bits saturate on x86 without VNNI
    settings.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, dict(feed))[0] for feed in feeds])


def picture(seed: int) -> NDArray[np.float32]:
    """Returns discs of random colours, from 0 to 1, with noise."""
    chance = np.random.default_rng(seed)
    image = np.zeros((1, 3, _SIDE, _SIDE), np.float32)
    rows, columns = np.mgrid[0:_SIDE, 0:_SIDE]
    for _ in range(30):
        x, y, size = chance.uniform(0, _SIDE, 3)
        within = (columns - x) ** 2 + (rows - y) ** 2 < (0.4 * size) ** 2
        image[0][:, within] = chance.uniform(0, 1, 3)[:, None]
    return image + chance.normal(0, 0.02, image.shape).astype(np.float32)


if __name__ == "__main__":
    onnxruntime.set_default_logger_severity(4)
    main()
