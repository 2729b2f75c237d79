"""A Java class that opens a tuned config with ai.onnxruntime."""

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import Value
from autotune.export.literals import class_name, java_literal
from autotune.export.rendering import Rendering, Support, heading

_LEVELS = {
    "ORT_DISABLE_ALL": "NO_OPT",
    "ORT_ENABLE_BASIC": "BASIC_OPT",
    "ORT_ENABLE_EXTENDED": "EXTENDED_OPT",
    "ORT_ENABLE_ALL": "ALL_OPT",
}
_METHODS = {
    "intra_op_num_threads": "setIntraOpNumThreads",
    "inter_op_num_threads": "setInterOpNumThreads",
    "execution_mode": "setExecutionMode",
    "graph_optimization_level": "setOptimizationLevel",
    "enable_mem_pattern": "setMemoryPatternOptimization",
    "enable_cpu_mem_arena": "setCPUArenaAllocator",
}
_PROVIDERS = {
    "CUDAExecutionProvider": ("OrtCUDAProviderOptions", "addCUDA"),
    "TensorrtExecutionProvider": ("OrtTensorRTProviderOptions", "addTensorrt"),
}
_SUPPORT = Support(
    options=set(_METHODS),
    providers={*_PROVIDERS, "XnnpackExecutionProvider"},
    allocator=False,
)


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns a class with methods that make the options and open the session."""
    session = config.session
    lost = _SUPPORT.lost(session)
    changed = _SUPPORT.options_of(session)
    if changed.get("graph_optimization_level") == "ORT_ENABLE_LAYOUT":
        del changed["graph_optimization_level"]
        lost = (*lost, "session option graph_optimization_level=ORT_ENABLE_LAYOUT")
    kind = f"{class_name(name)}Session"
    lines = [
        f"options.{_METHODS[option]}({_value(option, value)});" for option, value in changed.items()
    ]
    lines += [
        f"options.addConfigEntry({java_literal(key)}, {java_literal(text)});"
        for key, text in _SUPPORT.entries_of(session).items()
    ]
    lines += [
        f"options.setSymbolicDimensionValue({java_literal(dimension)}, {size}L);"
        for dimension, size in session.free_dimensions.items()
    ]
    lines += [
        line
        for provider, options in _SUPPORT.providers_of(session).items()
        for line in _provider_lines(provider, options)
    ]
    run_lines = [
        f"options.addRunConfigEntry({java_literal(key)}, {java_literal(text)});"
        for key, text in session.run_entries.items()
    ]
    text = heading(config_name, "java", lost, "//") + _TEMPLATE.format(
        kind=kind,
        lines=_indented(lines),
        run_lines=_indented(run_lines),
        model=java_literal(config.model.file),
    )
    return Rendering(
        texts={f"{kind}.java": text},
        lost=lost,
        use=f"OrtSession session = {kind}.open(OrtEnvironment.getEnvironment(), folderOfTheModel);",
    )


def _value(option: str, value: Value) -> str:
    if option == "execution_mode":
        return f"ExecutionMode.{str(value).removeprefix('ORT_')}"
    if option == "graph_optimization_level":
        return f"OptLevel.{_LEVELS[str(value)]}"
    return str(value).lower()


def _provider_lines(provider: str, options: dict[str, str]) -> list[str]:
    if provider not in _PROVIDERS:
        puts = "".join(
            f", {java_literal(key)}, {java_literal(text)}" for key, text in options.items()
        )
        return [f"options.addXnnpack(Map.of({puts.removeprefix(', ')}));"]
    record, method = _PROVIDERS[provider]
    variable = method.removeprefix("add").lower()
    return [
        f"{record} {variable} = new {record}();",
        *(
            f"{variable}.add({java_literal(key)}, {java_literal(text)});"
            for key, text in options.items()
        ),
        f"options.{method}({variable});",
    ]


def _indented(lines: list[str]) -> str:
    return "".join(f"    {line}\n" for line in lines)


_TEMPLATE = """\
import ai.onnxruntime.OrtEnvironment;
import ai.onnxruntime.OrtException;
import ai.onnxruntime.OrtSession;
import ai.onnxruntime.OrtSession.RunOptions;
import ai.onnxruntime.OrtSession.SessionOptions;
import ai.onnxruntime.OrtSession.SessionOptions.ExecutionMode;
import ai.onnxruntime.OrtSession.SessionOptions.OptLevel;
import ai.onnxruntime.providers.OrtCUDAProviderOptions;
import ai.onnxruntime.providers.OrtTensorRTProviderOptions;
import java.nio.file.Path;
import java.util.Map;

public final class {kind} {{
  private {kind}() {{}}

  public static SessionOptions makeSessionOptions() throws OrtException {{
    SessionOptions options = new SessionOptions();
{lines}    return options;
  }}

  /** Pass these options to each OrtSession.run. */
  public static RunOptions makeRunOptions() throws OrtException {{
    RunOptions options = new RunOptions();
{run_lines}    return options;
  }}

  /** The folder holds the model's files. */
  public static OrtSession open(OrtEnvironment environment, Path folder) throws OrtException {{
    try (SessionOptions options = makeSessionOptions()) {{
      return environment.createSession(folder.resolve({model}).toString(), options);
    }}
  }}
}}
"""
