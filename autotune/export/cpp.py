"""A C++ header that opens a tuned config with ONNX Runtime's C++ API."""

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.export.literals import identifier, octal_literal
from autotune.export.rendering import Rendering, Support, heading

# ONNX Runtime's C API takes these providers by a name of its own.
GENERIC_PROVIDERS = {
    "CoreMLExecutionProvider": "CoreML",
    "OpenVINOExecutionProvider": "OpenVINO",
    "QNNExecutionProvider": "QNN",
    "WebGpuExecutionProvider": "WebGPU",
    "XnnpackExecutionProvider": "XNNPACK",
}
# These have a record of options of their own.
_RECORDS = {"CUDAExecutionProvider": "CUDA", "TensorrtExecutionProvider": "TensorRT"}
# The C API has no enable_mem_reuse.
_SUPPORT = Support(
    options={
        *("intra_op_num_threads", "inter_op_num_threads", "execution_mode"),
        *("graph_optimization_level", "enable_mem_pattern", "enable_cpu_mem_arena"),
        "use_deterministic_compute",
    },
    providers={*GENERIC_PROVIDERS, *_RECORDS},
)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns a header with functions that make the options and open the session."""
    session, lost = config.session, _SUPPORT.lost(config.session)
    space = identifier(name)
    lines = [_option_line(option, value) for option, value in _SUPPORT.options_of(session).items()]
    lines += [
        f"options.AddConfigEntry({octal_literal(key)}, {octal_literal(text)});"
        for key, text in _SUPPORT.entries_of(session).items()
    ]
    lines += [
        "Ort::ThrowOnError(Ort::GetApi().AddFreeDimensionOverrideByName("
        f"options, {octal_literal(dimension)}, {size}));"
        for dimension, size in session.free_dimensions.items()
    ]
    lines += [
        line
        for provider, options in _SUPPORT.providers_of(session).items()
        for line in _provider_lines(provider, options)
    ]
    run_lines = [
        f"options.AddConfigEntry({octal_literal(key)}, {octal_literal(text)});"
        for key, text in session.run_entries.items()
    ]
    text = heading(config_name, "cpp", lost, "//") + _TEMPLATE.format(
        space=space,
        lines=_indented(lines),
        run_lines=_indented(run_lines),
        allocator=_indented(_allocator_lines(config)),
        model=octal_literal(config.model.file),
    )
    return Rendering(
        texts={f"{space}_session.hpp": text},
        lost=lost,
        use=f'#include "{space}_session.hpp"; Ort::Session session = {space}::open_session(env, '
        "folder_of_the_model);",
    )


def _option_line(name: str, value: Value) -> str:
    if name == "execution_mode":
        return f"options.SetExecutionMode({value});"
    if name == "graph_optimization_level":
        return f"options.SetGraphOptimizationLevel({value});"
    if name == "enable_mem_pattern":
        return "options.DisableMemPattern();"
    if name == "enable_cpu_mem_arena":
        return "options.DisableCpuMemArena();"
    if name == "use_deterministic_compute":
        return "Ort::ThrowOnError(Ort::GetApi().SetDeterministicCompute(options, true));"
    pool = "Intra" if name == "intra_op_num_threads" else "Inter"
    return f"options.Set{pool}OpNumThreads({value});"


def _provider_lines(provider: str, options: dict[str, str]) -> list[str]:
    if provider in GENERIC_PROVIDERS:
        pairs = ", ".join(
            f"{{{octal_literal(key)}, {octal_literal(text)}}}" for key, text in options.items()
        )
        return [f'options.AppendExecutionProvider("{GENERIC_PROVIDERS[provider]}", {{{pairs}}});']
    kind = _RECORDS[provider]
    keys = ", ".join(map(octal_literal, options))
    values = ", ".join(map(octal_literal, options.values()))
    variable = kind.lower()
    lines = [
        f"Ort{kind}ProviderOptionsV2* {variable} = nullptr;",
        f"Ort::ThrowOnError(Ort::GetApi().Create{kind}ProviderOptions(&{variable}));",
    ]
    if options:
        arguments = f"{variable}, {variable}_keys, {variable}_values, {len(options)}"
        lines += [
            f"const char* {variable}_keys[] = {{{keys}}};",
            f"const char* {variable}_values[] = {{{values}}};",
            f"Ort::ThrowOnError(Ort::GetApi().Update{kind}ProviderOptions({arguments}));",
        ]
    return [
        *lines,
        f"options.AppendExecutionProvider_{kind}_V2(*{variable});",
        f"Ort::GetApi().Release{kind}ProviderOptions({variable});",
    ]


def _allocator_lines(config: TunedConfig) -> list[str]:
    """Returns the lines that register the CPU allocator, which is one for the whole process."""
    allocator = config.session.env_allocator
    if not allocator:
        return []
    strategy = allocator.get("arena_extend_strategy", 0)
    return [
        "auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);",
        f"Ort::ArenaCfg arena(0, {strategy}, -1, -1);",
        "env.CreateAndRegisterAllocator(memory, arena);",
    ]


def _indented(lines: list[str]) -> str:
    return "".join(f"  {line}\n" for line in lines)


_TEMPLATE = """\
#pragma once

#include <onnxruntime_cxx_api.h>

#include <filesystem>

namespace {space} {{

inline Ort::SessionOptions make_session_options() {{
  Ort::SessionOptions options;
{lines}  return options;
}}

// Pass these options to each Session::Run.
inline Ort::RunOptions make_run_options() {{
  Ort::RunOptions options;
{run_lines}  return options;
}}

// Call this once in a process, before the first session.
inline void prepare_environment([[maybe_unused]] Ort::Env& env) {{
{allocator}}}

// `folder` holds the model's files.
inline Ort::Session open_session(Ort::Env& env, const std::filesystem::path& folder) {{
  const std::filesystem::path model = folder / std::filesystem::u8path({model});
  return Ort::Session(env, model.c_str(), make_session_options());
}}

}}  // namespace {space}
"""
