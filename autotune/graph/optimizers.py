"""Which of ONNX Runtime's optimisations change a model, so that leaving one out may pay."""

from collections.abc import Mapping

from autotune.facts.model import Model
from autotune.graph.graph_facts import Optimizers
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.graph.optimizers_child"
# All weights are in memory, and a part of them twice.
_LARGEST_BYTES = 1 << 29
_TIME_LIMIT_S = 300.0

TRANSFORMERS = frozenset(
    """
    AttentionFusion BiasDropoutFusion BiasGeluFusion BiasSkipLayerNormFusion BiasSoftmaxFusion
    ConvActivationFusion ConvAddActivationFusion DynamicQuantizeMatMulFusion EmbedLayerNormFusion
    FastGeluFusion GatherSliceToSplitFusion GatherToSliceFusion GeluFusionL1 GeluFusionL2
    GemmActivationFusion GroupQueryAttentionFusion GroupQueryAttentionPreNormFusion
    LayerNormFusionL1 LayerNormFusionL2 MatMulActivationFusion MatMulAddFusion
    MatMulIntegerToFloatFusion MatMulNBitsFusion MatMulScaleFusion MatmulTransposeFusion
    QDQPropagationTransformer QDQS8ToU8Transformer QDQSelectorActionTransformer QuickGeluFusion
    ReshapeFusion SimplifiedLayerNormFusion SkipLayerNormFusion SliceConcatToSpaceToDepthFusion
    SwiGluFusion TransposeOptimizer
    """.split()
)
"""The optimisations that are tried, but for :data:`RULES`.

They fuse nodes or change layouts. Without the others, which fold, share and remove, the same
operators would run and more besides; ``NchwcTransformer`` has an entry of its own in the presets,
because it belongs to a higher level.
"""

RULES: Mapping[str, str] = {
    "ConvAddFusion": "Conv",
    "ConvBNFusion": "Conv",
    "ConvMulFusion": "Conv",
    "DivMulFusion": "Div",
    "GemmSumFusion": "Gemm",
    "GemmTransposeFusion": "Gemm",
    "MatMul_BatchNormalization_Fusion": "MatMul",
    "NotWhereFusion": "Where",
    "Pad_Fusion": "Pad",
}
"""Optimisations that ONNX Runtime's log does not name, with the operator at which each starts."""


def firing_optimizers(model: Model) -> tuple[str, ...]:
    """Returns the names of the optimisations without which ONNX Runtime makes another graph.

    The graph is that of the model, or of the model after the pre-pass ``algebra``. Of a model above
    512 MiB, or one that cannot be written, none is known.
    """
    if model.size_bytes > _LARGEST_BYTES:
        return ()
    try:
        with Child(_CHILD, memory_limit()) as child:
            request = {"do": "firing", "path": str(model.path.absolute())}
            changing = child.request(request, _TIME_LIMIT_S, Optimizers).names
    except ChildFailure:
        return ()
    # a reply is a stranger's: a name of another optimisation would be a parameter of no meaning
    return tuple(sorted(TRANSFORMERS.union(RULES).intersection(changing)))
