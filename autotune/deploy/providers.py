"""The execution providers that autotune knows: what each is called, what brings it, its options.

To add a provider, write its entry in :data:`PROVIDERS`. Options that name a file or a library are
left out on purpose; a cache folder is the one exception, and it is always :data:`CACHE_FOLDER`
beside the config. ONNX Runtime takes a wrong option of some providers without a word and then runs
the model on the CPU, so only names and values of this table reach it. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.deploy.options import Domain, Value

CPU = "CPUExecutionProvider"
"""The provider that runs every operator; ONNX Runtime falls back to it."""

CACHE_FOLDER = "provider-cache"
"""Folder beside a config in which a provider that compiles models keeps what it has compiled."""


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """The package of a provider that ONNX Runtime loads as a library.

    Attributes:
        package: Its name for pip.
        module: Its import name.
        library: The name of its function that returns the path of the library.
        provider: The name of its function, or of its constant, that has the provider's name.
        properties: For a library that takes its options as ``load_config`` alone: the property for
            each option that has one. It ignores the options themselves.
    """

    package: str
    module: str
    library: str = "get_library_path"
    provider: str = "get_ep_name"
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Provider:
    """An execution provider.

    Attributes:
        flavours: The packages of ONNX Runtime that were built with it.
        plugin: The package of its library, for ONNX Runtimes that were built without it.
        device: Where inputs and outputs lie while it is timed, by ONNX Runtime's name; ``cpu``
            where its Python API cannot bind them to a device, or there is none.
        options: The options that a config may set, with their values; the defaults are its own.
        cache: The options that make it keep compiled models, with their values; ``{folder}`` stands
            for the folder. Empty where it compiles nothing.
        session_parameters: Names of the parameters of a session that have an effect beside it, the
            CPU provider's own apart.
        precisions: Precisions that make sense with it, ``fp32`` apart.
        embeddings: Values of ``embeddings`` that make sense with it, the default apart.
        pre_passes: Pre-passes that make sense with it, ``none`` apart.
        storage_forms: Storage forms that make sense with it, ``inline`` apart.
        half_precision: The options with which it computes in sixteen bits from a float model; empty
            where it has none.
        compile_s: How long the first creation of a session may take.
        libraries: The shared libraries that it needs besides ONNX Runtime's; ``{cuda}`` stands for
            the major version of CUDA.
        remedy: The command that brings them.
        behind: The providers that get the nodes it does not take, before the CPU provider does.
        graph_capture: The option with which it records its kernels once and replays them, on the
            same buffers in every run; empty where it has none.
    """

    name: str
    title: str
    flavours: tuple[str, ...] = ()
    plugin: Plugin | None = None
    device: str = "cpu"
    options: Mapping[str, Domain] = field(default_factory=dict)
    cache: Mapping[str, str] = field(default_factory=dict)
    session: Mapping[str, Value] = field(default_factory=dict)
    session_parameters: frozenset[str] = frozenset()
    precisions: tuple[str, ...] = ()
    embeddings: tuple[str, ...] = ()
    pre_passes: tuple[str, ...] = ()
    storage_forms: tuple[str, ...] = ("external_data",)
    half_precision: Mapping[str, str] = field(default_factory=dict)
    compile_s: float = 120.0
    libraries: tuple[str, ...] = ()
    remedy: str = ""
    behind: tuple[str, ...] = ()
    graph_capture: str = ""

    @property
    def packages(self) -> tuple[str, ...]:
        """The pip packages that bring it."""
        return self.flavours if self.plugin is None else (*self.flavours, self.plugin.package)


def _choice(*choices: str) -> Domain:
    """Returns the domain of these values; the first one is the provider's default."""
    return Domain(choices=choices, default=choices[0])


_OFF = _choice("0", "1")
_ON = _choice("1", "0")
_DEVICE_ID = Domain(low=0, high=63, default="0")
# Passes that keep to ONNX's own operators, which every provider knows.
_PORTABLE_PASSES = ("onnxslim", "onnxsim", "onnxoptimizer", "onnxscript", "ort_basic")
# Providers with kernels for the fused operators of ONNX Runtime.
_FUSED_PASSES = (*_PORTABLE_PASSES, "algebra", "ort_transformers")
_CUDA_LIBRARIES = (
    *("libcublasLt.so.{cuda}", "libcublas.so.{cuda}"),
    *("libcurand.so.10", "libcudart.so.{cuda}"),
)
_GRAPH_OPTIONS = frozenset({"graph_optimization_level", "fixed_dimensions"})
_GPU_OPTIONS = _GRAPH_OPTIONS | {
    "enable_mem_pattern",
    "optimization.enable_gelu_approximation",
    "optimization.enable_cast_chain_elimination",
    "session.use_device_allocator_for_initializers",
}

OPENVINO_BF16 = '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'
"""OpenVINO's ``load_config`` for products in bfloat16. The option takes the JSON itself."""

OPENVINO_FLOAT_INPUTS = '{"CPU": {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}}'
"""The same for products of weights in few bits with activations that are not quantised."""

PROVIDERS: Mapping[str, Provider] = {
    "cpu": Provider(
        name=CPU,
        title="CPU",
        flavours=("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-directml"),
    ),
    "openvino": Provider(
        name="OpenVINOExecutionProvider",
        title="OpenVINO",
        flavours=("onnxruntime-openvino",),
        plugin=Plugin(
            package="onnxruntime-ep-openvino",
            module="onnxruntime_ep_openvino",
            properties={
                "num_of_threads": "INFERENCE_NUM_THREADS",
                "num_streams": "NUM_STREAMS",
                "cache_dir": "CACHE_DIR",
            },
        ),
        options={
            "device_type": _choice("CPU", "GPU", "NPU"),
            "precision": _choice("FP32", "ACCURACY", "FP16"),
            "num_of_threads": _choice("", "1", "2", "4", "8", "16", "32", "64"),
            "num_streams": _choice("1", "2", "4", "8", "16"),
            "enable_qdq_optimizer": _choice("False", "True"),
            "load_config": _choice("", OPENVINO_BF16, OPENVINO_FLOAT_INPUTS),
        },
        cache={"cache_dir": "{folder}"},
        session_parameters=_GRAPH_OPTIONS,
        precisions=("int8_static", "int8_nncf", "int8_weight_only", "int4_weight_only"),
        pre_passes=_PORTABLE_PASSES,
        half_precision={"load_config": OPENVINO_BF16},
    ),
    "cuda": Provider(
        name="CUDAExecutionProvider",
        title="CUDA",
        flavours=("onnxruntime-gpu",),
        plugin=Plugin(package="onnxruntime-ep-cuda13", module="onnxruntime_ep_cuda13"),
        device="cuda",
        options={
            "device_id": _DEVICE_ID,
            "arena_extend_strategy": _choice("kNextPowerOfTwo", "kSameAsRequested"),
            "cudnn_conv_algo_search": _choice("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
            "cudnn_conv_use_max_workspace": _ON,
            "cudnn_conv1d_pad_to_nc1d": _OFF,
            "do_copy_in_default_stream": _ON,
            "enable_cuda_graph": _OFF,
            "prefer_nhwc": _OFF,
            "sdpa_kernel": _choice("0", "1", "2", "8", "16"),
            "use_ep_level_unified_stream": _OFF,
            "use_tf32": _ON,
        },
        session_parameters=_GPU_OPTIONS,
        precisions=("fp16", "fp16_mixed"),
        pre_passes=_FUSED_PASSES,
        libraries=_CUDA_LIBRARIES,
        remedy='pip install "onnxruntime-gpu[cuda,cudnn]"',
        graph_capture="enable_cuda_graph",
    ),
    "tensorrt": Provider(
        name="TensorrtExecutionProvider",
        title="TensorRT",
        flavours=("onnxruntime-gpu",),
        device="cuda",
        options={
            "device_id": _DEVICE_ID,
            "trt_fp16_enable": _OFF,
            "trt_bf16_enable": _OFF,
            "trt_builder_optimization_level": Domain(low=0, high=5, default="3"),
            "trt_build_heuristics_enable": _OFF,
            "trt_cuda_graph_enable": _OFF,
            "trt_auxiliary_streams": _choice("-1", "0", "1", "2", "4"),
            "trt_layer_norm_fp32_fallback": _OFF,
            "trt_min_subgraph_size": Domain(low=1, high=1000, default="1"),
            "trt_sparsity_enable": _OFF,
        },
        cache={
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": "{folder}",
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": "{folder}",
        },
        session_parameters=_GRAPH_OPTIONS,
        precisions=("int8_static", "fp16", "fp16_mixed"),
        pre_passes=_PORTABLE_PASSES,
        half_precision={"trt_fp16_enable": "1"},
        compile_s=1800.0,
        libraries=(*_CUDA_LIBRARIES, "libcudnn.so.9", "libnvinfer.so.10", "libnvonnxparser.so.10"),
        remedy='pip install "onnxruntime-gpu[cuda,cudnn]" "tensorrt-cu13<11"',
        behind=("CUDAExecutionProvider",),
        graph_capture="trt_cuda_graph_enable",
    ),
    "nv_tensorrt_rtx": Provider(
        name="NvTensorRTRTXExecutionProvider",
        title="TensorRT for RTX",
        plugin=Plugin(
            package="onnxruntime-ep-nv-tensorrt-rtx", module="onnxruntime_ep_nv_tensorrt_rtx"
        ),
        device="cuda",
        options={"device_id": _DEVICE_ID, "enable_cuda_graph": _OFF},
        cache={"nv_runtime_cache_path": "{folder}"},
        session_parameters=_GRAPH_OPTIONS,
        precisions=("int8_static", "fp16", "fp16_mixed"),
        pre_passes=_PORTABLE_PASSES,
        compile_s=1800.0,
    ),
    "directml": Provider(
        name="DmlExecutionProvider",
        title="DirectML",
        flavours=("onnxruntime-directml",),
        device="dml",
        options={
            "device_id": _DEVICE_ID,
            "performance_preference": _choice("default", "high_performance", "minimum_power"),
            "disable_metacommands": _choice("False", "True"),
        },
        # it refuses memory patterns and parallel execution
        session={"enable_mem_pattern": False, "execution_mode": "ORT_SEQUENTIAL"},
        session_parameters=_GRAPH_OPTIONS,
        precisions=("fp16", "fp16_mixed", "int8_static"),
        pre_passes=_FUSED_PASSES,
    ),
    "coreml": Provider(
        name="CoreMLExecutionProvider",
        title="Core ML",
        flavours=("onnxruntime for macOS",),
        options={
            "ModelFormat": _choice("NeuralNetwork", "MLProgram"),
            "MLComputeUnits": _choice("ALL", "CPUOnly", "CPUAndGPU", "CPUAndNeuralEngine"),
            "RequireStaticInputShapes": _OFF,
            "EnableOnSubgraphs": _OFF,
            "SpecializationStrategy": _choice("Default", "FastPrediction"),
            "AllowLowPrecisionAccumulationOnGPU": _OFF,
        },
        cache={"ModelCacheDirectory": "{folder}"},
        session_parameters=_GRAPH_OPTIONS,
        precisions=("fp16",),
        pre_passes=_PORTABLE_PASSES,
    ),
    "qnn": Provider(
        name="QNNExecutionProvider",
        title="QNN",
        plugin=Plugin(package="onnxruntime-qnn", module="onnxruntime_qnn"),
        options={
            "backend_type": _choice("htp", "cpu", "gpu"),
            "htp_performance_mode": _choice(
                *("default", "burst", "balanced", "high_performance", "low_balanced"),
                *("low_power_saver", "power_saver", "sustained_high_performance"),
            ),
            "htp_graph_finalization_optimization_mode": _choice("0", "1", "2", "3"),
            "enable_htp_fp16_precision": _OFF,
            "offload_graph_io_quantization": _ON,
            "vtcm_mb": Domain(low=0, high=64, default="0"),
        },
        session_parameters=_GRAPH_OPTIONS,
        precisions=("int8_static",),
        pre_passes=_PORTABLE_PASSES,
    ),
    "migraphx": Provider(
        name="MIGraphXExecutionProvider",
        title="MIGraphX",
        flavours=("onnxruntime-migraphx",),
        device="cuda",  # ONNX Runtime names AMD's devices so too
        options={
            "device_id": _DEVICE_ID,
            "migraphx_fp16_enable": _OFF,
            "migraphx_bf16_enable": _OFF,
            "migraphx_exhaustive_tune": _OFF,
        },
        cache={"migraphx_model_cache_dir": "{folder}"},
        session_parameters=_GRAPH_OPTIONS,
        precisions=("int8_static", "fp16", "fp16_mixed"),
        pre_passes=_PORTABLE_PASSES,
        half_precision={"migraphx_fp16_enable": "1"},
        compile_s=1800.0,
    ),
    "webgpu": Provider(
        name="WebGpuExecutionProvider",
        title="WebGPU",
        plugin=Plugin(package="onnxruntime-ep-webgpu", module="onnxruntime_ep_webgpu"),
        device="webgpu",
        options={
            "preferredLayout": _choice("NHWC", "NCHW"),
            "enableGraphCapture": _OFF,
            "storageBufferCacheMode": _choice("bucket", "simple", "lazyRelease", "disabled"),
        },
        session_parameters=_GRAPH_OPTIONS,
        precisions=("fp16", "fp16_mixed", "int4_weight_only"),
        pre_passes=_FUSED_PASSES,
    ),
    "xnnpack": Provider(
        name="XnnpackExecutionProvider",
        title="XNNPACK",
        flavours=("a build of onnxruntime with --use_xnnpack",),
        options={"intra_op_num_threads": Domain(low=0, high=4096, default="0")},
        # its threads and ONNX Runtime's would compete for the cores
        session={"intra_op_num_threads": 1},
        session_parameters=_GRAPH_OPTIONS,
        precisions=("int8_static",),
        pre_passes=_PORTABLE_PASSES,
    ),
    "ggml": Provider(
        name="ggml",
        title="ggml",
        plugin=Plugin(
            package="onnxruntime-ggml",
            module="onnxruntime_ggml",
            library="library_path",
            provider="EP_NAME",
        ),
        options={
            "device": _choice("auto", "cpu", "gpu"),
            "partial": _OFF,
            # its own default rounds the weights to half precision
            "weights": _choice("f16", "f32", "q8_0"),
        },
        session_parameters=_GRAPH_OPTIONS,
        pre_passes=_PORTABLE_PASSES,
    ),
}
"""All providers by the word that ``--providers`` takes."""

WORDS: Mapping[str, str] = {provider.name: word for word, provider in PROVIDERS.items()}
"""The word of each provider, by ONNX Runtime's name."""

DISTRIBUTIONS = tuple(
    sorted(
        {name for p in PROVIDERS.values() for name in p.flavours if " " not in name}
        | {"onnxruntime-cann", "onnxruntime-rocm", "ort-nightly", "ort-nightly-gpu"}
    )
)
"""The packages that are an ONNX Runtime of their own; they overwrite each other's files."""


def provider_named(name: str) -> Provider:
    """Returns the provider of ONNX Runtime's name `name`, which must be one of the table."""
    return PROVIDERS[WORDS[name]]
