"""A model over 2 GiB: a study ends with a config that loads, and packing it takes little memory."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import brief_studies
import command_line
import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper
from test_config import make_config
from test_loader import write_config

import autotune
from autotune.graph.graph_facts import FILE, Converted
from autotune.measure.memory import parse_status
from autotune.process.child import Child, memory_limit

_WIDTH = 8192  # times nine layers of floats: 2.25 GiB
_LAYERS = 9
_NARROW = 4096  # 64 MiB each, so that four times the largest tensor is far from the whole
_NARROW_LAYERS = 36


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
    _build(tmp_path / "large.onnx", _WIDTH, _LAYERS)
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


@pytest.mark.stress
@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell a child's peak")
@pytest.mark.skipif(
    psutil.virtual_memory().available < 4 << 30, reason="it needs 4 GiB of free memory"
)
@pytest.mark.skipif(
    psutil.disk_usage(tempfile.gettempdir()).free < 6 << 30, reason="it needs 6 GiB of free disk"
)
def test_a_model_over_2_gib_is_packed_tensor_by_tensor(tmp_path: Path) -> None:
    """Making int4 and int8 takes at most four times the largest tensor; both files are right."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((_NARROW, _NARROW), np.float32) / np.float32(256)
    large, small = (tmp_path / name / "model.onnx" for name in ("large", "small"))
    _build(large, _NARROW, _NARROW_LAYERS, weight)
    _build(small, 64, 2)
    answer = weight[:1]
    for _ in range(_NARROW_LAYERS - 1):
        answer = answer @ weight + answer
    needed_mib = _packed(small, tmp_path / "int8_small", bits=8)
    for bits, error in ((8, 0.03), (4, 0.3)):
        folder = tmp_path / f"int{bits}"
        taken_mib = _packed(large, folder, bits=bits) - needed_mib
        assert taken_mib <= 4 * weight.nbytes / 2**20
        nodes = onnx.load(folder / FILE, load_external_data=False).graph.node
        assert sum(n.op_type == "MatMulNBits" for n in nodes) == _NARROW_LAYERS - 1
        session = autotune.load(write_config(folder / FILE, make_config()))
        found = session.run(None, {"ids": np.zeros(1, np.int64)})[0]
        assert np.linalg.norm(found - answer) <= error * np.linalg.norm(answer)


def _packed(source: Path, folder: Path, *, bits: int) -> float:
    """Has a child make int4 or int8 of the model; returns the child's peak in MiB."""
    folder.mkdir()
    request = {
        "do": "convert",
        "source": str(source),
        "folder": str(folder),
        "steps": [[f"int{bits}_weight_only", {"accuracy_level": 0}]],
        "samples": None,
        "shared": None,
    }
    with Child("autotune.graph.prepare_child", memory_limit()) as child:
        assert child.request(request, 300, Converted).refusal is None
        return parse_status(Path(f"/proc/{child.pid}/status").read_text("ascii")).peak_mib


def _build(path: Path, width: int, layers: int, weight: np.ndarray | None = None) -> None:
    """Writes an embedding and matrix products of one weight; zeros are holes in the data file."""
    path.parent.mkdir(exist_ok=True)
    bytes_each = 4 * width * width
    nodes, weights = [], []
    for i in range(layers):
        tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width])
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
        [helper.make_tensor_value_info(f"x{layers}", TensorProto.FLOAT, [1, width])],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), path)
    with path.with_name("weights.bin").open("wb") as file:
        if weight is not None:
            file.writelines(weight.data for _ in range(layers))
        file.truncate(layers * bytes_each)
