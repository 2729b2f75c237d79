"""All rules in the order in which they are applied.

What a rule puts together, the later ones take as one node.

No rule takes SiLU, which ONNX Runtime's QuickGeluFusion takes; Mish and GroupNormalization, which
have no kernel on the CPU; Softplus and the L2 norm, whose kernels were slower than the parts;
convolutions of 1 x 1 over one pixel, which gained nothing as Gemm; attention, which the pre-pass
``ort_transformers`` fuses; nor pairs that undo each other, repeated nodes and a Pad before a
convolution, which ONNX Runtime's own optimisation takes when it opens the model.
"""

from collections.abc import Callable, Mapping

import onnx

from autotune.graph.algebra.activations import clip, gelu, hard_sigmoid
from autotune.graph.algebra.affine import into_consumers, into_producer
from autotune.graph.algebra.normalisation import normalisation, softmax, square
from autotune.graph.algebra.scope import Scope
from autotune.graph.algebra.shared_heads import grouped_product
from autotune.graph.algebra.structure import (
    COMPUTED,
    chosen_sizes,
    constant,
    copied_sizes,
    identity,
    known_shape,
)

Rule = Callable[[Scope, onnx.NodeProto], bool]
"""One piece of algebra: changes the graph around a node and returns True, or returns False."""

Rules = Mapping[Rule, str]
"""Rules with the types of the nodes at which each starts: the last nodes of what it replaces."""

CONSTANTS: Rules = {constant: COMPUTED}
"""The rule that computes nodes of constants."""

SHAPES: Rules = {
    known_shape: "Shape Gather Slice",
    copied_sizes: "Reshape",
    chosen_sizes: "Where",
    **CONSTANTS,
}
"""The rules that make shapes known."""

RULES: Rules = {
    **SHAPES,
    identity: "Identity Dropout Cast Transpose Concat Sum Max Min Add Sub Mul Div Reshape Expand "
    "Slice Pad",
    grouped_product: "MatMul",
    gelu: "Mul Div",
    hard_sigmoid: "Mul Div Clip Min Max Relu",
    clip: "Clip Relu Min Max",
    normalisation: "Add Mul Div",
    softmax: "Div",
    into_producer: "Mul Div Add Sub Neg BatchNormalization",
    into_consumers: "Mul Div Add Sub Neg BatchNormalization",
    square: "Pow",
}
"""All rules."""
