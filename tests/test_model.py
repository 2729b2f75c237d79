"""What is found in a model file."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from factories import normal, onnx_model, save_onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.applications.replay import Opening
from autotune.deploy.session import SessionConfig
from autotune.errors import ModelError
from autotune.facts import optimised, sample_models
from autotune.facts.model import Model, describe
from autotune.facts.model_facts import Tensor
from autotune.graph.prepare import Preparer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def _described(path: Path, body: str, *arguments: Any, **options: Any) -> Model:
    return describe(save_onnx(path, body, *arguments, **options))


def by_name(model: Model) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in model.inputs}


def test_a_sample_is_described_whole(path: Path) -> None:
    onnx.save(sample_models.separable_cnn(), path)
    model = describe(path)
    assert model.inputs == (Tensor(name="image", dtype="float32", shape=("batch", 3, 64, 64)),)
    assert model.outputs == ("logits",)
    assert model.operators["Conv"] == 7
    assert model.has_conv
    assert not model.has_gelu
    assert model.is_dynamic
    assert model.branches == 1
    assert model.subnormals == 0
    assert model.parameters == sum(
        int(np.prod(t.dims)) for t in sample_models.separable_cnn().graph.initializer
    )
    assert model.size_bytes == path.stat().st_size
    assert model.data_files == ()
    assert len(model.sha256) == 64


def test_indices_of_a_table_are_bounded_by_its_rows(path: Path) -> None:
    sample_models.write("transformer", path)
    model = describe(path)
    inputs = by_name(model)
    assert inputs["input_ids"].index_bound == 1000
    assert inputs["attention_mask"].index_bound is None
    assert model.has_gelu
    assert model.branches == 3


def test_the_smallest_table_behind_carriers_bounds(path: Path) -> None:
    model = _described(
        path,
        "c = Cast <to = 7> (x) r = Reshape (c, flat) a = Gather (big, r) "
        "b = Gather <axis = 1> (wide, r)",
        {"flat": np.array([-1]), "big": normal(0, 50, 4), "wide": normal(0, 4, 20)},
        x="int32[2,n] x",
        y="float[?] a, float[?] b",
    )
    assert by_name(model)["x"].index_bound == 20


@pytest.mark.parametrize(
    ("body", "branches"),
    [
        ("p = MatMul (x, w) q = MatMul (x, w) y = Add (p, q)", 2),
        ("p = MatMul (x, w) y = MatMul (p, w)", 1),
    ],
)
def test_branches_count_what_can_run_side_by_side(path: Path, body: str, branches: int) -> None:
    assert _described(path, body, {"w": normal(0, 3, 3)}, x="float[b,3] x").branches == branches


def test_nodes_of_subgraphs_count(path: Path) -> None:
    branches = [f"{name} () => (float[2] {name}) {{ {name} = Erf (x) }}" for name in "pq"]
    model = _described(
        path,
        f"y = If (c) <then_branch = {branches[0]}, else_branch = {branches[1]}>",
        x="float[2] x, bool c",
        y="float[2] y",
    )
    assert model.operators == {"Erf": 2, "If": 1}
    assert model.has_gelu
    assert by_name(model)["c"] == Tensor(name="c", dtype="bool", shape=())


def test_shapes_keep_names_and_gaps(path: Path) -> None:
    unnamed = onnx_model("y = Relu (x)", x="float[b,gap,4] x")
    unnamed.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_param")
    path.write_bytes(unnamed.SerializeToString())
    model = describe(path)
    assert model.inputs[0].shape == ("b", None, 4)
    assert model.is_dynamic
    assert not _described(path, "y = Relu (x)", x="float[1,4] x").is_dynamic


@pytest.mark.parametrize(("scale", "subnormals"), [(1e-20, 4), (1.0, 0)])
def test_subnormals_are_counted_after_folding(path: Path, scale: float, subnormals: int) -> None:
    ones = np.ones(2, np.float32)
    model = _described(
        path,
        "c = Conv (x, w) y = BatchNormalization (c, s, o, o, v)",
        {"w": np.full((2, 2, 1, 1), 1e-20, "f4"), "s": ones * scale, "o": ones * 0, "v": ones},
        x="float[1,2,4,4] x",
        y="float[1,2,4,4] y",
    )
    assert model.subnormals == subnormals


@pytest.mark.parametrize(
    ("element", "dtype"),
    [("float16", "float16"), ("int32", "int32"), ("uint8", "uint8"), ("string", "str")],
)
def test_types_are_spelt_as_numpy_does(path: Path, element: str, dtype: str) -> None:
    model = _described(path, "y = Identity (x)", x=f"{element}[2] x", y=f"{element}[2] y")
    assert model.inputs[0].dtype == dtype


_RNN = "y = RNN <hidden_size = 4, layout = 1> (x, w, r)"


@pytest.mark.parametrize(
    ("body", "x", "words"),
    [
        (
            "y = SequenceAt (frames, i)",
            "seq(float[2]) frames, int64 i",
            r"model\.onnx.*input 'frames' is a sequence.*export",
        ),
        ("y = Cast <to = 1> (x)", "bfloat16[2] x", "input 'x' has the type bfloat16.*export"),
        (_RNN, "float[1,3,2] x", "Batchwise recurrent operations"),
    ],
    ids=["sequence", "bfloat16", "operator"],
)
def test_what_cannot_be_fed_or_run_is_refused(path: Path, body: str, x: str, words: str) -> None:
    weights = {"w": normal(0, 1, 4, 2), "r": normal(0, 1, 4, 4)}
    with pytest.raises(ModelError, match=words) as refusal:
        _described(path, body, weights, x=x)
    assert "::" not in str(refusal.value)
    assert ".h:" not in str(refusal.value)


def test_an_output_that_python_cannot_read_is_refused(path: Path) -> None:
    with pytest.raises(ModelError, match=r"output 'y' has the type bfloat16.*export"):
        _described(path, "y = Cast <to = 16> (x)", x="float[2] x", y="bfloat16[2] y")


@pytest.mark.parametrize(
    ("node", "opset", "ir_version", "words"),
    [
        ("Nonsense", 17, 8, "'Nonsense'.*opset 17"),
        ("my.operators.Nonsense", 17, 8, r"my\.operators.*Nonsense.*custom operators"),
        ("Relu", 99, 8, "uses opset 99, .*upgrade onnxruntime"),
        ("Relu", 17, 99, r"has IR version 99, .*up to \d+; upgrade onnxruntime"),
    ],
)
def test_what_onnxruntime_lacks_is_refused(
    path: Path, node: str, opset: int, ir_version: int, words: str
) -> None:
    model = onnx_model(f"y = {node} (x)", x="float[b,3] x", y="float[b,3] y", opset=opset)
    model.ir_version = ir_version
    if "." in node:
        model.opset_import.add(domain="my.operators", version=1)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=rf"model\.onnx.*{words}"):
        describe(path)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_model_is_refused(path: Path, share: float) -> None:
    sample_models.write("lstm", path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"model\.onnx.*no ONNX model"):
        describe(path)


@pytest.mark.process
def test_a_broken_package_is_not_taken_for_a_damaged_model(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child that reads the model ends where it imports the package."""
    sample_models.write("cnn", path)
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "__init__.py").write_text('raise ImportError("no name X")')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ModelError, match=r"package of this environment is broken .*no name X"):
        describe(path)


def test_a_folder_for_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is a folder, not an ONNX model; name a file"):
        describe(tmp_path)
    (tmp_path / "net.onnx").touch()
    with pytest.raises(ModelError, match=r"name one of them: .*net\.onnx"):
        describe(tmp_path)


@pytest.mark.parametrize("place", ["input", "dimension", "output"])
def test_a_line_break_in_a_name_is_refused(path: Path, place: str) -> None:
    """Such a name could print lines that look like ours."""
    model, name = onnx_model("y = Relu (x)", x="float[x] x"), "no\nproblems found"
    (node,), (x,), (y,) = model.graph.node, model.graph.input, model.graph.output
    if place == "input":
        x.name = node.input[0] = name
    elif place == "output":
        y.name = node.output[0] = name
    else:
        x.type.tensor_type.shape.dim[0].dim_param = name
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"line break in the name 'no.nproblems found'") as refused:
        describe(path)
    assert "\n" not in str(refused.value)


def with_external(path: Path, location: str) -> Path:
    model = onnx_model("y = MatMul (x, w)", {"w": normal(0, 3, 3)}, x="float[b,3] x")
    (weight,) = model.graph.initializer
    onnx.external_data_helper.set_external_data(weight, location, 0, 36)
    weight.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin"])
def test_external_data_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(36))
    with pytest.raises(ModelError, match="outside its folder") as caught:
        describe(with_external(folder / "model.onnx", location))
    assert location in str(caught.value)


@pytest.mark.parametrize(
    ("size_bytes", "words"),
    [(0, "'w.bin' is missing; put it beside the model"), (10, "'w.bin' is truncated")],
)
def test_external_data_that_are_not_whole_are_refused(
    path: Path, size_bytes: int, words: str
) -> None:
    if size_bytes:
        (path.parent / "w.bin").write_bytes(bytes(size_bytes))
    with pytest.raises(ModelError, match=words):
        describe(with_external(path, "w.bin"))


def test_external_data_belong_to_the_model(path: Path) -> None:
    data = path.parent / "w.bin"
    data.write_bytes(np.eye(3, dtype=np.float32).tobytes())
    model = describe(with_external(path, "w.bin"))
    assert model.data_files == (data,)
    assert model.size_bytes == path.stat().st_size + 36
    data.write_bytes(bytes(36))
    assert describe(path).sha256 != model.sha256


def test_a_link_has_its_data_beside_itself(path: Path) -> None:
    """Hugging Face's cache has links to files of other names in another folder."""
    blobs = path.parent / "blobs"
    blobs.mkdir()
    (blobs / "5e1f").write_bytes(np.eye(3, dtype=np.float32).tobytes())
    path.symlink_to(with_external(blobs / "a0c4", "w.bin"))
    (path.parent / "w.bin").symlink_to(blobs / "5e1f")
    model = describe(path)
    assert model.data_files == (path.parent / "w.bin",)
    preparer = Preparer(model, path.parent / "cache", workload=None, signature="")
    assert preparer.prepare({}).path == path
    assert Opening(model=path, session=SessionConfig()).to_json()["model"] == str(path)


def test_the_file_is_never_written_to(path: Path) -> None:
    sample_models.write("lstm", path)
    before = path.read_bytes()
    describe(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_what_is_inside_local_functions_counts(tmp_path: Path) -> None:
    """An exporter may keep modules as functions; ONNX Runtime writes them out."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    product = helper.make_node("MatMul", ["a", "b"], ["c"])
    function = helper.make_function("local", "Layer", ["a", "b"], ["c"], [product], opsets[:1])
    call = helper.make_node("Layer", ["x", "w"], ["y"], domain="local")
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4]) for n in "xy"]
    weight = numpy_helper.from_array(np.ones((4, 4), np.float32), "w")
    graph = helper.make_graph([call], "g", tensors[:1], tensors[1:], [weight])
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)
    onnx.save(model, tmp_path / "functions.onnx")
    facts = describe(tmp_path / "functions.onnx")
    assert facts.operators == {"MatMul": 1}
    assert facts.quantisable == {"MatMul": 1}


def test_facts_are_read_from_all_files_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Subnormal weights beside the file count; where nothing can be read, nothing is claimed."""
    weights = {"w": np.full((16, 16), 1e-40, np.float32), "gain": np.ones(16, np.float32)}
    made = onnx_model("p = MatMul (x, w) y = Mul (p, gain)", weights, x="float[1,16] x")
    made.graph.input.append(helper.make_tensor_value_info("gain", TensorProto.FLOAT, [16]))
    path = tmp_path / "m.onnx"
    onnx.save(made, path, save_as_external_data=True, location="m.bin", size_threshold=0)
    model = describe(path)
    assert model.subnormals == 256
    assert [(item.name, item.shape) for item in model.optional] == [("gain", (16,))]
    assert [item.name for item in model.inputs] == ["x"]
    monkeypatch.setattr(optimised, "_LARGEST_BYTES", 0)
    assert describe(path).subnormals is None
