"""A C# class that opens a tuned config with Microsoft.ML.OnnxRuntime."""

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.export.cpp import GENERIC_PROVIDERS
from autotune.export.literals import class_name, unicode_literal
from autotune.export.rendering import Rendering, Support, heading

_PROPERTIES = {
    "intra_op_num_threads": "IntraOpNumThreads",
    "inter_op_num_threads": "InterOpNumThreads",
    "execution_mode": "ExecutionMode",
    "graph_optimization_level": "GraphOptimizationLevel",
    "enable_mem_pattern": "EnableMemoryPattern",
    "enable_cpu_mem_arena": "EnableCpuMemArena",
}
_SUPPORT = Support(
    options=set(_PROPERTIES),
    providers={*GENERIC_PROVIDERS, "CUDAExecutionProvider", "TensorrtExecutionProvider"},
    allocator=False,
)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns a class with methods that make the options and open the session."""
    session, lost = config.session, _SUPPORT.lost(config.session)
    kind = f"{class_name(name)}Session"
    lines = [
        f"options.{_PROPERTIES[option]} = {_value(option, value)};"
        for option, value in _SUPPORT.options_of(session).items()
    ]
    lines += [
        f"options.AddSessionConfigEntry({unicode_literal(key)}, {unicode_literal(text)});"
        for key, text in _SUPPORT.entries_of(session).items()
    ]
    lines += [
        f"options.AddFreeDimensionOverrideByName({unicode_literal(dimension)}, {size});"
        for dimension, size in session.free_dimensions.items()
    ]
    lines += [
        line
        for provider, options in _SUPPORT.providers_of(session).items()
        for line in _provider_lines(provider, options)
    ]
    run_lines = [
        f"options.AddRunConfigEntry({unicode_literal(key)}, {unicode_literal(text)});"
        for key, text in session.run_entries.items()
    ]
    text = heading(config_name, "csharp", lost, "//") + _TEMPLATE.format(
        kind=kind,
        lines=_indented(lines),
        run_lines=_indented(run_lines),
        model=unicode_literal(config.model.file),
    )
    return Rendering(
        texts={f"{kind}.cs": text},
        lost=lost,
        use=f"using var session = {kind}.Open(folderOfTheModel);",
    )


def _value(option: str, value: Value) -> str:
    if option in {"execution_mode", "graph_optimization_level"}:
        return f"{_PROPERTIES[option]}.{value}"
    return str(value).lower()


def _provider_lines(provider: str, options: dict[str, str]) -> list[str]:
    pairs = ", ".join(
        f"{{ {unicode_literal(key)}, {unicode_literal(text)} }}" for key, text in options.items()
    )
    table = (
        f"new Dictionary<string, string> {{ {pairs} }}"
        if pairs
        else ("new Dictionary<string, string>()")
    )
    if provider in GENERIC_PROVIDERS:
        return [f'options.AppendExecutionProvider("{GENERIC_PROVIDERS[provider]}", {table});']
    is_cuda = provider == "CUDAExecutionProvider"
    record = "OrtCUDAProviderOptions" if is_cuda else "OrtTensorRTProviderOptions"
    method = "AppendExecutionProvider_CUDA" if is_cuda else "AppendExecutionProvider_Tensorrt"
    variable = "cuda" if is_cuda else "tensorrt"
    return [
        f"using (var {variable} = new {record}())",
        "{",
        f"    {variable}.UpdateOptions({table});",
        f"    options.{method}({variable});",
        "}",
    ]


def _indented(lines: list[str]) -> str:
    return "".join(f"        {line}\n" for line in lines)


_TEMPLATE = """\
using System.Collections.Generic;
using System.IO;
using Microsoft.ML.OnnxRuntime;

public static class {kind}
{{
    public static SessionOptions MakeSessionOptions()
    {{
        var options = new SessionOptions();
{lines}        return options;
    }}

    // Pass these options to each InferenceSession.Run.
    public static RunOptions MakeRunOptions()
    {{
        var options = new RunOptions();
{run_lines}        return options;
    }}

    // `folder` holds the model's files.
    public static InferenceSession Open(string folder)
    {{
        using (var options = MakeSessionOptions())
        {{
            return new InferenceSession(Path.Combine(folder, {model}), options);
        }}
    }}
}}
"""
