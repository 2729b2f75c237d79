"""Weights of matrix products in blocks of few bits; activations stay floats.

The model is written one tensor after the other: each weight is mapped from its file, rounded, and
appended to the new file, so that the largest one decides how much memory that takes.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import external_data_helper, helper, numpy_helper

from autotune.facts.graphs import all_graphs, all_nodes, attribute_of, operator_of
from autotune.facts.weights import read
from autotune.graph.algebra.model import fold_constants
from autotune.graph.entries import AS_PRECISION, StepRefusedError, UnfitModelError
from autotune.graph.model_file import refill, size_with_data

Array = NDArray[Any]

_DOMAIN = "com.microsoft"
_ALIGNED_BYTES = 4096  # a page, so that ONNX Runtime maps it
_CHUNK_BYTES = 1 << 24
_SMALLEST_BYTES = 1024
# The weights of smaller models lie in the model's own file.
_LARGEST_INSIDE_BYTES = 1 << 27
# Up to here a weight that a node computes from constants is computed first, in memory.
_FOLDED_BYTES = 1 << 30
_FLOAT = "float"
_BITS = {"int8": 8, "int4": 4}


def quantise(
    source: Path,
    target: Path,
    *,
    bits: int = 8,
    last_product: str = AS_PRECISION,
    block_size: int = 32,
    accuracy_level: int = 4,
    zero_points: bool = False,
) -> None:
    """Writes the model with the weights of matrix products in blocks of `bits` bits.

    Args:
        bits: 4 or 8.
        accuracy_level: What ONNX Runtime may round activations to: 0 leaves them in fp32, 4 takes
            eight bits.
        last_product: The precision of the last product, which gives a decoder's logits.

    Raises:
        StepRefusedError: there is nothing to quantise.
    """
    size_bytes = size_with_data(source)
    is_inside = size_bytes <= _LARGEST_INSIDE_BYTES
    model = onnx.load(source, load_external_data=is_inside)
    # above that such a weight stays as it is, unless it is a turned matrix
    is_folded = size_bytes <= _FOLDED_BYTES and _has_computed_weights(model.graph)
    if is_folded:
        model = model if is_inside else onnx.load(source)
        fold_constants(model)
    _move_weights_out(model.graph)
    tensors = {item.name: item for item in model.graph.initializer}
    weights = [node.input[1] for node in products(model.graph, tensors)]
    # both branches of a merged decoder take the same last weight
    last = weights[-1] if weights else ""

    def bits_of(node: onnx.NodeProto) -> int | None:
        if node.input[1] != last or last_product == AS_PRECISION:
            return bits
        return _BITS.get(last_product)

    form = _Form(block_size, accuracy_level, zero_points)
    if is_inside:
        _pack_products(model, source.parent, _Store(None, ""), bits_of, form)
    else:
        with target.with_name(f"{target.name}.data").open("wb") as file:
            store = _Store(file, f"{target.name}.data")
            _pack_products(model, source.parent, store, bits_of, form)
    onnx.save(model, target)


def _has_computed_weights(graph: onnx.GraphProto) -> bool:
    """Returns whether a node computes a weight of a matrix product from constants."""
    constants = {item.name for item in graph.initializer}
    made = {n.output[0] for n in graph.node if n.input and constants.issuperset(n.input)}
    return any(operator_of(n) in ("MatMul", "Gemm") and n.input[1] in made for n in graph.node)


def _move_weights_out(graph: onnx.GraphProto) -> None:
    """Moves the matrices that are stored in branches and bodies to the main graph."""
    names = {item.name for inner in all_graphs(graph) for item in inner.initializer}
    for inner in list(all_graphs(graph))[1:]:
        outputs = {item.name for item in inner.output}
        matrices = [t for t in inner.initializer if len(t.dims) == 2 and t.name not in outputs]
        for tensor in matrices:
            moved = onnx.TensorProto()
            moved.CopyFrom(tensor)
            inner.initializer.remove(tensor)
            while moved.name in names:  # the other branch may use the name too
                moved.name += "_"
            names.add(moved.name)
            graph.initializer.append(moved)
            for node in all_nodes(inner):
                node.input[:] = [moved.name if n == tensor.name else n for n in node.input]


class _Form(NamedTuple):
    """How the weights of a product are stored, besides their bits."""

    block_size: int
    accuracy_level: int
    zero_points: bool


def _pack_products(
    model: onnx.ModelProto,
    folder: Path,
    store: "_Store",
    bits_of: Callable[[onnx.NodeProto], int | None],
    form: _Form,
) -> None:
    """Makes packed products of a model's matrix products.

    Args:
        folder: Where the model's own data files are.
        store: What holds the new weights.
        bits_of: Returns the bits of a product's weights; None leaves it in float.

    Raises:
        StepRefusedError: there is nothing to quantise.
    """
    graph = model.graph
    tensors = {item.name: item for item in graph.initializer}
    chosen = {
        _key(node): bits for node in products(graph, tensors) if (bits := bits_of(node)) is not None
    }
    if not chosen:
        error = StepRefusedError if any(products(graph, tensors)) else UnfitModelError
        raise error("there is no matrix product with a constant weight to pack")
    turned = _turned_tables(graph, tensors)
    taken = _still_taken(graph, chosen, turned)
    packed: dict[tuple[str, bool, int], list[str]] = {}
    fresh = [store.moved(t, folder) for t in graph.initializer if t.name in taken]
    fresh += [
        store.new(np.ascontiguousarray(read(tensors[name], folder).T), output)
        for output, name in turned.items()
        if output in taken
    ]
    for inner in _inner_first(graph):
        nodes: list[onnx.NodeProto] = []
        for node in (node for node in inner.node if node.output[0] not in turned):
            if _key(node) not in chosen:
                nodes.append(node)
                continue
            key = (*_matrix(node, turned), chosen[_key(node)])
            name, is_turned, bits = key
            if key not in packed:
                weight = read(tensors[name], folder)
                parts = pack(
                    weight.T if is_turned else weight,
                    bits=bits, block_size=form.block_size, zero_points=form.zero_points,
                )  # fmt: skip
                turn = "T" if is_turned else ""
                names = [f"{name}_{end}{bits}{turn}" for end in ("Q", "scales", "zeros")]
                fresh += [store.new(part, n) for part, n in zip(parts, names, strict=False)]
                packed[key] = names[: len(parts)]
                del weight, parts
            rows, columns = _sizes(tensors[name], turned=is_turned)
            nodes += _packed_nodes(
                node, packed[key],
                bits=bits, block_size=form.block_size, accuracy_level=form.accuracy_level,
                K=rows, N=columns,
            )  # fmt: skip
        refill(inner.node, nodes)
    _finish(model, fresh)


def _still_taken(
    graph: onnx.GraphProto, chosen: Collection[tuple[str, ...]], turned: Collection[str]
) -> set[str]:
    """Returns the tensors that something takes beside the weights of replaced nodes."""
    taken = {item.name for item in graph.output}
    for node in all_nodes(graph):
        if node.output[0] not in turned:
            is_chosen = _key(node) in chosen
            taken.update(n for i, n in enumerate(node.input) if i != 1 or not is_chosen)
    return taken


def _turned_tables(
    graph: onnx.GraphProto, tensors: Mapping[str, onnx.TensorProto]
) -> dict[str, str]:
    """Returns the outputs of nodes that turn a constant matrix, each with the matrix.

    Exporters store a table that the embedding and the last product share so. A session would turn
    it each time that it is opened, and hold it twice.
    """
    outputs = {item.name for item in graph.output}
    return {
        node.output[0]: node.input[0]
        for node in graph.node
        if operator_of(node) == "Transpose"
        and node.input[0] in tensors
        and len(tensors[node.input[0]].dims) == 2
        and node.output[0] not in outputs
        and list(attribute_of(node, "perm", [1, 0])) == [1, 0]
    }


def products(
    graph: onnx.GraphProto, tensors: Mapping[str, onnx.TensorProto]
) -> Iterator[onnx.NodeProto]:
    """Yields the products with a constant float matrix stored in the main graph, turned or not.

    Those in the branches and bodies of other nodes come first.
    """
    turned = _turned_tables(graph, tensors)
    for node in (node for inner in _inner_first(graph) for node in inner.node):
        weight = tensors.get(_matrix(node, turned)[0]) if len(node.input) > 1 else None
        if weight is None or weight.data_type != onnx.TensorProto.FLOAT or len(weight.dims) != 2:
            continue
        plain = operator_of(node) == "Gemm" and not attribute_of(node, "transA")
        plain = plain and all(attribute_of(node, name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if operator_of(node) == "MatMul" or plain:
            yield node


def _inner_first(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    """Returns the graph and those inside its nodes, each before the one around it."""
    return [inner for inner in all_graphs(graph) if inner.node][::-1]


def _key(node: onnx.NodeProto) -> tuple[str, ...]:
    """Returns what tells a node from others; two branches may use a name twice."""
    return (operator_of(node), *node.input, *node.output)


def _matrix(node: onnx.NodeProto, turned: Mapping[str, str]) -> tuple[str, bool]:
    """Returns the matrix that a product takes as it is stored, and whether it takes it turned."""
    name = node.input[1]
    is_turned = operator_of(node) == "Gemm" and bool(attribute_of(node, "transB"))
    return (turned[name], not is_turned) if name in turned else (name, is_turned)


def pack(weight: Array, *, bits: int, block_size: int, zero_points: bool) -> list[Array]:
    """Returns a matrix [K, N] as MatMulNBits takes it: integers, scales, and zero points if any."""
    from onnxruntime.capi import _pybind_state

    rows, columns = weight.shape
    blocks = -(-rows // block_size)
    padding = blocks * block_size - rows
    # a transposed weight stays so when it is padded, and the tool reads row by row
    weight = np.ascontiguousarray(np.pad(weight, ((0, padding), (0, 0))) if padding else weight)
    integers = np.zeros((columns, blocks, block_size * bits // 8), np.uint8)
    scales = np.zeros((columns, blocks), np.float32)
    zeros = np.zeros((columns, -(-blocks * bits // 8)), np.uint8)
    rounded = getattr(_pybind_state, f"quantize_matmul_{bits}bits")
    rounded(integers, weight, scales, zeros, block_size, columns, rows, not zero_points)
    return [integers, scales, *([zeros] if zero_points else [])]


class _Store:
    """The new file of weights: what is appended to it becomes an initializer.

    Args:
        file: The file; None keeps all weights in the model's own.
    """

    def __init__(self, file: Any, name: str) -> None:
        self._file, self._name = file, name

    def new(self, array: Array, name: str) -> onnx.TensorProto:
        """Returns a new tensor, whose numbers lie in the file unless they are few."""
        if self._file is None or array.nbytes < _SMALLEST_BYTES:
            return numpy_helper.from_array(np.asarray(array), name)
        tensor = onnx.TensorProto(
            name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype)
        )
        begin = self._begin()
        self._file.write(np.ascontiguousarray(array).data.cast("B"))
        return self._placed(tensor, begin, array.nbytes)

    def moved(self, tensor: onnx.TensorProto, folder: Path) -> onnx.TensorProto:
        """Returns a tensor of the source, its numbers in the new file if they were in one."""
        if not external_data_helper.uses_external_data(tensor):
            return tensor
        place: Any = external_data_helper.ExternalDataInfo(tensor)
        begin, left = self._begin(), place.length
        with (folder / place.location).open("rb") as data:
            data.seek(place.offset or 0)
            while left is None or left > 0:
                chunk = data.read(_CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES))
                if not chunk:
                    break
                self._file.write(chunk)
                left = None if left is None else left - len(chunk)
        return self._placed(tensor, begin, self._file.tell() - begin)

    def _begin(self) -> int:
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNED_BYTES))
        return int(self._file.tell())

    def _placed(self, tensor: onnx.TensorProto, offset: int, length: int) -> onnx.TensorProto:
        self._file.flush()
        placed = onnx.TensorProto()
        placed.CopyFrom(tensor)
        placed.ClearField("raw_data")
        placed.data_location = onnx.TensorProto.EXTERNAL
        del placed.external_data[:]
        for key, value in (("location", self._name), ("offset", offset), ("length", length)):
            placed.external_data.add(key=key, value=str(value))
        return placed


def _packed_nodes(
    node: onnx.NodeProto, weights: list[str], **attributes: Any
) -> Iterator[onnx.NodeProto]:
    """Yields what takes the place of a product: one of packed weights, and a Gemm's summand."""
    has_summand = len(node.input) > 2 and node.input[2]
    output = f"{node.output[0]}_packed" if has_summand else node.output[0]
    yield helper.make_node(
        "MatMulNBits", [node.input[0], *weights], [output],
        name=f"{node.name or node.output[0]}_packed", domain=_DOMAIN, **attributes,
    )  # fmt: skip
    if has_summand:
        yield helper.make_node("Add", [output, node.input[2]], [node.output[0]])


def _finish(model: onnx.ModelProto, fresh: list[onnx.TensorProto]) -> None:
    del model.graph.initializer[:]
    model.graph.initializer.extend(fresh)
    if not any(item.domain == _DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))


def _sizes(tensor: onnx.TensorProto, *, turned: bool) -> tuple[int, int]:
    first, second = tensor.dims
    return (second, first) if turned else (first, second)
