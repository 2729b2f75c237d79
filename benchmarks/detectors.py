"""Studies of detectors: int8 is faster, and the scores survive.

    python benchmarks/detectors.py [DETECTOR.onnx ...] [--trials 40] [--timeout 300] [--json]

Without models it makes one as YOLO is exported, in both layouts: convolutions, whose head joins
boxes in pixels and sigmoids of class scores in one output. The inputs are pages with text over soft
colours (`pip install pillow`). Each config is loaded as an application does, and its scores are
compared with the model's own: all that lies between 0 and 1 of each output.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from answers import pages
from onnx import TensorProto, helper, numpy_helper

import autotune
from autotune.facts.model import describe

SIZE, WIDTH = 160, 48


def write_detector(path: Path, *, rows_last: bool) -> None:
    """Writes a detector of one scale: six convolutions, boxes and scores of ten classes."""
    draw = np.random.default_rng(5)
    weights: dict[str, Any] = {"size": np.float32(SIZE), "shape": np.array([1, 14, -1])}
    nodes, last, channels = [], "x", 3
    for i, stride in enumerate((2, 1, 2, 1, 2, 1)):
        spread = (2 / (9 * channels)) ** 0.5
        weights[f"w{i}"] = (draw.standard_normal((WIDTH, channels, 3, 3)) * spread).astype("f4")
        nodes += [
            helper.make_node(
                "Conv", [last, f"w{i}"], [f"c{i}"], pads=[1] * 4, strides=[stride] * 2
            ),
            helper.make_node("Relu", [f"c{i}"], [f"r{i}"]),
        ]
        last, channels = f"r{i}", WIDTH
    for name, rows in (("boxes", 4), ("scores", 10)):
        weights[f"w_{name}"] = draw.standard_normal((rows, WIDTH, 1, 1)).astype("f4")
        weights[f"b_{name}"] = np.full(rows, 0 if name == "boxes" else -4, "f4")
        nodes += [
            helper.make_node("Conv", [last, f"w_{name}", f"b_{name}"], [f"{name}_raw"]),
            helper.make_node("Sigmoid", [f"{name}_raw"], [f"{name}_s"]),
        ]
    nodes += [
        helper.make_node("Mul", ["boxes_s", "size"], ["boxes"]),
        helper.make_node("Concat", ["boxes", "scores_s"], ["joined"], axis=1),
        helper.make_node("Reshape", ["joined", "shape"], ["flat" if rows_last else "output0"]),
    ]
    if rows_last:
        nodes.append(helper.make_node("Transpose", ["flat"], ["output0"], perm=[0, 2, 1]))
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, SIZE, SIZE])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(w), name) for name, w in weights.items()],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )


def scores_error(right: list[Any], given: list[Any]) -> float:
    """Returns the relative L2 error of what lies between 0 and 1 in the right answers."""
    r, g = (np.concatenate([np.ravel(a) for a in arrays]) for arrays in (right, given))
    scores = (r > 0) & (r < 1)
    return float(np.linalg.norm(r[scores] - g[scores]) / np.linalg.norm(r[scores]))


def study(path: Path, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    """Returns what a study of a detector gave."""
    model = describe(path)
    sizes = [size for size in model.inputs[0].shape[1:] if isinstance(size, int) and size != 3]
    data, out = folder / f"{path.stem}.npz", folder / path.stem
    samples = pages(model, sizes[0] if sizes else 320)
    np.savez(data, **samples)
    command = [sys.executable, "-m", "autotune", "study", path, "--data", data, "--out", out, "-q"]
    command += ["--trials", asked.trials, "--timeout", f"{asked.timeout}s"]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    front = json.loads((out / "front.json").read_text())
    best = next(m for m in front["members"] if m["evidence"]["trial"] == front["picked"])
    tuned = autotune.load(out / "best.json")
    default = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ((name, values),) = samples.items()
    right, given = (
        [array for x in values for array in session.run(None, {name: x})]
        for session in (default, tuned)
    )
    return {
        "model": path.stem,
        "config": best["words"],
        "speedup": best["evidence"]["speedup"],
        "memory_mib": best["evidence"]["peak_memory_mib"],
        "error": best["evidence"]["error"],
        "worst_part": best["evidence"]["worst_part"],
        "undisturbed": best["evidence"]["undisturbed"],
        "scores_error": scores_error(right, given),
    }


def main() -> None:
    """Prints a line for each detector, and one JSON object with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--timeout", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        models = asked.models or [Path(place) / f"yolo_{name}.onnx" for name in ("rows", "columns")]
        for path in models:
            if not asked.models:
                write_detector(path, rows_last=path.stem == "yolo_columns")
            rows.append(study(path.absolute(), Path(place), asked))
            row, gain = rows[-1], rows[-1]["speedup"]
            print(
                f"{row['model']}: {gain['value']:.2f}x ({gain['low']:.2f} to {gain['high']:.2f})"
                f"{'' if row['undisturbed'] else ' on a busy machine'}, error {row['error']:.2g}, "
                f"of the scores {row['scores_error']:.2g}: {row['config']}"
            )
    if asked.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
