"""The operations of single nodes, against counts by hand."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from autotune.facts.operations import Shape, ShapedNode, UnknownShapeError, operations


def _count(
    operator: str,
    inputs: list[Shape | None],
    outputs: list[Shape | None],
    **attributes: object,
) -> int:
    names = [f"x{i}" if shape is not None else "" for i, shape in enumerate(inputs)]
    node = helper.make_node(operator, names, ["y"], **attributes)  # type: ignore[arg-type]
    return operations(ShapedNode(node, inputs, outputs))


def test_matmul() -> None:
    """Each of 4 * 6 numbers is a sum of 5 products: 5 multiplications and 5 additions."""
    assert _count("MatMul", [(4, 5), (5, 6)], [(4, 6)]) == 4 * 6 * 5 * 2


def test_batched_matmul() -> None:
    """A batch repeats the product."""
    assert _count("MatMul", [(3, 2, 4, 5), (5, 6)], [(3, 2, 4, 6)]) == 3 * 2 * 4 * 6 * 5 * 2


def test_gemm_with_transposed_factor_and_bias() -> None:
    """The summed axis follows transA; the bias is one addition for each number."""
    assert _count("Gemm", [(5, 4), (5, 6), (6,)], [(4, 6)], transA=1) == 4 * 6 * 5 * 2 + 4 * 6


def test_convolution() -> None:
    """Each of 8 * 10 * 10 outputs sums 3 * 3 * 3 products; a bias adds one more."""
    shapes: list[Shape | None] = [(1, 3, 10, 10), (8, 3, 3, 3)]
    assert _count("Conv", shapes, [(1, 8, 10, 10)]) == 8 * 100 * 27 * 2
    assert _count("Conv", [*shapes, (8,)], [(1, 8, 10, 10)]) == 8 * 100 * 27 * 2 + 800


def test_grouped_convolution() -> None:
    """In four groups of two channels each output sums 2 * 3 * 3 products."""
    shapes: list[Shape | None] = [(2, 8, 10, 10), (16, 2, 3, 3)]
    assert _count("Conv", shapes, [(2, 16, 10, 10)], group=4) == 2 * 16 * 100 * 18 * 2


def test_transposed_convolution() -> None:
    """Each input number is multiplied with the whole kernel of its outputs."""
    shapes: list[Shape | None] = [(1, 6, 5, 5), (6, 4, 2, 2)]
    assert _count("ConvTranspose", shapes, [(1, 4, 10, 10)]) == 6 * 25 * 4 * 4 * 2


def test_lstm() -> None:
    """Both directions: four gates of products, bias and function, and five operations of state.

    One step of one sample with 3 features and 5 hidden numbers: 4 * 5 sums of 3 + 5 products; 20
    additions of the bias; 20 sigmoids and tanhs; for each of 5 cells f * c, i * g, their sum,
    tanh(c) and its product with o.
    """
    step = 2 * 4 * 5 * (3 + 5) + 20 + 20 + 5 * 5
    inputs: list[Shape | None] = [(7, 2, 3), (2, 20, 3), (2, 20, 5), (2, 40)]
    outputs: list[Shape | None] = [(7, 2, 2, 5)]
    counted = _count("LSTM", inputs, outputs, hidden_size=5, direction="bidirectional")
    assert counted == 7 * 2 * 2 * step


def test_gru_and_rnn() -> None:
    """Three gates and one gate, without a bias."""
    gru = _count("GRU", [(7, 2, 3), (1, 15, 3), (1, 15, 5)], [(7, 1, 2, 5)], hidden_size=5)
    assert gru == 14 * (2 * 3 * 5 * 8 + 15 + 25)
    rnn = _count("RNN", [(7, 2, 3), (1, 5, 3), (1, 5, 5)], [(7, 1, 2, 5)], hidden_size=5)
    assert rnn == 14 * (2 * 5 * 8 + 5)


def test_attention() -> None:
    """Scores, softmax and the weighted sum for each head; of three axes the last has the heads."""
    whole = _count("Attention", [(2, 4, 6, 8), (2, 4, 7, 8), (2, 4, 7, 8)], [(2, 4, 6, 8)])
    assert whole == 2 * 4 * 6 * 7 * (2 * 8 + 5 + 2 * 8)
    flat = _count(
        "MultiHeadAttention", [(2, 6, 32), (2, 7, 32), (2, 7, 32)], [(2, 6, 32)], num_heads=4
    )
    assert flat == whole


def test_fused_attention() -> None:
    """ONNX Runtime's own attention projects its input first, with a bias."""
    counted = _count("Attention", [(2, 6, 32), (32, 96), (96,)], [(2, 6, 32)], num_heads=4)
    projection = 2 * 6 * 96 * (2 * 32 + 1)
    assert counted == projection + 2 * 4 * 6 * 6 * (4 * 8 + 5)


def test_einsum() -> None:
    """A product of matrices as a contraction."""
    assert _count("Einsum", [(4, 5), (5, 6)], [(4, 6)], equation="ij,jk->ik") == 4 * 5 * 6 * 2


def test_elementwise_reductions_and_moves() -> None:
    """One operation for each output, or for each number that is reduced; none for moving data."""
    assert _count("Add", [(4, 5), (5,)], [(4, 5)]) == 20
    assert _count("Softmax", [(4, 5)], [(4, 5)]) == 5 * 20
    assert _count("ReduceMean", [(4, 5)], [(4,)]) == 20
    assert _count("MaxPool", [(1, 2, 4, 4)], [(1, 2, 2, 2)], kernel_shape=[2, 2]) == 8 * 4
    assert _count("Transpose", [(4, 5)], [(5, 4)]) == 0


def test_packed_weights() -> None:
    """The inner size of weights that are packed to four bits is an attribute."""
    counted = _count("MatMulNBits", [(3, 64), (8, 2, 16), (8, 2)], [(3, 8)], K=64, N=8)
    assert counted == 3 * 8 * 64 * 2


def test_unknown_shape_raises() -> None:
    """Without a shape nothing is counted."""
    with pytest.raises(UnknownShapeError):
        _count("MatMul", [(4, 5), (5, 6)], [None])


def test_no_operator_of_onnx_breaks_the_count() -> None:
    """Each is counted, moves data, or has a shape that its formula does not take."""
    for schema in onnx.defs.get_all_schemas():
        if schema.domain or schema.name in {"If", "Loop", "Scan"}:
            continue
        node = helper.make_node(schema.name, ["a", "b", "c"], ["y"])
        shape = (2, 3, 4)
        try:
            assert operations(ShapedNode(node, [shape] * 3, [shape])) >= 0
        except (UnknownShapeError, ValueError, IndexError, TypeError, AttributeError):
            continue  # the counter takes these for unknown shapes


def test_types_have_their_size() -> None:
    """Types of less than a byte count their bits."""
    from autotune.facts.shapes import item_bits

    assert item_bits(TensorProto.FLOAT) == 32
    assert item_bits(TensorProto.INT4) == 4
    assert item_bits(TensorProto.STRING) == 0
    assert item_bits(helper.np_dtype_to_tensor_dtype(np.dtype(np.int64))) == 64
