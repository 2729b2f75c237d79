"""A JavaScript module that opens a tuned config with onnxruntime-node."""

import json

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.deploy.providers import CPU
from autotune.export.literals import identifier, unicode_literal
from autotune.export.rendering import (
    Rendering,
    Support,
    changed_options,
    heading,
)

_NAMES = {
    "intra_op_num_threads": "intraOpNumThreads",
    "inter_op_num_threads": "interOpNumThreads",
    "execution_mode": "executionMode",
    "graph_optimization_level": "graphOptimizationLevel",
    "enable_mem_pattern": "enableMemPattern",
    "enable_cpu_mem_arena": "enableCpuMemArena",
}
_LEVELS = {"ORT_DISABLE_ALL": "disabled"}
_PROVIDERS = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "tensorrt",
    "DmlExecutionProvider": "dml",
    "CoreMLExecutionProvider": "coreml",
    "WebGpuExecutionProvider": "webgpu",
    "QNNExecutionProvider": "qnn",
}
# The Node.js binding documents freeDimensionOverrides and run options, and ignores both.
_SUPPORT = Support(
    options=set(_NAMES),
    providers=_PROVIDERS,
    dimensions=False,
    allocator=False,
    run_entries=False,
)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns an ES module with the options and a function that opens the session."""
    session = config.session
    lost = list(_SUPPORT.lost(session))
    providers: list[object] = []
    for provider, options in session.providers:
        if provider == CPU:
            providers.append("cpu")
        elif provider in _PROVIDERS:
            device = options.get("device_id")
            entry = {"name": _PROVIDERS[provider]}
            providers.append({**entry, "deviceId": int(device)} if device else entry)
            lost += [
                f"option {key}={text} of {provider}"
                for key, text in options.items()
                if key != "device_id"
            ]
    options_of_session: dict[str, object] = {"executionProviders": providers}
    for option, value in changed_options(session).items():
        if option in _NAMES:
            options_of_session[_NAMES[option]] = _value(option, value)
    if entries := _SUPPORT.entries_of(session):
        options_of_session["extra"] = entries
    module = f"{identifier(name)}_session.mjs"
    text = heading(config_name, "javascript", tuple(lost), "//") + _TEMPLATE.format(
        options=json.dumps(options_of_session, indent=2),
        model=unicode_literal(config.model.file),
    )
    return Rendering(
        texts={module: text},
        lost=tuple(lost),
        use=f'import {{ openSession }} from "./{module}"; const session = await openSession();',
    )


def _value(option: str, value: Value) -> Value:
    if option == "execution_mode":
        return str(value).removeprefix("ORT_").lower()
    if option == "graph_optimization_level":
        return _LEVELS.get(str(value), str(value).removeprefix("ORT_ENABLE_").lower())
    return value


_TEMPLATE = """\
import {{ dirname, join }} from "node:path";
import {{ fileURLToPath }} from "node:url";
import ort from "onnxruntime-node";

export const sessionOptions = {options};

// `folder` holds the model's files.
export function openSession(folder = dirname(fileURLToPath(import.meta.url))) {{
  return ort.InferenceSession.create(join(folder, {model}), sessionOptions);
}}
"""
