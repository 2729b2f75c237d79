"""Callers of a written model see what callers of its source do."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, onnx_model
from made_files import error_of, make, overridable, run
from onnx import TensorProto, helper

from autotune.facts.feeds import Feed
from autotune.graph import interface
from autotune.graph.entries import StepRefusedError

_ADAPTER = ("lora_a", "lora_b")


def _adapted() -> onnx.ModelProto:
    """Returns a product with an adapter, whose weights are inputs that are zero by default."""
    return onnx_model(
        "a = MatMul(x, w) l = MatMul(x, lora_a) b = MatMul(l, lora_b) c = Add(a, b) "
        "r = Relu(c) y = MatMul(r, v)",
        {
            "w": normal(0, 64, 32),
            "v": normal(1, 32, 32),
            "lora_a": np.zeros((64, 4), np.float32),
            "lora_b": np.zeros((4, 32), np.float32),
        },
        x="float[2,64] x, float[64,4] lora_a, float[4,32] lora_b",
        y="float[2,32] y",
    )


_FEEDS: list[Feed] = [{"x": normal(seed, 2, 64)} for seed in range(4)]


@pytest.mark.parametrize(
    "half",
    [
        {"pre_pass": "onnxslim"},
        {"pre_pass": "onnxslim+algebra", "weight_storage": "external_data"},
        {"pre_pass": "ort_extended"},
        {"precision": "int8_dynamic"},
        {"precision": "int8_static", "quantized_operators": "products"},
        {"precision": "int8_weight_only"},
    ],
    ids=lambda half: "-".join(map(str, half.values())),
)
def test_an_adapter_is_applied_to_a_written_model(half: dict[str, Any], tmp_path: Path) -> None:
    """ONNX Runtime puts the adapter's weights in the place of inputs that have a default value."""
    model = _adapted()
    made = make(model, tmp_path, _FEEDS, **half)
    assert overridable(made) == set(_ADAPTER)
    values = {"lora_a": 0.35 * normal(2, 64, 4), "lora_b": 0.35 * normal(3, 4, 32)}
    adapter = onnxruntime.AdapterFormat()
    adapter.set_adapter_version(1)
    adapter.set_model_version(1)
    ortvalues = {k: onnxruntime.OrtValue.ortvalue_from_numpy(v) for k, v in values.items()}
    adapter.set_parameters(ortvalues)
    adapter.export_adapter(str(tmp_path / "lora.onnx_adapter"))
    active = onnxruntime.LoraAdapter()
    active.Load(str(tmp_path / "lora.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(active)
    feed = dict(_FEEDS[0])
    session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
    (adapted,) = session.run(None, feed, options)
    reference = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = reference.run(None, {**feed, **values})
    (plain,) = reference.run(None, feed)
    assert np.linalg.norm(adapted - expected) <= 0.1 * np.linalg.norm(expected)
    assert np.linalg.norm(plain - expected) > 0.2 * np.linalg.norm(expected)


def test_defaults_in_another_file_come_back(tmp_path: Path) -> None:
    model = _adapted()
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0
    )
    taken = interface.take_defaults(tmp_path / "m.onnx")
    assert sorted(taken) == sorted(_ADAPTER)
    left = onnx.load(tmp_path / "m.onnx").graph
    assert [item.name for item in left.initializer] == ["w", "v"]
    interface.give_defaults(tmp_path / "m.onnx", taken)
    assert overridable(tmp_path / "m.onnx") == set(_ADAPTER)


def _written(tmp_path: Path, change: Any) -> tuple[Path, onnx.GraphProto]:
    source = onnx_model(
        "y = Relu(x) z = Neg(unused)",
        x="float[n,2] x, float[2] unused",
        y="float[n,2] y, float[2] z",
    )
    written = onnx.ModelProto()
    written.CopyFrom(source)
    change(written.graph)
    onnx.save(written, tmp_path / "m.onnx")
    return tmp_path / "m.onnx", source.graph


def test_order_names_and_sizes_come_back(tmp_path: Path) -> None:
    def change(graph: onnx.GraphProto) -> None:
        outputs = list(graph.output)[::-1]
        del graph.output[:]
        graph.output.extend(outputs)
        graph.input[0].type.tensor_type.shape.dim[0].dim_value = 7
        graph.output[1].type.tensor_type.ClearField("shape")

    path, source = _written(tmp_path, change)
    interface.restore(path, source)
    graph = onnx.load(path).graph
    assert list(graph.input) == list(source.input)
    assert list(graph.output) == list(source.output)


def test_an_input_that_a_pass_dropped_is_there_again(tmp_path: Path) -> None:
    def change(graph: onnx.GraphProto) -> None:
        del graph.input[1]
        del graph.node[1]
        graph.node.append(helper.make_node("Constant", [], ["z"], value_floats=[1.0, 2.0]))

    path, source = _written(tmp_path, change)
    interface.restore(path, source)
    names = [item.name for item in onnxruntime.InferenceSession(path).get_inputs()]
    assert names == ["x", "unused"]


def _to_half(graph: onnx.GraphProto) -> None:
    graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def _without_output(graph: onnx.GraphProto) -> None:
    del graph.output[1]


def _new_input(graph: onnx.GraphProto) -> None:
    graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_to_half, "output 'y' gets another type"),
        (_without_output, "output 'z' is lost"),
        (_new_input, "new input 'more'"),
    ],
)
def test_another_interface_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    path, source = _written(tmp_path, change)
    with pytest.raises(StepRefusedError, match=words):
        interface.restore(path, source)


def _functions() -> onnx.ModelProto:
    """Returns a model whose functions have the names of operators of ONNX."""
    opsets = [helper.make_opsetid("", 17)]
    cube = [
        helper.make_node("Mul", ["a", "a"], ["q"]),
        helper.make_node("Mul", ["q", "a"], ["b"]),
    ]
    power = [helper.make_node("Exp", ["a"], ["r"]), helper.make_node("MatMul", ["r", "w"], ["b"])]
    model = onnx_model(
        "n = Mul(x, three) r = my.Relu(n) m = my.MatMul(r, w) y = MatMul(m, v)",
        {"three": 0.3, "w": normal(0, 64, 64) / 64, "v": normal(1, 64, 32)},
        x="float[2,64] x",
        y="float[2,32] y",
    )
    model.functions.append(helper.make_function("my", "Relu", ["a"], ["b"], cube, opsets))
    model.functions.append(helper.make_function("my", "MatMul", ["a", "w"], ["b"], power, opsets))
    model.opset_import.append(helper.make_opsetid("my", 1))
    return model


@pytest.mark.parametrize(
    "half",
    [{"pre_pass": "algebra"}, {"precision": "int8_weight_only"}, {"precision": "int8_dynamic"}],
)
def test_functions_with_names_of_operators_keep_their_meaning(
    half: dict[str, Any], tmp_path: Path
) -> None:
    model = _functions()
    made = make(model, tmp_path, _FEEDS, **half)
    assert error_of(model, made, _FEEDS) < 0.05
    assert not onnx.load(made).functions


def test_nodes_that_are_not_in_order_are_sorted(tmp_path: Path) -> None:
    """ONNX Runtime opens such a model, and tools go through the nodes in their order."""
    model = onnx_model(
        "y = Relu(a) a = MatMul(x, w) z = Neg(a)",
        {"w": normal(0, 64, 4)},
        x="float[2,64] x",
        y="float[2,4] y, float[2,4] z",
    )
    made = make(model, tmp_path, outputs="y")
    assert run(made, _FEEDS[0])[0].shape == (2, 4)
