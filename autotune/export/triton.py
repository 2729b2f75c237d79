"""A model repository of the Triton Inference Server."""

from collections.abc import Mapping

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.deploy.providers import CPU
from autotune.export.literals import identifier, octal_literal
from autotune.export.rendering import (
    Copy,
    Rendering,
    Support,
    changed_options,
    heading,
)

_PARAMETERS = {
    "intra_op_num_threads": "intra_op_thread_count",
    "inter_op_num_threads": "inter_op_thread_count",
    "execution_mode": "execution_mode",
    "enable_mem_pattern": "enable_mem_pattern",
    "enable_cpu_mem_arena": "enable_mem_arena",
}
# Triton's numbers of the levels; all optimisations are its default.
_LEVELS = {"ORT_DISABLE_ALL": 2, "ORT_ENABLE_BASIC": -1, "ORT_ENABLE_EXTENDED": 1}
_LEVEL = "graph_optimization_level"
_ENTRY = "session.use_device_allocator_for_initializers"
_GPU = {"CUDAExecutionProvider": "cuda", "TensorrtExecutionProvider": "tensorrt"}
_PRECISIONS = {"trt_fp16_enable": "FP16", "trt_bf16_enable": "BF16", "trt_int8_enable": "INT8"}
_SUPPORT = Support(
    options={*_PARAMETERS, _LEVEL},
    entries={_ENTRY},
    providers={*_GPU, "OpenVINOExecutionProvider"},
    dimensions=False,
    allocator=False,
)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns ``config.pbtxt`` and the layout of the repository, with the model's files."""
    session = config.session
    lost = list(_SUPPORT.lost(session))
    changed = changed_options(session)
    parameters = {
        _PARAMETERS[option]: _value(value)
        for option, value in changed.items()
        if option in _PARAMETERS
    }
    entries = _SUPPORT.entries_of(session)
    parameters |= {_ENTRY: entries[_ENTRY]} if _ENTRY in entries else {}
    parameters |= session.run_entries
    level = changed.get(_LEVEL)
    if level == "ORT_ENABLE_LAYOUT":
        lost.append(f"session option {_LEVEL}={level}")
    if any(provider == "OpenVINOExecutionProvider" and o for provider, o in session.providers):
        lost.append("options of OpenVINOExecutionProvider")
    model = identifier(name)
    is_gpu = any(provider in _GPU for provider, _ in session.providers)
    text = heading(config_name, "triton", tuple(lost), "#") + (
        f"name: {octal_literal(model)}\n"
        'backend: "onnxruntime"\n'
        f"default_model_filename: {octal_literal(config.model.file)}\n"
        "# Triton reads the inputs and outputs from the model. Above 0, requests are batched.\n"
        "max_batch_size: 0\n"
        f"instance_group [ {{ count: 1, kind: {'KIND_GPU' if is_gpu else 'KIND_CPU'} }} ]\n"
        + _optimization(_LEVELS.get(str(level)), session.providers)
        + "".join(
            f"parameters {{ key: {octal_literal(key)} "
            f"value: {{ string_value: {octal_literal(text)} }} }}\n"
            for key, text in parameters.items()
        )
    )
    folder = f"{model}.triton/{model}"
    return Rendering(
        texts={f"{folder}/config.pbtxt": text},
        copies={f"{folder}/1/{file}": Copy(source=file) for file in config.model.names},
        lost=tuple(lost),
        use=f"tritonserver --model-repository={model}.triton",
    )


def _value(value: Value) -> str:
    numbers = {"ORT_SEQUENTIAL": "0", "ORT_PARALLEL": "1"}
    return numbers.get(str(value), str(int(value)) if isinstance(value, bool) else str(value))


def _optimization(level: int | None, providers: tuple[tuple[str, Mapping[str, str]], ...]) -> str:
    parts = [] if level is None else [f"  graph {{ level: {level} }}\n"]
    accelerators = [
        _accelerator(provider, options) for provider, options in providers if provider != CPU
    ]
    if any(accelerators):
        parts.append(f"  execution_accelerators {{\n{''.join(accelerators)}  }}\n")
    return f"optimization {{\n{''.join(parts)}}}\n" if parts else ""


def _accelerator(provider: str, options: Mapping[str, str]) -> str:
    if provider == "OpenVINOExecutionProvider":
        return '    cpu_execution_accelerator [ { name: "openvino" } ]\n'
    if provider not in _GPU:
        return ""
    parameters = {}
    for key, text in options.items():
        if key in _PRECISIONS:
            if text == "1":
                parameters["precision_mode"] = _PRECISIONS[key]
        elif key != "device_id":  # Triton gives each instance its device
            parameters[key] = text
    lines = "".join(
        f"      parameters {{ key: {octal_literal(key)} value: {octal_literal(text)} }}\n"
        for key, text in parameters.items()
    )
    return f'    gpu_execution_accelerator [ {{\n      name: "{_GPU[provider]}"\n{lines}    }} ]\n'
