"""All targets of `autotune export`.

To add one, write its template in ``templates/`` and its entry in :data:`TEXTS`.
"""

import json
from collections.abc import Callable, Mapping
from functools import partial

from autotune.deploy.config import TunedConfig
from autotune.export import genai, ort_config, python
from autotune.export.rendering import (
    Rendering,
    Target,
    octal_literal,
    render_text,
)

_CUDA, _TENSORRT = "CUDAExecutionProvider", "TensorrtExecutionProvider"
_LEVELS = ("DISABLE_ALL", "ENABLE_BASIC", "ENABLE_EXTENDED", "ENABLE_LAYOUT")
# ONNX Runtime's C API takes these providers by a name of its own.
_GENERIC = {
    "CoreMLExecutionProvider": "CoreML",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "WebGpuExecutionProvider": "WebGPU",
    "XnnpackExecutionProvider": "XNNPACK",
}
_NODE_PROVIDERS = {
    _CUDA: "cuda",
    _TENSORRT: "tensorrt",
    "DmlExecutionProvider": "dml",
    "CoreMLExecutionProvider": "coreml",
    "WebGpuExecutionProvider": "webgpu",
    "QNNExecutionProvider": "qnn",
}


def _values(parallel: str, levels: tuple[str, ...]) -> dict[str, str]:
    """Returns how a target writes the parallel mode and the first levels of optimisation.

    The others are ONNX Runtime's defaults, or the target cannot express them.
    """
    words = {f"ORT_{name}": text for name, text in zip(_LEVELS, levels, strict=False)}
    return {"ORT_PARALLEL": parallel, **words}


TEXTS: Mapping[str, Target] = {
    "triton": Target(
        file="{snake}.triton/{snake}/config.pbtxt",
        use="tritonserver --model-repository={snake}.triton",
        comment="#",
        literal=octal_literal,
        options={
            "intra_op_num_threads": "intra_op_thread_count",
            "inter_op_num_threads": "inter_op_thread_count",
            "execution_mode": "execution_mode",
            "graph_optimization_level": "",
            "enable_mem_pattern": "enable_mem_pattern",
            "enable_cpu_mem_arena": "enable_mem_arena",
        },
        # its numbers of the levels; all optimisations are its default
        values=_values("1", ("2", "-1", "1")),
        entries={"session.use_device_allocator_for_initializers"},
        providers={_CUDA: "cuda", _TENSORRT: "tensorrt", "OpenVINOExecutionProvider": "openvino"},
        provider_options={"OpenVINOExecutionProvider": ()},
        dimensions=False,
        allocator=False,
        copies_model=True,
    ),
    "cpp": Target(
        file="{snake}_session.hpp",
        use='#include "{snake}_session.hpp"; Ort::Session session = '
        "{snake}_session::open_session(env, folder_of_the_model);",
        comment="//",
        literal=octal_literal,
        options={  # the C API has no enable_mem_reuse
            "intra_op_num_threads": "SetIntraOpNumThreads",
            "inter_op_num_threads": "SetInterOpNumThreads",
            "execution_mode": "SetExecutionMode",
            "graph_optimization_level": "SetGraphOptimizationLevel",
            "enable_mem_pattern": "DisableMemPattern",
            "enable_cpu_mem_arena": "DisableCpuMemArena",
            "use_deterministic_compute": "SetDeterministicCompute",
        },
        values=_values("ORT_PARALLEL", tuple(f"ORT_{level}" for level in _LEVELS)),
        # the last two have a record of options of their own
        providers={**_GENERIC, _CUDA: "CUDA", _TENSORRT: "TensorRT"},
    ),
    "javascript": Target(
        file="{snake}_session.mjs",
        use='import {{ openSession }} from "./{snake}_session.mjs"; '
        "const session = await openSession();",
        comment="//",
        literal=json.dumps,
        options={
            "intra_op_num_threads": "intraOpNumThreads",
            "inter_op_num_threads": "interOpNumThreads",
            "execution_mode": "executionMode",
            "graph_optimization_level": "graphOptimizationLevel",
            "enable_mem_pattern": "enableMemPattern",
            "enable_cpu_mem_arena": "enableCpuMemArena",
        },
        values=_values("parallel", ("disabled", "basic", "extended", "layout")),
        providers=_NODE_PROVIDERS,
        provider_options={name: {"device_id"} for name in _NODE_PROVIDERS},
        # the Node.js binding documents freeDimensionOverrides and run options, and ignores both
        dimensions=False,
        allocator=False,
        run_entries=False,
    ),
}
"""The targets that a template writes, by name."""

TARGETS: Mapping[str, Callable[[TunedConfig, str, str], Rendering]] = {
    "python": python.render,
    **{name: partial(render_text, target, name) for name, target in TEXTS.items()},
    "ort_config": ort_config.render,
    "genai": genai.render,
}
"""What renders a config for each target, given the name of its file and the model's name."""
