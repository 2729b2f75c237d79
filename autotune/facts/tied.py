"""The table that a model's embedding and its last product share: tied weights.

Exporters write it once, turned for one of both, or twice, with the same numbers.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from autotune.facts.weights import read

_ROWS_AT_ONCE = 4096
_FIRST_ROWS = 8


class Tied(NamedTuple):
    """The two nodes that share a table.

    Attributes:
        rows: The output of the node that takes rows of it.
        product: The output of the last product.
    """

    rows: str
    product: str


class _Matrix(NamedTuple):
    """A stored matrix, or the same one transposed."""

    name: str
    is_turned: bool

    def turned(self) -> "_Matrix":
        return _Matrix(self.name, not self.is_turned)


def tied_table(model: onnx.ModelProto, folder: Path) -> Tied | None:
    """Returns the embedding and the last product of the main graph if they share a table.

    Args:
        model: The model, with or without its external data in memory.
        folder: Where its external data are.
    """
    tensors = {
        item.name: item
        for item in model.graph.initializer
        if len(item.dims) == 2 and item.data_type == onnx.TensorProto.FLOAT
    }
    matrices = {name: _Matrix(name, is_turned=False) for name in tensors}
    gathers: list[tuple[str, _Matrix]] = []
    last: tuple[str, _Matrix] | None = None
    for node in model.graph.node:
        own = {item.name: item for item in node.attribute}
        matrix = matrices.get(node.input[0]) if node.input else None
        if matrix and node.op_type == "Identity":
            matrices[node.output[0]] = matrix
        elif matrix and node.op_type == "Transpose":
            matrices[node.output[0]] = matrix.turned()
        elif matrix and node.op_type == "Gather" and not ("axis" in own and own["axis"].i):
            gathers.append((node.output[0], matrix))
        weight = matrices.get(node.input[1]) if len(node.input) > 1 else None
        if weight and node.op_type in ("MatMul", "Gemm"):
            is_turned = "transB" in own and own["transB"].i
            last = node.output[0], weight.turned() if is_turned else weight
    for rows, table in gathers:
        if last is not None and _is_same(table, last[1].turned(), tensors, folder):
            return Tied(rows, last[0])
    return None


def _is_same(a: _Matrix, b: _Matrix, tensors: Mapping[str, onnx.TensorProto], folder: Path) -> bool:
    """Returns whether both have the same numbers."""
    if a.name == b.name:
        return a.is_turned == b.is_turned
    sizes = [tensors[m.name].dims[:: -1 if m.is_turned else 1] for m in (a, b)]
    if list(sizes[0]) != list(sizes[1]):
        return False
    first, second = (
        read(tensors[m.name], folder).T if m.is_turned else read(tensors[m.name], folder)
        for m in (a, b)
    )
    # most tables that are not the same differ at once
    starts = (slice(0, _FIRST_ROWS), *map(_rows_from, range(0, len(first), _ROWS_AT_ONCE)))
    return all(np.array_equal(first[some], second[some]) for some in starts)


def _rows_from(start: int) -> slice:
    return slice(start, start + _ROWS_AT_ONCE)
