"""Options of a precision: what ranges, scales and operators a quantisation takes.

Beside them, what becomes of embeddings, whatever the precision of the other nodes is.

To add an option, write its entry in :data:`OPTIONS`, and its name into the entries of the
precisions that take it (:mod:`autotune.graph.precision`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.options import Domain
from autotune.graph.entries import Entry, GraphParameter, Step


@dataclass(frozen=True, kw_only=True)
class OperatorGroup(Entry):
    """Which operators are quantised.

    Attributes:
        types: Their types; empty for all that ONNX Runtime can quantise.
    """

    types: tuple[str, ...]


_BOTH = ("conv_and_matrix_products",)

OPERATOR_GROUPS: Mapping[str, OperatorGroup] = {
    "all": OperatorGroup(types=(), words="all operators"),
    "products": OperatorGroup(
        types=("Conv", "MatMul", "Gemm"), words="convolutions and matrix products alone"
    ),
    "conv": OperatorGroup(types=("Conv",), words="convolutions alone", needs=_BOTH),
    "matmul": OperatorGroup(types=("MatMul", "Gemm"), words="matrix products alone", needs=_BOTH),
}
"""Values of ``quantized_operators``."""

MATRIX_PRODUCTS: Mapping[str, Entry] = {
    "int8_dynamic": Entry(words="matrix products dynamic", needs=_BOTH),
    "int8_weights": Entry(
        words="weights of matrix products in int8", needs=(*_BOTH, "matmul"), packages=("onnx_ir",)
    ),
}
"""Values of ``matrix_products`` besides ``float``."""

BY_OUTPUTS = "outputs"
"""The value of ``ranking`` that looks at the model's outputs."""

RANKINGS: Mapping[str, Entry] = {"nodes": Entry(words="ranked by their own outputs")}
"""Values of ``ranking`` besides ``outputs``."""

CALIBRATIONS: Mapping[str, Entry] = {
    "percentile_99.9": Entry(words="calibrated by the percentile 99.9"),
    "percentile_99.99": Entry(words="calibrated by the percentile 99.99"),
    "percentile": Entry(words="calibrated by percentile"),
    "entropy": Entry(words="calibrated by entropy"),
    "least_squares": Entry(words="calibrated by least squares"),
}
"""Values of ``calibration`` besides ``minmax``; ``percentile`` is 99.999, ONNX Runtime's own."""


OFF = "off"
"""The value of ``smoothing`` that leaves activations as they are."""


def _quantise_embeddings(source: Path, target: Path) -> None:
    from autotune.graph import embeddings

    embeddings.quantise(source, target)


AS_PRECISION = "as_precision"
"""The value of ``embeddings`` that leaves them to the precision of the other nodes."""

EMBEDDINGS: Mapping[str, Entry] = {
    "float": Entry(words="embeddings in float", needs=("embeddings",)),
    "int8": Step(run=_quantise_embeddings, words="embeddings in int8", needs=("embeddings",)),
}
"""Values of ``embeddings`` besides ``as_precision``."""


def _flag(words: str) -> GraphParameter:
    return GraphParameter(
        domain=Domain(choices=(True, False), default=False), words=lambda _: words
    )


OPTIONS: Mapping[str, GraphParameter] = {
    "calibration": GraphParameter.of_entries("minmax", CALIBRATIONS),
    "per_channel": _flag("per channel"),
    "reduce_range": _flag("reduced range"),
    "unsigned_weights": _flag("unsigned weights"),
    "symmetric": _flag("symmetric"),
    "quantized_operators": GraphParameter.of_entries("all", OPERATOR_GROUPS),
    "kept_in_float": GraphParameter(
        domain=Domain(choices=(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32), default=0),
        words=lambda value: f"{value} node{'s' if value != 1 else ''} kept in float",
    ),
    "ranking": GraphParameter.of_entries(BY_OUTPUTS, RANKINGS),
    "float_outputs": _flag("outputs of matrix products in float"),
    "matrix_products": GraphParameter.of_entries("float", MATRIX_PRODUCTS),
    "smoothing": GraphParameter(
        domain=Domain(choices=(OFF, "0.5", "0.6", "0.7", "0.8", "0.85"), default=OFF),
        words=lambda value: f"smoothed with alpha {value}",
    ),
    "equalized": _flag("convolutions equalized"),
    "clipped": _flag("weights clipped"),
    "bias_corrected": _flag("bias corrected"),
    "block_size": GraphParameter(
        domain=Domain(choices=(16, 32, 64, 128, 256), default=32),
        words=lambda value: f"blocks of {value}",
    ),
    "accuracy_level": GraphParameter(
        domain=Domain(choices=(0, 1, 2, 3, 4), default=4),
        words=lambda value: f"accuracy_level={value}",
    ),
}
"""All options by name."""
