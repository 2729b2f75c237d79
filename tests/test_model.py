"""What is found in a model file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune.errors import ModelError
from autotune.facts import sample_models
from autotune.facts.model import Model, describe
from autotune.facts.model_facts import Tensor

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node
value = helper.make_tensor_value_info


def save(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    weights: Sequence[Any] = (),
    opset: int = 17,
) -> Path:
    graph = helper.make_graph(nodes, "test", inputs, outputs, list(weights))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


def weight(name: str, array: Any, dtype: Any = np.float32) -> Any:
    return numpy_helper.from_array(np.asarray(array, dtype), name)


def external(name: str, location: str, size: int = 36) -> Any:
    tensor = weight(name, np.ones((3, 3)))
    onnx.external_data_helper.set_external_data(tensor, location, 0, size)
    tensor.ClearField("raw_data")
    return tensor


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


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
    """An input that indexes a constant table is bounded by the rows; a mask is not."""
    sample_models.write("transformer", path)
    model = describe(path)
    inputs = by_name(model)
    assert inputs["input_ids"].index_bound == 1000
    assert inputs["attention_mask"].index_bound is None
    assert model.has_gelu
    assert model.branches == 3


def test_the_smallest_table_behind_carriers_bounds(path: Path) -> None:
    model = describe(
        save(
            path,
            [
                node("Cast", ["x"], ["c"], to=INT64),
                node("Reshape", ["c", "flat"], ["r"]),
                node("Gather", ["big", "r"], ["a"]),
                node("Gather", ["wide", "r"], ["b"], axis=1),
            ],
            [value("x", TensorProto.INT32, [2, "n"])],
            [value("a", FLOAT, None), value("b", FLOAT, None)],
            [
                weight("big", np.ones((50, 4))),
                weight("wide", np.ones((4, 20))),
                weight("flat", [-1], np.int64),
            ],
        )
    )
    assert by_name(model)["x"].index_bound == 20


def test_a_table_in_a_constant_node_bounds(path: Path) -> None:
    model = describe(
        save(
            path,
            [
                node("Constant", [], ["table"], value=weight("t", np.ones((9, 2)))),
                node("Gather", ["table", "x"], ["y"]),
            ],
            [value("x", INT64, ["n"])],
            [value("y", FLOAT, ["n", 2])],
        )
    )
    assert by_name(model)["x"].index_bound == 9
    assert model.parameters == 18


def test_branches_count_what_can_run_side_by_side(path: Path) -> None:
    x, y = value("x", FLOAT, ["b", 3]), value("y", FLOAT, ["b", 3])
    w = weight("w", np.eye(3))
    aside = [
        node("MatMul", ["x", "w"], ["p"]),
        node("MatMul", ["x", "w"], ["q"]),
        node("Add", ["p", "q"], ["y"]),
    ]
    chain = [node("MatMul", ["x", "w"], ["p"]), node("MatMul", ["p", "w"], ["y"])]
    assert describe(save(path, aside, [x], [y], [w])).branches == 2
    assert describe(save(path, chain, [x], [y], [w])).branches == 1


def test_nodes_of_subgraphs_count(path: Path) -> None:
    branch = helper.make_graph([node("Erf", ["x"], ["z"])], "b", [], [value("z", FLOAT, [2])])
    model = describe(
        save(
            path,
            [node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)],
            [value("x", FLOAT, [2]), value("c", TensorProto.BOOL, [])],
            [value("y", FLOAT, [2])],
        )
    )
    assert model.operators == {"Erf": 2, "If": 1}
    assert model.has_gelu
    assert by_name(model)["c"] == Tensor(name="c", dtype="bool", shape=())


def test_shapes_keep_names_and_gaps(path: Path) -> None:
    """Fixed sizes, names and unnamed open dimensions are told apart; fixed is not dynamic."""
    relu = [node("Relu", ["x"], ["y"])]
    y = value("y", FLOAT, None)
    model = describe(save(path, relu, [value("x", FLOAT, ["b", None, 4])], [y]))
    assert model.inputs[0].shape == ("b", None, 4)
    assert model.is_dynamic
    assert not describe(save(path, relu, [value("x", FLOAT, [1, 4])], [y])).is_dynamic


def normalised_convolution(path: Path, scale: float) -> Path:
    ones = np.ones(2)
    return save(
        path,
        [
            node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 1]),
            node("BatchNormalization", ["c", "s", "o", "o", "v"], ["y"]),
        ],
        [value("x", FLOAT, [1, 2, 4, 4])],
        [value("y", FLOAT, [1, 2, 4, 4])],
        [
            weight("w", np.full((2, 2, 1, 1), 1e-20)),
            weight("s", ones * scale),
            weight("o", ones * 0),
            weight("v", ones),
        ],
    )


def test_subnormals_are_counted_after_folding(path: Path) -> None:
    assert describe(normalised_convolution(path, 1e-20)).subnormals == 4
    assert describe(normalised_convolution(path, 1.0)).subnormals == 0


def test_an_input_with_a_default_is_not_fed(path: Path) -> None:
    model = describe(
        save(
            path,
            [node("MatMul", ["x", "w"], ["y"])],
            [value("x", FLOAT, ["b", 3]), value("w", FLOAT, [3, 3])],
            [value("y", FLOAT, ["b", 3])],
            [weight("w", np.eye(3))],
        )
    )
    assert list(by_name(model)) == ["x"]


@pytest.mark.parametrize(
    ("element", "dtype"),
    [
        (TensorProto.FLOAT16, "float16"),
        (TensorProto.INT32, "int32"),
        (TensorProto.UINT8, "uint8"),
        (TensorProto.STRING, "str"),
    ],
)
def test_types_are_spelt_as_numpy_does(path: Path, element: int, dtype: str) -> None:
    """Element types have the names that numpy gives them; text is ``str``."""
    nodes = [node("Identity", ["x"], ["y"])]
    file = save(path, nodes, [value("x", element, [2])], [value("y", element, [2])])
    assert describe(file).inputs[0].dtype == dtype


def test_a_sequence_input_is_refused(path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("frames", FLOAT, [2])
    at = [node("SequenceAt", ["frames", "i"], ["y"])]
    save(path, at, [sequence, value("i", INT64, [])], [value("y", FLOAT, [2])])
    with pytest.raises(ModelError, match=r"model\.onnx.*input 'frames' is a sequence.*export"):
        describe(path)


def test_an_ir_version_of_the_future_is_refused(path: Path) -> None:
    """A file format that this ONNX Runtime does not know is refused with both versions."""
    save(path, [node("Relu", ["x"], ["y"])], [value("x", FLOAT, [2])], [value("y", FLOAT, [2])])
    model = onnx.load(path)
    model.ir_version = 99
    path.write_bytes(model.SerializeToString())
    with pytest.raises(
        ModelError, match=r"model\.onnx has IR version 99, .*up to \d+; upgrade onnxruntime"
    ):
        describe(path)


def test_a_refusal_names_no_place_in_the_source_of_onnxruntime(path: Path) -> None:
    """The reason why ONNX Runtime cannot make a kernel comes without its own file and function."""
    weights = [weight("w", np.ones((1, 4, 2))), weight("r", np.ones((1, 4, 4)))]
    batchwise = [node("RNN", ["x", "w", "r"], ["y"], hidden_size=4, layout=1)]
    save(path, batchwise, [value("x", FLOAT, [1, 3, 2])], [value("y", FLOAT, None)], weights)
    with pytest.raises(ModelError, match=r"Batchwise recurrent operations") as refusal:
        describe(path)
    assert "::" not in str(refusal.value)
    assert ".h:" not in str(refusal.value)


@pytest.mark.parametrize("place", ["input", "dimension", "output"])
def test_a_line_break_in_a_name_is_refused(path: Path, place: str) -> None:
    """Such a name could print lines that look like ours."""
    names = dict.fromkeys(("input", "dimension", "output"), "x")
    names |= {"output": "y", place: "no\nproblems found"}
    save(
        path,
        [node("Relu", [names["input"]], [names["output"]])],
        [value(names["input"], FLOAT, [names["dimension"]])],
        [value(names["output"], FLOAT, None)],
    )
    with pytest.raises(ModelError, match=r"line break in the name 'no.nproblems found'") as refused:
        describe(path)
    assert "\n" not in str(refused.value)


def test_a_bfloat16_input_is_refused(path: Path) -> None:
    cast = [node("Cast", ["x"], ["y"], to=FLOAT)]
    save(path, cast, [value("x", TensorProto.BFLOAT16, [2])], [value("y", FLOAT, [2])])
    with pytest.raises(ModelError, match=r"input 'x' has the type bfloat16.*export"):
        describe(path)


def with_external(path: Path, location: str) -> Path:
    return save(
        path,
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", FLOAT, ["b", 3])],
        [value("y", FLOAT, ["b", 3])],
        [external("w", location)],
    )


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin"])
def test_external_data_outside_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    """A model cannot name files that lie outside its folder."""
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "w.bin").write_bytes(bytes(36))
    with pytest.raises(ModelError, match="outside its folder") as caught:
        describe(with_external(folder / "model.onnx", location))
    assert location in str(caught.value)


def test_external_data_belong_to_the_model(path: Path) -> None:
    data = path.parent / "w.bin"
    data.write_bytes(np.eye(3, dtype=np.float32).tobytes())
    model = describe(with_external(path, "w.bin"))
    assert model.data_files == (data,)
    assert model.size_bytes == path.stat().st_size + 36
    data.write_bytes(bytes(36))
    assert describe(path).sha256 != model.sha256


def test_the_file_is_never_written_to(path: Path) -> None:
    sample_models.write("lstm", path)
    before = path.read_bytes()
    describe(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]
