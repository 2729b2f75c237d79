"""One table for the embedding and the last product, in blocks of few bits.

``MatMulNBits`` stores a weight [K, N] as N rows of blocks, each block as bytes, and
``GatherBlockQuantized`` reads such rows of three dimensions where `quantize_axis` names the last
one: a block has one scale there, and the scales get a dimension of size 1. So both operators
take the same tensor, and no node lies between it and them that ONNX Runtime would compute ahead of
a run, which would store the table twice. Two zero points of four bits share a byte for the
product; for the rows each has its own.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.facts.tied import Tied
from autotune.facts.weights import read
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import refill, remove_unused

_DOMAIN = "com.microsoft"


def detach(graph: onnx.GraphProto, tied: Tied) -> onnx.NodeProto:
    """Removes the node that takes rows of the float table, and returns it.

    The graph is not whole before :func:`attach`.
    """
    node = next(node for node in graph.node if tied.rows in node.output)
    gather = onnx.NodeProto()
    gather.CopyFrom(node)
    graph.node.remove(node)
    remove_unused(graph, ("Identity", "Transpose"))
    return gather


def attach(graph: onnx.GraphProto, gather: onnx.NodeProto, tied: Tied, folder: Path) -> None:
    """Makes the rows come from the packed weight of the last product.

    Args:
        graph: The graph, its products packed, without the node that took rows.
        gather: That node.
        tied: Both nodes.
        folder: Where the graph's external data are.

    Raises:
        StepRefusedError: the last product is not packed, or its zero points are floats.
    """
    product = _packed_product(graph, tied)
    form = {item.name: item.i for item in product.attribute}
    table, scales, zeros = (*product.input[1:4], "")[:3]
    blocks = -(-form["K"] // form["block_size"])
    names = [f"{tied.rows}_{end}" for end in ("sizes", "shape", "row", "blocks")]
    graph.initializer.append(_whole([form["N"], blocks, 1], names[0]))
    nodes = [helper.make_node("Reshape", [scales, names[0]], [f"{names[0]}_scales"])]
    inputs = [table, gather.input[1], nodes[0].output[0]]
    if zeros:
        tensor = next(item for item in graph.initializer if item.name == zeros)
        each = _zero_points(tensor, folder, form["bits"], form["N"], blocks)
        graph.initializer.append(numpy_helper.from_array(each, f"{names[0]}_zeros"))
        inputs.append(f"{names[0]}_zeros")
    nodes.append(
        helper.make_node(
            "GatherBlockQuantized", inputs, [names[3]], name=gather.name or names[3],
            domain=_DOMAIN, bits=form["bits"], block_size=form["block_size"],
            gather_axis=0, quantize_axis=2,
        )
    )  # fmt: skip
    # the blocks of a row come together, whatever the rank of the indices
    is_padded = form["K"] % form["block_size"]
    whole = f"{tied.rows}_padded" if is_padded else tied.rows
    graph.initializer.append(_whole([-1], f"{names[2]}_rest"))
    nodes += [
        helper.make_node("Shape", [gather.input[1]], [names[1]]),
        helper.make_node("Concat", [names[1], f"{names[2]}_rest"], [names[2]], axis=0),
        helper.make_node("Reshape", [names[3], names[2]], [whole]),
    ]
    if is_padded:
        ends = {f"{tied.rows}_first": 0, f"{tied.rows}_end": form["K"], f"{tied.rows}_axis": -1}
        graph.initializer.extend(_whole([value], name) for name, value in ends.items())
        nodes.append(helper.make_node("Slice", [whole, *ends], [tied.rows]))
    _insert(graph, nodes, tied.rows)


def _packed_product(graph: onnx.GraphProto, tied: Tied) -> onnx.NodeProto:
    """Returns the last product; behind it a Gemm's summand may have been added."""
    makers = {name: node for node in graph.node for name in node.output}
    node: onnx.NodeProto = makers[tied.product]
    if node.op_type == "Add":
        node = makers.get(node.input[0], node)
    if node.op_type != "MatMulNBits":
        raise StepRefusedError("the last product stays in float, and its table with it")
    return node


def _zero_points(
    tensor: onnx.TensorProto, folder: Path, bits: int, rows: int, blocks: int
) -> np.ndarray:
    """Returns the zero points [rows, blocks, 1], one in a byte."""
    packed = read(tensor, folder)
    if packed.dtype != np.uint8:
        raise StepRefusedError("GatherBlockQuantized takes no zero points that are floats")
    packed = packed.reshape(rows, -1)
    if bits == 4:
        packed = np.stack([packed & 15, packed >> 4], axis=-1).reshape(rows, -1)
    return np.ascontiguousarray(packed[:, :blocks, None])


def _insert(graph: onnx.GraphProto, fresh: list[onnx.NodeProto], output: str) -> None:
    """Puts nodes in front of the first one that takes `output`."""
    nodes = list(graph.node)
    place = next(i for i, node in enumerate(nodes) if output in node.input)
    nodes[place:place] = fresh
    refill(graph.node, nodes)


def _whole(values: list[int], name: str) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)
