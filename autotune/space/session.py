"""Parameters of a session: the options of ONNX Runtime that they set, and their words.

A parameter that sets several options, or one that ONNX Runtime takes in a less plain way, is an
entry of :data:`COMPOSITES`: its values, what each of them sets, and its words. All other session
parameters are options of :mod:`autotune.deploy.options` under ONNX Runtime's own names.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from autotune.deploy.config import PER_CLIENT, SESSION_KINDS, SHARED
from autotune.deploy.options import (
    ATTRIBUTES,
    BATCH,
    LARGEST_BATCH,
    OPTIMIZERS,
    SESSION_ENTRIES,
    Domain,
    Value,
)
from autotune.deploy.providers import (
    CACHE_FOLDER,
    CPU,
    OPENVINO_BF16,
    OPENVINO_FLOAT_INPUTS,
    PROVIDERS,
)
from autotune.deploy.session import SessionConfig

EXECUTION_PROVIDER = "execution_provider"
"""The parameter that chooses the execution provider, by the words of ``--providers``."""

SESSIONS = "sessions"
"""The parameter that chooses which sessions several clients call."""

FIXED_DIMENSIONS = "fixed_dimensions"
"""The parameter that gives the model's named dimensions the sizes of the inputs."""


@dataclass(frozen=True, kw_only=True)
class Composite:
    """A parameter that is more than one plain option.

    Attributes:
        sets: What a value sets of a session. Values that are missing set nothing: the default, the
            execution provider and fixed dimensions, which :func:`session_config` looks at, and what
            the application decides.
        words: How a person reads each value other than the default; numbers have words in
            :func:`session_words`.
    """

    domain: Domain
    sets: Mapping[Value, SessionConfig] = field(default_factory=dict)
    words: Mapping[Value, str]


COMPOSITES: Mapping[str, Composite] = {
    EXECUTION_PROVIDER: Composite(
        domain=Domain(choices=tuple(PROVIDERS), default="cpu"),
        words={word: provider.title for word, provider in PROVIDERS.items()},
    ),
    "spinning": Composite(
        domain=Domain(choices=("on", "stop_after_run", "off"), default="on"),
        sets={
            "off": SessionConfig(entries={"session.intra_op.allow_spinning": "0"}),
            "stop_after_run": SessionConfig(entries={"session.force_spinning_stop": "1"}),
        },
        words={"off": "no spinning", "stop_after_run": "spinning stops after a run"},
    ),
    "arena": Composite(
        domain=Domain(choices=("on", "off", "same_as_requested"), default="on"),
        sets={
            "off": SessionConfig(options={"enable_cpu_mem_arena": False}),
            # the CPU provider takes no arena options; a shared allocator is the only way
            "same_as_requested": SessionConfig(
                entries={"session.use_env_allocators": "1"},
                env_allocator={"arena_extend_strategy": 1},
            ),
        },
        words={"off": "no arena", "same_as_requested": "arena grows as requested"},
    ),
    "arena_shrinkage": Composite(
        domain=Domain(choices=(True, False), default=False),
        sets={True: SessionConfig(run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"})},
        words={True: "arena shrinks after a run"},
    ),
    FIXED_DIMENSIONS: Composite(
        domain=Domain(choices=(True, False), default=False),
        words={True: "dimensions fixed"},
    ),
    BATCH: Composite(
        # the default is that of a study without --batch; in the others it is the smallest size
        domain=Domain(low=1, high=LARGEST_BATCH, default=1),
        words={},
    ),
    SESSIONS: Composite(
        domain=Domain(choices=SESSION_KINDS, default=SHARED),
        words={PER_CLIENT: "a session for each client"},
    ),
}
"""All composite parameters by name."""

PROVIDER_OPTIONS: Mapping[str, tuple[str, str]] = {
    f"{word}.{option}": (word, option)
    for word, provider in PROVIDERS.items()
    for option in provider.options
}
"""Parameters that are options of an execution provider: its word, and the name of the option."""

EVERY_OPTIMIZER = "optimizer.*"
"""The name by which a file of a search space means each optimisation that changes the model."""

OPTIMIZER_PARAMETERS: Mapping[str, str] = {
    EVERY_OPTIMIZER.replace("*", name): name for name in sorted(OPTIMIZERS)
}
"""Parameters that leave out one of ONNX Runtime's optimisations, with its name there."""

ON_OR_OFF = Domain(choices=("on", "off"), default="on")
"""The values of such a parameter."""

SESSION_PARAMETERS: Mapping[str, Domain] = {
    **{name: composite.domain for name, composite in COMPOSITES.items()},
    **{name: PROVIDERS[word].options[option] for name, (word, option) in PROVIDER_OPTIONS.items()},
    **dict.fromkeys(OPTIMIZER_PARAMETERS, ON_OR_OFF),
    **ATTRIBUTES,
    **SESSION_ENTRIES,
}
"""The values of every parameter that changes how a file is opened and run, by name."""

WITHOUT_ANSWERS = frozenset(
    {
        *("intra_op_num_threads", "inter_op_num_threads", "execution_mode", "spinning", SESSIONS),
        *("arena", "arena_shrinkage", "enable_mem_pattern", "enable_mem_reuse", "weight_storage"),
        *(name for name in SESSION_ENTRIES if "spin" in name or "alloc" in name),
    }
)
"""Parameters of when and where to compute, and of how weights are stored: answers may differ with
them in the last digits, by the order of sums."""

_OPTION_WORDS: Mapping[tuple[str, Value], str] = {
    ("enable_mem_pattern", False): "no memory pattern",
    ("session.use_device_allocator_for_initializers", "1"): "initializers outside the arena",
    ("session.x64quantprecision", "1"): "exact int8 products",
    ("session.disable_prepacking", "1"): "no pre-packing",
    ("session.set_denormal_as_zero", "1"): "denormals as zero",
    ("optimization.enable_gelu_approximation", "1"): "GELU approximated",
    ("execution_mode", "ORT_PARALLEL"): "parallel execution",
    ("optimizer.NchwcTransformer", "off"): "no NCHWc layout",
    ("openvino.load_config", OPENVINO_BF16): "products in bfloat16",
    ("cuda.enable_cuda_graph", "1"): "CUDA graph on bound buffers",
    ("tensorrt.trt_cuda_graph_enable", "1"): "CUDA graph on bound buffers",
    ("mlas.enable_gemm_fastmath_arm64_bfloat16", "1"): "products in bfloat16",
    ("openvino.load_config", OPENVINO_FLOAT_INPUTS): "activations of products in float",
}


def session_words(name: str, value: Value) -> str:
    """Returns a session parameter that is not at its default in words.

    A parameter that has no words of its own, such as one of a plain Optuna study, is shown with its
    name and its value.
    """
    if name in COMPOSITES and value in COMPOSITES[name].words:
        return COMPOSITES[name].words[value]
    if (name, value) in _OPTION_WORDS:
        return _OPTION_WORDS[name, value]
    if name == BATCH:
        return f"batches of {value}"
    if name in PROVIDER_OPTIONS:
        return f"{PROVIDER_OPTIONS[name][1]}={value}"
    if name in OPTIMIZER_PARAMETERS and value == "off":
        return f"no {OPTIMIZER_PARAMETERS[name]}"
    if name == "intra_op_num_threads":
        return f"{value} thread{'s' if value != 1 else ''}"
    if name == "inter_op_num_threads":
        return f"{value} inter-op threads"
    if name == "graph_optimization_level":
        return f"graph level {str(value).removeprefix('ORT_ENABLE_').removeprefix('ORT_').lower()}"
    return f"{name.removeprefix('session.')}={value}"


def session_config(
    half: Mapping[str, Value], dimensions: Mapping[str, int], breaking: Collection[str] = ()
) -> SessionConfig:
    """Returns how a session is opened.

    Args:
        half: Session parameters that differ from their default, by name.
        dimensions: Sizes of the model's named dimensions, for ``fixed_dimensions``.
        breaking: ONNX Runtime's optimisations that break the model, which are off in any case.
    """
    provider = PROVIDERS[str(half.get(EXECUTION_PROVIDER, "cpu"))]
    provider_options: dict[str, str] = {}
    options: dict[str, Value] = {}
    entries: dict[str, str] = {}
    disabled: list[str] = []
    parts: list[SessionConfig] = []
    for name, value in half.items():
        if name in ATTRIBUTES:
            options[name] = value
        elif name in SESSION_ENTRIES:
            entries[name] = str(value)
        elif name in PROVIDER_OPTIONS:
            word, option = PROVIDER_OPTIONS[name]
            if PROVIDERS[word] is provider:
                provider_options[option] = str(value)
        elif name in OPTIMIZER_PARAMETERS:
            disabled.append(OPTIMIZER_PARAMETERS[name])
        elif value in COMPOSITES[name].sets:
            parts.append(COMPOSITES[name].sets[value])
    for part in parts:
        options |= part.options
        entries |= part.entries
    chosen: list[tuple[str, dict[str, str]]] = []
    if provider.name != CPU:
        chosen.append((provider.name, provider_options))
    device = {k: v for k, v in provider_options.items() if k == "device_id"}
    chosen += [(name, device) for name in provider.behind]
    return SessionConfig(
        providers=(*chosen, (CPU, {})),
        provider_cache=CACHE_FOLDER if provider.cache else "",
        options=options,
        entries=entries,
        disabled_optimizers=tuple(dict.fromkeys([*breaking, *disabled])),
        free_dimensions=dict(dimensions) if half.get(FIXED_DIMENSIONS) else {},
        env_allocator={k: v for part in parts for k, v in part.env_allocator.items()},
        run_entries={k: v for part in parts for k, v in part.run_entries.items()},
    )
