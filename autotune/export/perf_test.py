"""A command line of ``onnxruntime_perf_test``, ONNX Runtime's own benchmark."""

import shlex
from collections.abc import Mapping

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.deploy.providers import CPU
from autotune.export.literals import identifier
from autotune.export.rendering import (
    Rendering,
    Support,
    changed_options,
    heading,
)

_SHRINKAGE = "memory.enable_memory_arena_shrinkage"
_LEVELS = {
    "ORT_DISABLE_ALL": "0",
    "ORT_ENABLE_BASIC": "1",
    "ORT_ENABLE_EXTENDED": "2",
    "ORT_ENABLE_LAYOUT": "3",
}
_PROVIDERS = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "tensorrt",
    "OpenVINOExecutionProvider": "openvino",
    "DmlExecutionProvider": "dml",
    "CoreMLExecutionProvider": "coreml",
    "QNNExecutionProvider": "qnn",
    "MIGraphXExecutionProvider": "migraphx",
    "XnnpackExecutionProvider": "xnnpack",
    "WebGpuExecutionProvider": "webgpu",
    "NvTensorRTRTXExecutionProvider": "nvtensorrtrtx",
}
_SUPPORT = Support(
    options={
        *("intra_op_num_threads", "inter_op_num_threads", "execution_mode"),
        *("graph_optimization_level", "enable_mem_pattern", "enable_cpu_mem_arena"),
    },
    providers=_PROVIDERS,
    allocator=False,
)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns a shell script with the command line; it takes more options for the program."""
    session = config.session
    lost = list(_SUPPORT.lost(session))
    arguments = ["-I", "-m", "times", "-r", "1000"]
    for provider, options in session.providers:
        if provider in _PROVIDERS:
            arguments += ["-e", _PROVIDERS[provider]]
            arguments += ["-i", _pairs(options)] if options else []
    if all(provider == CPU for provider, _ in session.providers):
        arguments += ["-e", "cpu"]
    for option, value in changed_options(session).items():
        arguments += _flags(option, value)
    if entries := _SUPPORT.entries_of(session):
        arguments += ["-C", _pairs(entries)]
    for dimension, size in session.free_dimensions.items():
        if any(character in dimension for character in ': \t\n"'):
            lost.append(f"dimension {dimension}={size}")
        else:
            arguments += ["-f", f"{dimension}:{size}"]
    if _SHRINKAGE in session.run_entries:
        arguments += ["--shrink_arena_between_runs", session.run_entries[_SHRINKAGE]]
    script = f"{identifier(name)}_perf_test.sh"
    text = (
        "#!/bin/sh\n"
        + heading(config_name, "perf_test", tuple(lost), "#")
        + 'cd "$(dirname "$0")" || exit 1\n'
        + f'exec onnxruntime_perf_test {shlex.join(arguments)} "$@" '
        + f"./{shlex.quote(config.model.file)}\n"
    )
    return Rendering(texts={script: text}, lost=tuple(lost), use=f"sh {script}")


def _flags(option: str, value: Value) -> list[str]:
    if option in {"intra_op_num_threads", "inter_op_num_threads"}:
        return ["-x" if option.startswith("intra") else "-y", str(value)]
    if option == "graph_optimization_level":
        return ["-o", _LEVELS[str(value)]]
    flags = {"execution_mode": "-P", "enable_mem_pattern": "-M", "enable_cpu_mem_arena": "-A"}
    return [flags[option]] if option in flags else []


def _pairs(entries: Mapping[str, str]) -> str:
    return " ".join(f"{key}|{text}" for key, text in entries.items())
