"""Embeddings in eight bits: tables that give rows, each block of a row with a scale of its own.

ONNX Runtime's operator reads the rows that it needs and writes floats. The table stays in eight
bits in memory as well, about a quarter of what it takes as floats.
"""

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from autotune.facts.weights import embedding_nodes
from autotune.graph.algebra.model import fold_constants
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import save

_DOMAIN = "com.microsoft"
# A row of fewer values has one scale.
_BLOCK = 128
_BITS = 8
# The operator's own zero where it is given none, and the steps to each side of it.
_ZERO, _STEPS = 128, 127
# A table may have most of a model's gigabytes: rounding it takes memory for so many rows.
_ROWS_AT_ONCE = 4096


def quantise(source: Path, target: Path) -> None:
    """Writes the model with the tables of its embeddings in eight bits.

    Raises:
        StepRefusedError: it has no embeddings.
    """
    model = onnx.load(source)
    fold_constants(model)
    tables = {item.name: item for item in model.graph.initializer}
    nodes = [n for n in embedding_nodes(model.graph) if _is_finite(tables[n.input[0]])]
    if not nodes:
        raise StepRefusedError("there is no embedding with a table of its own")
    scales: dict[str, str] = {}
    for node in nodes:
        name = node.input[0]
        if name not in scales:
            integers, steps = _rounded(numpy_helper.to_array(tables[name]))
            scales[name] = f"{name}_scales"
            while scales[name] in tables:
                scales[name] += "_"
            tables[name].CopyFrom(numpy_helper.from_array(integers, name))
            model.graph.initializer.append(numpy_helper.from_array(steps, scales[name]))
        _take_blocks(node, scales[name])
    if not any(item.domain == _DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(_DOMAIN, 1))
    # the types of the tables that are listed are no longer theirs
    kept = [item for item in model.graph.value_info if item.name not in scales]
    del model.graph.value_info[:]
    model.graph.value_info.extend(kept)
    save(model, target)


def _is_finite(table: onnx.TensorProto) -> bool:
    """Returns whether all values are finite: a table of masks may hold minus infinity."""
    values = numpy_helper.to_array(table)
    return bool(np.isfinite(values.min()) and np.isfinite(values.max()))


def _take_blocks(node: onnx.NodeProto, scales: str) -> None:
    """Makes a node take rows of a table of integers with these scales."""
    blocks = helper.make_node(
        "GatherBlockQuantized",
        [*node.input, scales],
        list(node.output),
        name=node.name,
        domain=_DOMAIN,
        bits=_BITS,
        block_size=_BLOCK,
        gather_axis=0,
        quantize_axis=1,
    )
    node.CopyFrom(blocks)


def _rounded(table: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Returns the integers of a table [rows, width], and the scales [rows, blocks]."""
    rows, width = table.shape
    integers = np.empty((rows, width), np.uint8)
    scales = np.empty((rows, -(-width // _BLOCK)), np.float32)
    for first in range(0, rows, _ROWS_AT_ONCE):
        some = slice(first, first + _ROWS_AT_ONCE)
        for block in range(scales.shape[1]):
            values = table[some, block * _BLOCK : (block + 1) * _BLOCK]
            largest = np.abs(values).max(axis=1)
            scales[some, block] = np.where(largest > 0, largest / _STEPS, 1.0)
            steps = np.round(values / scales[some, block, None])
            integers[some, block * _BLOCK : (block + 1) * _BLOCK] = steps + _ZERO
    return integers, scales
