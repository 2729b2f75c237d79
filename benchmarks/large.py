"""A study of ten trials of a model over 2 GiB.

    python benchmarks/large.py [--trials 10] [--json] [--quick] [OPTIONS OF STUDY]

The model is built here: an embedding and matrix products whose weights, zeros, lie in an external
data file. Each step of the graph half takes it or refuses it with a sentence; the study ends with a
config that loads. Latency and memory are printed over those of the default.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import onnx
import program
from onnx import TensorProto, helper

_WIDTH = 8192  # times nine layers of floats: 2.25 GiB
_LAYERS = 9


def main() -> None:
    """Prints the outcome of each graph half, and of the study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="4 trials")
    parser.add_argument("--width", type=int, default=_WIDTH, help="rows of each of the matrices")
    parser.add_argument("--json", action="store_true")
    given, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "large.onnx"
        build(path, given.width)
        size_gib = sum(file.stat().st_size for file in Path(scratch).iterdir()) / 2**30
        began = time.monotonic()
        trials = 4 if given.quick else given.trials
        command = [*program.AUTOTUNE, "study", str(path), "--trials", str(trials)]
        first = Path(scratch) / "embeddings.json"
        first.write_text(json.dumps({"embeddings": "int8"}))
        command += ["--out", f"{scratch}/out", "--json", "--try", str(first)]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        study = json.loads(done.stdout)
        spent_s = time.monotonic() - began
        load = "import sys, autotune; autotune.load(sys.argv[1])"
        subprocess.run([sys.executable, "-c", load, f"{scratch}/out/best.json"], check=True)
    print(f"{size_gib:.2f} GiB, {study['trials']} trials in {spent_s:.0f} s, the config loads")
    for row in study["graphs"]:
        text = row["failure"] or f"latency {row['latency']:.2f}, memory {row['memory']:.2f}"
        print(f"  {row['words']:60} {text[:150]}")
    if given.json:
        counts = {"trials": study["trials"], "failed": study["failed"]}
        print(json.dumps({"size_gib": size_gib, **counts, "study_s": spent_s}))


def build(path: Path, width: int) -> None:
    """Writes the model; its data file has holes where the zeros are."""
    bytes_each = 4 * width * width
    nodes, weights = [], []
    for i in range(_LAYERS):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {
            "location": "weights.bin",
            "offset": str(i * bytes_each),
            "length": str(bytes_each),
        }.items():
            tensor.external_data.add(key=key, value=value)
        weights.append(tensor)
        if i == 0:
            nodes.append(helper.make_node("Gather", ["w0", "ids"], ["x1"]))
        else:
            nodes.append(helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]))
            nodes.append(helper.make_node("Add", [f"y{i}", f"x{i}"], [f"x{i + 1}"]))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info(f"x{_LAYERS}", TensorProto.FLOAT, [1, width])],
        weights,
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    with path.with_name("weights.bin").open("wb") as file:
        file.truncate(_LAYERS * bytes_each)


if __name__ == "__main__":
    main()
