"""All targets of `autotune export`. To add one, write its module and its entry here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from autotune.deploy.config import TunedConfig
from autotune.export import (
    cpp,
    csharp,
    java,
    javascript,
    olive,
    ort_config,
    perf_test,
    python,
    rust,
    triton,
)
from autotune.export.rendering import Rendering


@dataclass(frozen=True, kw_only=True)
class Target:
    """A target.

    Attributes:
        words: What it is, in words.
        render: Returns what is written for a config, the name of its file and the model's name.
    """

    words: str
    render: Callable[[TunedConfig, str, str], Rendering]


TARGETS: Mapping[str, Target] = {
    "python": Target(
        words="one Python file that loads the config without autotune", render=python.render
    ),
    "triton": Target(
        words="a model repository of the Triton Inference Server", render=triton.render
    ),
    "perf_test": Target(words="a command line of onnxruntime_perf_test", render=perf_test.render),
    "cpp": Target(words="a C++ header", render=cpp.render),
    "csharp": Target(words="a C# class", render=csharp.render),
    "java": Target(words="a Java class", render=java.render),
    "rust": Target(words="a Rust module for the crate ort", render=rust.render),
    "javascript": Target(
        words="a JavaScript module for onnxruntime-node", render=javascript.render
    ),
    "olive": Target(words="the input model of an Olive workflow", render=olive.render),
    "ort_config": Target(
        words="a copy of the model with its session options in its metadata",
        render=ort_config.render,
    ),
}
"""All targets by name."""
