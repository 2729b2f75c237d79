"""A study of a model over 2 GiB ends with a config that loads."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import brief_studies
import command_line
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

_WIDTH = 8192  # times nine layers of floats: 2.25 GiB
_LAYERS = 9


@pytest.mark.stress
@pytest.mark.skipif(
    psutil.virtual_memory().available < 12 << 30, reason="it needs 12 GiB of free memory"
)
@pytest.mark.skipif(
    psutil.disk_usage(tempfile.gettempdir()).free < 12 << 30,
    reason="it needs 12 GiB of free disk for the forms of the model",
)
def test_a_model_over_2_gib_is_tuned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step of the graph parameters takes it or refuses it with a sentence."""
    brief_studies.measure_briefly(monkeypatch.setattr)
    _build(tmp_path / "large.onnx")
    (tmp_path / "embeddings.json").write_text('{"embeddings": "int8"}')
    # nothing is that fast, so that the final comparison measures the default alone
    options = ["--trials", "3", "--max-latency", "1us", "--try", "embeddings.json", "--json"]
    done = command_line.run(tmp_path, "study", "large.onnx", "--out", "out", *options)
    assert done.returncode == 0, done.stderr
    study = json.loads(done.stdout)
    assert study["trials"] == 3
    assert study["failed"].keys() <= {"refused", "prepare"}
    load = "import sys, autotune; autotune.load(sys.argv[1])"
    subprocess.run([sys.executable, "-c", load, str(tmp_path / "out" / "best.json")], check=True)


def _build(path: Path) -> None:
    """Writes an embedding and matrix products; their data file has holes where the zeros are."""
    bytes_each = 4 * _WIDTH * _WIDTH
    nodes, weights = [], []
    for i in range(_LAYERS):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[_WIDTH, _WIDTH])
        tensor.data_location = TensorProto.EXTERNAL
        place = {"location": "weights.bin", "offset": i * bytes_each, "length": bytes_each}
        for key, value in place.items():
            tensor.external_data.add(key=key, value=str(value))
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
        [helper.make_tensor_value_info(f"x{_LAYERS}", TensorProto.FLOAT, [1, _WIDTH])],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    with path.with_name("weights.bin").open("wb") as file:
        file.truncate(_LAYERS * bytes_each)
