"""Fewer bits: eight-bit integers, static, dynamic or for weights alone, four-bit weights, fp16.

ONNX Runtime's own tools do the work. What is added is the care that their defaults lack: the model
is made ready first (shapes inferred, constants folded, opset high enough for scales per channel),
nodes have names, the most sensitive of them can stay in float, and calibration sees the calibration
samples alone. To add a precision, write its function and its entry in :data:`PRECISIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.graph.entries import Step, StepRefusedError
from autotune.graph.precision_options import BY_OUTPUTS, OPERATOR_GROUPS

if TYPE_CHECKING:  # it brings in onnxruntime, which the entries do without
    from autotune.facts.feeds import Feed
    from autotune.graph.intermediates import Intermediates


@dataclass(frozen=True, kw_only=True)
class Precision(Step):
    """A precision.

    ``run`` gets the calibration samples as its third argument, and by name the options and
    ``shared``, the :class:`~autotune.graph.intermediates.Intermediates` of the model.

    Attributes:
        options: Names of the options that ``run`` takes, from
            :data:`autotune.graph.precision_options.OPTIONS`, and ``embeddings``.
        wants_samples: Whether ``run`` reads the samples.
        saturates: Whether its products saturate on x86 without VNNI, unless ``reduce_range`` or
            ``unsigned_weights`` is on.
        float_types: Types of the nodes that it quantises and that ``kept_in_float`` leaves alone.
        always_quantised: Types of the nodes that it quantises whatever ``kept_in_float`` is.
    """

    options: frozenset[str] = frozenset()
    wants_samples: bool = True
    saturates: bool = False
    float_types: tuple[str, ...] = ()
    always_quantised: tuple[str, ...] = ()


def int8_static(source: Path, target: Path, samples: Sequence[Feed], **options: Any) -> None:
    """Writes the model with weights and activations in eight bits; see :mod:`.int8`."""
    from autotune.graph import int8

    int8.static(source, target, samples, **options)


def int8_dynamic(source: Path, target: Path, samples: Sequence[Feed], **options: Any) -> None:
    """Writes the model with activations that are rounded at run time; see :mod:`.int8`."""
    from autotune.graph import int8

    int8.dynamic(source, target, samples, **options)


def weight_only(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    bits: int = 8,
    block_size: int = 32,
    accuracy_level: int = 4,
    kept_in_float: int = 0,
    ranking: str = BY_OUTPUTS,
) -> None:
    """Writes the model with the weights of matrix products in blocks of `bits` bits.

    Args:
        source: The float model.
        target: Where to write.
        samples: For the ranking of nodes.
        shared: What other graph halves of the model made.
        bits: 4 or 8.
        block_size: How many weights share a scale.
        accuracy_level: What ONNX Runtime may round activations to: 0 leaves them in fp32, 4 takes
            eight bits.
        kept_in_float: How many of the most sensitive nodes are left alone.
        ranking: What makes a node sensitive: see :mod:`autotune.graph.ranking`.

    Raises:
        StepRefusedError: there is nothing to quantise.
    """
    from autotune.facts.weights import fold_constants, quantisable_nodes
    from autotune.graph import quantisation, sensitivity
    from autotune.graph.intermediates import Intermediates
    from autotune.graph.model_file import is_large, load, save
    from autotune.graph.ranking import ranked

    model = load(source)
    fold_constants(model)
    sensitivity.name_nodes(model)
    if not any(counts["MatMul"] for counts in quantisable_nodes(model.graph)):
        raise StepRefusedError("there is no matrix product with a constant weight")
    excluded: list[str] = []
    if kept_in_float and is_large(model):
        raise StepRefusedError("the nodes of a model over 2 GiB cannot be ranked")
    if kept_in_float:
        # the file of the other precisions has Gemm where this one has MatMul
        names = ranked(
            "weights", shared or Intermediates(), model, samples, by=ranking, types=("MatMul",)
        )
        excluded = names[:kept_in_float]
    packed = quantisation.with_packed_weights(
        model, excluded, bits=bits, block_size=block_size, accuracy_level=accuracy_level
    )
    save(packed, target)


def fp16(
    source: Path, target: Path, samples: Sequence[Feed], *, shared: Intermediates | None = None
) -> None:
    """Writes the model in half precision; inputs and outputs stay as they are."""
    from autotune.graph.model_file import load
    from autotune.graph.quantisation import convert_to_fp16

    del samples, shared
    convert_to_fp16(load(source), target, [])


def fp16_mixed(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
    max_error: float = 1e-3,
) -> None:
    """Writes the model in half precision but for as few sensitive nodes as the error allows.

    Bisection finds how many nodes stay in fp32. Nodes are ordered by how much eight bits would
    change their outputs, then from the last node to the first.

    Raises:
        StepRefusedError: even with every node in fp32 the error is above `max_error`.
    """
    from autotune.graph import sensitivity
    from autotune.graph.model_file import load
    from autotune.graph.quantisation import convert_to_fp16, exact_outputs, largest_distance

    del shared
    model = load(source)
    sensitivity.name_nodes(model)
    samples_compared = samples[:2]
    expected = exact_outputs(source, samples_compared)
    ranking = sensitivity.rank(model, samples)
    ranking += [n.name for n in reversed(model.graph.node) if n.name not in ranking]

    def error_with(count: int) -> float:
        convert_to_fp16(load(source), target, ranking[:count])
        return largest_distance(expected, target, samples_compared)

    few, many = 0, len(ranking)
    while few < many:
        middle = (few + many) // 2
        if error_with(middle) <= max_error:
            many = middle
        else:
            few = middle + 1
    if error_with(many) > max_error:
        raise StepRefusedError(f"no mixture of precisions keeps the error below {max_error:g}")


def _weight_only(bits: int) -> Precision:
    run: Callable[..., None] = partial(weight_only, bits=bits)
    return Precision(
        run=run,
        words=f"int{bits} weights",
        needs=("matmul",),
        packages=("onnx_ir",),
        options=frozenset({"block_size", "accuracy_level", "kept_in_float", "ranking"}),
        float_types=("MatMul",),
    )


PRECISIONS: Mapping[str, Precision] = {
    "fp16": Precision(run=fp16, words="fp16", needs=("fp16_kernels",), wants_samples=False),
    "fp16_mixed": Precision(
        run=fp16_mixed, words="fp16, sensitive nodes in fp32", needs=("fp16_kernels",)
    ),
    "int8_static": Precision(
        run=int8_static,
        words="int8 static",
        needs=("weights", "small_model"),
        options=frozenset(
            {"calibration", "per_channel", "reduce_range", "symmetric", "quantized_operators"}
            | {"kept_in_float", "smoothing", "equalized", "clipped", "bias_corrected"}
            | {"float_outputs", "matrix_products", "ranking", "unsigned_weights", "embeddings"}
        ),
        saturates=True,
        float_types=("Conv", "MatMul", "Gemm"),
    ),
    "int8_dynamic": Precision(
        run=int8_dynamic,
        words="int8 dynamic",
        needs=("matrix_products", "small_model"),
        options=frozenset(
            {"per_channel", "reduce_range", "kept_in_float", "smoothing", "clipped"}
            | {"ranking", "unsigned_weights", "embeddings"}
        ),
        saturates=True,
        float_types=OPERATOR_GROUPS["matmul"].types,
        always_quantised=("LSTM", "Attention"),
    ),
    "int8_weight_only": _weight_only(8),
    "int4_weight_only": _weight_only(4),
}
"""All precisions by name but the default, ``fp32``."""
