"""The options of ONNX Runtime that a config may set, by its own names, with their values.

ONNX Runtime accepts unknown keys, unknown values and unknown optimizer names without a word, and a
few bad values abort the process. So only names and values in these tables reach it. Every key was
seen to have its effect on ONNX Runtime 1.31, or is documented in its header
``onnxruntime_session_options_config_keys.h``; a study leaves out those that the installed library
lacks. Options that name files or libraries are left out on purpose: a config is data and must not
make a program read, write or load anything else.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import did_you_mean, shown

Value = bool | int | str
"""The value of an option."""


BATCH = "batch"
"""The parameter that chooses how many samples a run has."""

LARGEST_BATCH = 65_536
"""The largest batch size."""

RUNTIME = "runtime"
"""The parameter that chooses the distribution of ONNX Runtime, as ``NAME==VERSION``."""

OWN = "own"
"""Its default: the ONNX Runtime of the user's own environment."""


@dataclass(frozen=True, kw_only=True)
class Domain:
    """The values of one option: listed, of a pattern, or the integers from `low` to `high`."""

    choices: tuple[Value, ...] = ()
    low: int = 0
    high: int = 0
    default: Value
    pattern: str = ""

    def problem(self, value: object) -> str | None:
        """Returns why `value` is wrong, as the end of a sentence; None when it is fine."""
        if self.choices:
            # 1 == True in Python, and ONNX Runtime tells them apart
            if any(value == choice and type(value) is type(choice) for choice in self.choices):
                return None
            return "must be one of " + ", ".join(map(repr, self.choices)) + f", not {shown(value)}"
        if self.pattern:
            if isinstance(value, str) and re.fullmatch(self.pattern, value):
                return None
            return f"must be of the form {self.pattern}, not {shown(value)}"
        # Config entries are strings, attributes are integers: the default tells which.
        if isinstance(self.default, str):
            # digits of other scripts, which ``\d`` matches, abort the process inside ONNX Runtime
            if not isinstance(value, str) or not re.fullmatch("[0-9]{1,12}", value):
                return f"must be a whole number written as a string, not {shown(value)}"
            number = int(value)
        elif type(value) is int:
            number = value
        else:
            return f"must be a whole number, not {shown(value)}"
        if not self.low <= number <= self.high:
            return f"must be from {self.low} to {self.high}, not {shown(value)}"
        return None


_FLAG_OFF = Domain(choices=("0", "1"), default="0")
_FLAG_ON = Domain(choices=("0", "1"), default="1")
_TRUE = Domain(choices=(True, False), default=True)
_THREADS = Domain(low=0, high=4096, default=0)
# Unset means a loop of about a million pauses; ONNX Runtime has no number that says the same.
_SPIN_US = Domain(low=0, high=1_000_000, default="")

ATTRIBUTES: Mapping[str, Domain] = {
    "intra_op_num_threads": _THREADS,
    "inter_op_num_threads": _THREADS,
    "execution_mode": Domain(choices=("ORT_SEQUENTIAL", "ORT_PARALLEL"), default="ORT_SEQUENTIAL"),
    "graph_optimization_level": Domain(
        choices=(
            *("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"),
            *("ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL"),
        ),
        default="ORT_ENABLE_ALL",
    ),
    "enable_mem_pattern": _TRUE,
    "enable_cpu_mem_arena": _TRUE,
    "enable_mem_reuse": _TRUE,
    "use_deterministic_compute": Domain(choices=(True, False), default=False),
}
"""Attributes of ``onnxruntime.SessionOptions``."""

SESSION_ENTRIES: Mapping[str, Domain] = {
    "session.intra_op.allow_spinning": _FLAG_ON,
    "session.inter_op.allow_spinning": _FLAG_ON,
    "session.force_spinning_stop": _FLAG_OFF,
    "session.intra_op.spin_duration_us": _SPIN_US,
    "session.inter_op.spin_duration_us": _SPIN_US,
    "session.intra_op.spin_backoff_max": Domain(low=1, high=64, default="1"),
    "session.inter_op.spin_backoff_max": Domain(low=1, high=64, default="1"),
    "session.dynamic_block_base": Domain(low=0, high=1024, default="0"),
    "session.set_denormal_as_zero": _FLAG_OFF,
    "session.disable_prepacking": _FLAG_OFF,
    "session.use_device_allocator_for_initializers": _FLAG_OFF,
    "session.use_env_allocators": _FLAG_OFF,
    "session.x64quantprecision": _FLAG_OFF,
    "session.disable_quant_qdq": _FLAG_OFF,
    "session.enable_quant_qdq_cleanup": _FLAG_OFF,
    "session.disable_aot_function_inlining": _FLAG_OFF,
    "session.graph_optimizations_loop_level": Domain(choices=("0", "1", "2"), default="1"),
    "optimization.enable_gelu_approximation": _FLAG_OFF,
    "optimization.enable_cast_chain_elimination": _FLAG_OFF,
    # A word that is not a number aborts the process (std::terminate).
    "mlas.nchwc_pointwise_conv_max_input_channel_batch": Domain(low=8, high=4096, default="128"),
    "mlas.nchwc_depthwise_sliding": _FLAG_OFF,
    "mlas.enable_gemm_fastmath_arm64_bfloat16": _FLAG_OFF,
    "mlas.qnbit.force_fp32": _FLAG_OFF,
    "mlas.use_lut_gemm": _FLAG_OFF,
}
"""Keys of ``SessionOptions.add_session_config_entry``; their values are strings."""

EXACT_PRODUCTS = "session.x64quantprecision"
"""The entry that makes eight-bit products exact on x86 without VNNI; elsewhere it does nothing."""

RUN_ENTRIES: Mapping[str, Domain] = {
    "memory.enable_memory_arena_shrinkage": Domain(choices=("", "cpu:0"), default=""),
}
"""Keys of ``RunOptions.add_run_config_entry``; their values are strings."""

ARENA_OPTIONS: Mapping[str, Domain] = {
    # 0: kNextPowerOfTwo, 1: kSameAsRequested
    "arena_extend_strategy": Domain(choices=(0, 1), default=0),
}
"""Keys of ``onnxruntime.OrtArenaCfg`` for the process-wide CPU allocator."""

# Read from the binary and the log of ONNX Runtime 1.32; it ignores an unknown name in silence.
OPTIMIZERS = frozenset(
    """
    AttentionFusion Avx2WeightS8ToU8Transformer BiasDropoutFusion BiasGeluFusion
    BiasSkipLayerNormFusion BiasSoftmaxFusion CastChainElimination CastElimination
    CastFloat16Transformer ClipQuantRewrite CommonSubexpressionElimination ConstantFolding
    ConstantFoldingDQ ConstantSharing ConvActivationFusion ConvAddActivationFusion ConvAddFusion
    ConvBNFusion ConvMulFusion DivMulFusion DoubleQDQPairsRemover DQMatMulNBitsFusion
    DynamicQuantizeMatMulFusion EliminateDropout EliminateIdentity EliminateSlice
    EmbedLayerNormFusion ExpandElimination FastGeluFusion FreeDimensionOverrideTransformer
    FuseFp16InitializerToFp32NodeTransformer GatherSliceToSplitFusion GatherToSliceFusion
    GeluApproximation GeluFusionL1 GeluFusionL2 GemmActivationFusion GemmSumFusion
    GemmTransposeFusion GqaValueLayoutTransformer GroupQueryAttentionFusion
    GroupQueryAttentionPreNormFusion LabelEncoderFusion LayerNormFusionL1 LayerNormFusionL2
    MatMul_BatchNormalization_Fusion MatMulActivationFusion MatMulAddFusion
    MatMulIntegerToFloatFusion MatMulNBitsFusion MatMulNBitsMlpFusion MatMulNBitsQkvFusion
    MatMulScaleFusion MatmulTransposeFusion NchwcTransformer NhwcTransformer NoopElimination
    NotWhereFusion Pad_Fusion PreShapeNodeElimination QDQFinalCleanupTransformer
    QDQPropagationTransformer QDQS8ToU8Transformer QDQSelectorActionTransformer QuickGeluFusion
    ReluQuantRewrite RemoveDuplicateCastTransformer ReshapeFusion SimplifiedLayerNormFusion
    SkipLayerNormFusion SliceConcatToSpaceToDepthFusion SwiGluFusion TransposeOptimizer
    UnsqueezeElimination
    """.split()
)
"""Names that ``disabled_optimizers`` may hold."""


def unknown_option(name: str, domains: Mapping[str, Domain]) -> str:
    """Returns the sentence that refuses a name which is not in `domains`."""
    return f"{shown(name)} is not an option that may be set here.{did_you_mean(name, domains)}"
