"""The float model in the form that the quantisation tools get it in.

ONNX Runtime's tools lose a Gemm's factors, take the range behind a Relu for an output before it,
and invent names by appending to others. So each of these is given a form that they handle, and the
result is compared with its source.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper, version_converter

from autotune.facts.feeds import Feed
from autotune.facts.graphs import ONNX_DOMAINS, all_graphs, all_nodes, operator_of
from autotune.graph import sensitivity
from autotune.graph.distance import exact_outputs, open_exactly, output_distance
from autotune.graph.entries import UnfitModelError
from autotune.graph.model_file import LARGEST_PROTO_BYTES, refill, size_with_data, write_optimised

# The first opset with a scale for each channel, and with QDQ around most operators.
_QDQ_OPSET = 13
# Before it a Resize had no attributes for where pixels lie.
_RESIZE_OPSET = 11
# What ONNX Runtime calls the types of tensors that decide on how nodes are quantised.
_ELEMENT_TYPES = {
    "tensor(float)": onnx.TensorProto.FLOAT,
    "tensor(float16)": onnx.TensorProto.FLOAT16,
    "tensor(int64)": onnx.TensorProto.INT64,
    "tensor(int32)": onnx.TensorProto.INT32,
    "tensor(bool)": onnx.TensorProto.BOOL,
}
# The order of sums changes some last digits; a converter that changes the meaning does more.
_MOST_ROUNDING = 1e-4
_NAMES = "autotune.names"
# It ends in no digit: ONNX Runtime's tools call copies of a shared bias by its name and a number.
_NEUTRAL = "autotune_{}_"
_DERIVED = re.compile(r"(autotune_\d+_)(.+)")


def make_ready(source: Path, path: Path, samples: Sequence[Feed]) -> None:
    """Writes the model as the tools get it: every tensor has a neutral name.

    Raises:
        UnfitModelError: it is too large, its opset cannot be raised, or what was made of it
            answers otherwise.
    """
    if size_with_data(source) > LARGEST_PROTO_BYTES:
        raise UnfitModelError("ONNX Runtime's tools cannot quantise a model over 2 GiB")
    raised = _raised(onnx.load(source))
    onnx.save(raised, path)
    expected = exact_outputs(source, samples[:1])
    distance = float("inf")
    # ONNX Runtime's own quant_pre_process drops what it optimised without symbolic shapes (to 1.30)
    for model in (_optimised(path), raised):
        if model is None:
            continue
        sensitivity.name_nodes(model)
        _make_gemms_plain(model.graph)
        _part_outputs(model.graph)
        _give_neutral_names(model)
        _add_types(model)
        onnx.save(model, path)
        distance = _distance(expected, path, samples[:1])
        if distance <= _MOST_ROUNDING:
            return
    raise UnfitModelError(
        f"made ready for quantisation, the float model answers otherwise (error {distance:.2g})"
    )


def original_names(model: onnx.ModelProto) -> dict[str, str]:
    """Returns the names that the tensors of a ready model have in its source, by neutral ones."""
    properties = {item.key: item.value for item in model.metadata_props}
    names: dict[str, str] = json.loads(properties.get(_NAMES, "{}"))
    return names


def give_names(path: Path, names: Mapping[str, str]) -> None:
    """Gives the tensors of a model's file the names that they have in its source.

    What a tool derived from a neutral name is derived from the name of the source, if that is free.
    """
    model = onnx.load(path)
    given = dict(names)
    present = dict.fromkeys(n for graph in all_graphs(model.graph) for n in _names(graph))
    taken = {*names.values(), *present}
    for name in present:
        derived = _DERIVED.fullmatch(name)
        if derived is None or derived[1] not in names:
            continue
        free = f"{names[derived[1]]}{derived[2]}"
        if free not in taken:
            given[name] = free
            taken.add(free)
    _rename(model, given)
    kept = [item for item in model.metadata_props if item.key != _NAMES]
    del model.metadata_props[:]
    model.metadata_props.extend(kept)
    onnx.save(model, path)


def _distance(expected: Sequence[Sequence[Any]], path: Path, samples: Sequence[Feed]) -> float:
    """Returns the largest distance of an output of a ready model; infinite if it does not run."""
    names = {name: neutral for neutral, name in original_names(onnx.load(path)).items()}
    feeds = [{names.get(name, name): array for name, array in feed.items()} for feed in samples]
    try:
        actual = exact_outputs(path, feeds)
    except MemoryError:  # another time it may go well
        raise
    except Exception:  # noqa: BLE001  # the other form may run
        return float("inf")
    # an output without an element tells nothing; what the study measures decides
    return max((d for d in map(output_distance, expected, actual) if d is not None), default=0.0)


def _raised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with an opset that the tools know.

    Raises:
        UnfitModelError: the opset cannot be raised.
    """
    opset = max(item.version for item in model.opset_import if item.domain in ONNX_DOMAINS)
    if opset >= _QDQ_OPSET:
        return model
    try:
        raised = version_converter.convert_version(model, _QDQ_OPSET)
    except Exception as error:
        raise UnfitModelError(f"opset {opset} cannot be raised to {_QDQ_OPSET}") from error
    for node in all_nodes(raised.graph):
        # the converter leaves these out, and their defaults are not what a Resize did before
        if operator_of(node) == "Resize" and opset < _RESIZE_OPSET:
            mode = next((item.s for item in node.attribute if item.name == "mode"), b"nearest")
            _set(node, "coordinate_transformation_mode", "asymmetric")
            if mode == b"nearest":
                _set(node, "nearest_mode", "floor")
    return raised


def _set(node: onnx.NodeProto, name: str, value: str) -> None:
    others = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def _optimised(path: Path) -> onnx.ModelProto | None:
    """Returns the model as ONNX Runtime folds it, its shapes inferred; None where that fails."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        optimised = Path(folder) / path.name
        try:
            write_optimised(path, optimised, "ORT_ENABLE_BASIC")
            return onnx.shape_inference.infer_shapes(onnx.load(optimised))
        except MemoryError:  # another time it may go well
            raise
        # it fails on some models that can be quantised; a disk that is full fails later again
        except Exception:  # noqa: BLE001
            return None


def _make_gemms_plain(graph: onnx.GraphProto) -> None:
    """Folds the factors of each Gemm of the main graph into constants, and gives its bias one axis.

    The tools drop beta, and write scales for each channel of a bias as if it had one axis. What
    cannot be folded becomes a node of its own.
    """
    constants = {item.name: numpy_helper.to_array(item) for item in graph.initializer}
    constants = {n: a for n, a in constants.items() if n not in {i.name for i in graph.input}}
    written: list[onnx.NodeProto] = []
    for node in graph.node:
        written.append(node)
        if operator_of(node) != "Gemm":
            continue
        own = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        alpha, beta = own.get("alpha", 1.0), own.get("beta", 1.0)
        weight = constants.get(node.input[1])
        if weight is not None and alpha != 1:
            scaled = (weight.astype(np.float64) * alpha).astype(weight.dtype)
            node.input[1] = _constant(graph, scaled, f"{node.output[0]}_autotune_weight")
            _drop_attribute(node, "alpha")
        bias = node.input[2] if len(node.input) > 2 else ""
        if not bias:
            continue
        columns = 0 if weight is None else int(weight.shape[0 if own.get("transB") else 1])
        values = constants.get(bias)
        rows = ((), (1,), (1, 1), (columns,), (1, columns))
        if values is not None and columns and values.shape in rows:
            row = np.broadcast_to(values.astype(np.float64).reshape(-1) * beta, (columns,))
            node.input[2] = _constant(
                graph, row.astype(values.dtype), f"{node.output[0]}_autotune_bias"
            )
            _drop_attribute(node, "beta")
        else:
            written += _bias_apart(graph, node, beta)
    refill(graph.node, written)


def _bias_apart(graph: onnx.GraphProto, node: onnx.NodeProto, beta: float) -> list[onnx.NodeProto]:
    """Takes a Gemm's bias away; returns the nodes that add it."""
    bias, output = node.input[2], node.output[0]
    del node.input[2:]
    _drop_attribute(node, "beta")
    node.output[0] = f"{output}_autotune_product"
    nodes = []
    if beta != 1:
        factor = _constant(graph, np.array(beta, np.float32), f"{output}_autotune_beta")
        nodes.append(helper.make_node("Mul", [bias, factor], [f"{output}_autotune_scaled"]))
        bias = f"{output}_autotune_scaled"
    nodes.append(helper.make_node("Add", [node.output[0], bias], [output]))
    for item in nodes:
        item.name = f"{node.name}_{operator_of(item)}"
    return nodes


def _constant(graph: onnx.GraphProto, values: np.ndarray, name: str) -> str:
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
    return name


def _drop_attribute(node: onnx.NodeProto, name: str) -> None:
    kept = [item for item in node.attribute if item.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)


def _part_outputs(graph: onnx.GraphProto) -> None:
    """Makes outputs that nodes take as well copies of what the nodes take.

    A tensor that one Relu alone takes is given the Relu's range, and an output has its own.
    """
    taken = {name for node in all_nodes(graph) for name in node.input}
    makers = {name: node for node in graph.node for name in node.output}
    copies = []
    for name in [item.name for item in graph.output if item.name in taken]:
        if name not in makers:
            continue
        inner = f"{name}_autotune_inner"
        for node in all_nodes(graph):
            node.input[:] = [inner if item == name else item for item in node.input]
        for body in list(all_graphs(graph))[1:]:
            for item in body.output:
                item.name = inner if item.name == name else item.name
        maker = makers[name]
        maker.output[:] = [inner if item == name else item for item in maker.output]
        copies.append(helper.make_node("Identity", [inner], [name], f"{maker.name}_{name}_copy"))
    refill(graph.node, [*graph.node, *copies])


def _give_neutral_names(model: onnx.ModelProto) -> None:
    """Names tensors so that no name that a tool derives from one is another one's."""
    neutral: dict[str, str] = {}
    for graph in all_graphs(model.graph):
        for name in _names(graph):
            neutral.setdefault(name, _NEUTRAL.format(len(neutral)))
    _rename(model, neutral)
    names = {own: name for name, own in neutral.items()}
    model.metadata_props.add(key=_NAMES, value=json.dumps(names))


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Yields the names of the tensors of one graph, most of them several times."""
    for item in (*graph.input, *graph.initializer, *graph.output):
        yield item.name
    for node in graph.node:
        yield from filter(None, (*node.input, *node.output))


def _rename(model: onnx.ModelProto, names: Mapping[str, str]) -> None:
    """Gives tensors new names, in all graphs of a model."""
    for graph in all_graphs(model.graph):
        for item in (*graph.input, *graph.initializer, *graph.output, *graph.value_info):
            item.name = names.get(item.name, item.name)
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]


def _add_types(model: onnx.ModelProto) -> None:
    """Adds the types of tensors that shape inference does not know.

    It stops at ONNX Runtime's own operators, which passes write. The quantisation tools refuse a
    matrix product whose input has no type, and calibration passes such tensors over.
    """
    graph = model.graph
    known = {item.name for item in (*graph.input, *graph.output, *graph.value_info)}
    names = [name for node in graph.node for name in node.output if name and name not in known]
    if not names:
        return
    own_outputs = len(graph.output)
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    try:
        outputs = open_exactly(model.SerializeToString()).get_outputs()
    except MemoryError:  # another time it may go well
        raise
    except Exception:  # noqa: BLE001  # the tools do without, or say what they need
        return
    finally:
        del graph.output[own_outputs:]
    types = {item.name: _ELEMENT_TYPES.get(item.type) for item in outputs}
    graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, kind, None)
        for name in names
        if (kind := types[name]) is not None
    )
