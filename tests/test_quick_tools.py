"""The quicker tools write the very files that ONNX Runtime's tools write."""

import contextlib
from pathlib import Path
from typing import Any

import hidden_weights
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_models import BUILDERS

from autotune.facts import workload as workloads
from autotune.facts.feeds import Feed
from autotune.facts.model import describe
from autotune.graph import int8
from autotune.graph.entries import StepRefusedError
from autotune.graph.quick_tools import quick_tools

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.process]

_BUILDERS = {
    **BUILDERS,
    "branching": hidden_weights.branching,
    "tied": hidden_weights.tied,
}
_FEW_CHANNELS = 3


def _write(kind: str, path: Path) -> tuple[Feed, ...]:
    """Writes a model with a channel of zeros, one of tiny and one of large weights."""
    model = _BUILDERS[kind]()
    for item in model.graph.initializer:
        weight = numpy_helper.to_array(item).copy()
        if weight.ndim > 1 and weight.dtype == np.float32 and min(weight.shape) > _FEW_CHANNELS:
            # in a product the last axis has the channels, in a convolution the first
            last = weight.T
            for channels in (weight, last):
                channels[0], channels[1] = 0.0, channels[1] * 1e-42
                channels[2] = channels[2] * 1e4
            item.CopyFrom(numpy_helper.from_array(weight, item.name))
    onnx.save(model, path)
    return workloads.generate(describe(path), {}).feeds


@pytest.mark.parametrize("kind", _BUILDERS)
@pytest.mark.parametrize("precision", [int8.static, int8.dynamic])
@pytest.mark.parametrize(
    "options",
    [{}, {"reduce_range": True}, {"unsigned_weights": True}, {"per_channel": False}],
    ids=str,
)
def test_the_file_is_the_same(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    precision: Any,
    options: dict[str, bool],
) -> None:
    """Byte for byte; and what the tools refuse is refused."""
    source = tmp_path / "source.onnx"
    feeds = _write(kind, source)
    chosen = {"per_channel": True, **options}

    def written(name: str) -> bytes | str:
        try:
            precision(source, tmp_path / name, feeds, **chosen)
        except StepRefusedError as refusal:
            return str(refusal)
        return (tmp_path / name).read_bytes()

    quick = written("quick.onnx")
    monkeypatch.setattr(int8, "quick_tools", contextlib.nullcontext)
    assert quick == written("usual.onnx")


def _weight_of(path: Path) -> str:
    graph = onnx.load(path).graph
    (first, *_) = (node for node in graph.node if node.op_type == "Conv")
    return str(first.input[1])


@pytest.mark.parametrize(
    "asked",
    [
        {"weight": "QInt16"},
        {"MinimumRealRange": 0.5},
        {"TensorQuantOverrides": [{"axis": 0, "symmetric": True, "reduce_range": True}]},
        {"BlockSize": 4},
        {"nan": True},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_else_the_tools_round_is_theirs(tmp_path: Path, asked: dict[str, Any]) -> None:
    """Other types, given limits and scales by block go the usual way, as do values without end."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    source = tmp_path / "source.onnx"
    feeds = _write("cnn", source)
    options = {"ActivationSymmetric": False, **asked}
    weight_type = getattr(QuantType, options.pop("weight", "QInt8"))
    if "TensorQuantOverrides" in options:
        options["TensorQuantOverrides"] = {_weight_of(source): options["TensorQuantOverrides"]}
    if options.pop("nan", False):
        model = onnx.load(source)
        (item,) = (i for i in model.graph.initializer if i.name == _weight_of(source))
        weight = numpy_helper.to_array(item).copy()
        weight[0] = np.nan
        item.CopyFrom(numpy_helper.from_array(weight, item.name))
        onnx.save(model, source)

    class Samples(CalibrationDataReader):  # type: ignore[misc]  # it has no types
        def __init__(self) -> None:
            self._left = iter(feeds)

        def get_next(self) -> Feed | None:
            return next(self._left, None)

    def written(name: str) -> bytes | str:
        try:
            quantize_static(
                source,
                tmp_path / name,
                Samples(),
                per_channel=True,
                weight_type=weight_type,
                extra_options=options,
            )
        except Exception as error:  # noqa: BLE001  # the same error is as good as the same file
            return f"{type(error).__name__} {error}"
        return (tmp_path / name).read_bytes()

    with quick_tools():
        quick = written("quick.onnx")
    assert quick == written("usual.onnx")


def test_the_tools_are_as_before_afterwards() -> None:
    """Also where something fails inside."""
    from onnxruntime.quantization import onnx_quantizer, qdq_quantizer
    from onnxruntime.quantization.onnx_model import ONNXModel

    def tools() -> tuple[object, ...]:
        return (
            onnx_quantizer.ONNXQuantizer.quantize_weight_per_channel_impl,
            qdq_quantizer.QDQQuantizer._calc_initializer_quant_params,
            qdq_quantizer.quantize_onnx_initializer,
            ONNXModel.replace_input_of_all_nodes,
        )

    before = tools()
    with contextlib.suppress(ValueError), quick_tools():
        assert not set(before) & set(tools())
        raise ValueError
    assert tools() == before


def test_inputs_are_replaced_in_all_nodes() -> None:
    """Those that were added since, and where nodes were removed; a new name may be replaced too."""
    from onnxruntime.quantization.onnx_model import ONNXModel

    def node(name: str, *inputs: str) -> onnx.NodeProto:
        return onnx.helper.make_node("Sum", inputs, [f"{name}_out"], name)

    def inputs() -> list[list[str]]:
        return [list(item.input) for item in graph.node]

    graph = onnx.helper.make_graph([node("a", "x", "y", "x"), node("b", "y")], "g", [], [])
    model = ONNXModel(onnx.helper.make_model(graph))
    graph = model.model.graph
    with quick_tools():
        model.replace_input_of_all_nodes("x", "z")
        assert inputs() == [["z", "y", "z"], ["y"]]
        model.add_node(node("c", "x", "z"))
        model.replace_input_of_all_nodes("z", "w")
        assert inputs() == [["w", "y", "w"], ["y"], ["x", "w"]]
        model.remove_node(graph.node[0])
        model.add_node(node("d", "y"))
        model.replace_input_of_all_nodes("y", "v")
        assert inputs() == [["v"], ["x", "w"], ["v"]]
        model.replace_input_of_nodes("w", "u", {"c"})
        model.replace_input_of_all_nodes("w", "t")
        assert inputs() == [["v"], ["x", "u"], ["v"]]
