"""Parameters of a session: the options of ONNX Runtime that they set, and their words.

A parameter that sets several options, or one that ONNX Runtime takes in a less plain way, is an
entry of :data:`COMPOSITES`: its values, what each of them sets, and its words. All other session
parameters are options of :mod:`autotune.deploy.options` under ONNX Runtime's own names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.deploy.options import (
    ATTRIBUTES,
    BATCH,
    LARGEST_BATCH,
    SESSION_ENTRIES,
    Domain,
    Value,
)
from autotune.deploy.providers import CACHE_FOLDER, CPU, PROVIDERS
from autotune.deploy.serving import PER_CLIENT, PROCESSES, SESSION_KINDS, SHARED
from autotune.deploy.session import SessionConfig

EXECUTION_PROVIDER = "execution_provider"
"""The parameter that chooses the execution provider, by the words of ``--providers``."""

SESSIONS = "sessions"
"""The parameter that chooses which sessions several clients call."""


@dataclass
class SessionDraft:
    """A :class:`~autotune.deploy.session.SessionConfig` in the making.

    Attributes:
        provider: Word of the execution provider.
        provider_options: Options of providers, by their parameters.
    """

    provider: str = "cpu"
    provider_options: dict[str, str] = field(default_factory=dict)
    options: dict[str, Value] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    disabled_optimizers: list[str] = field(default_factory=list)
    free_dimensions: dict[str, int] = field(default_factory=dict)
    env_allocator: dict[str, int] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)

    def finished(self) -> SessionConfig:
        """Returns the config."""
        provider = PROVIDERS[self.provider]
        given = {
            option: text
            for name, text in self.provider_options.items()
            for word, option in [PROVIDER_OPTIONS[name]]
            if word == self.provider
        }
        chosen = ((provider.name, given),) if self.provider != "cpu" else ()
        return SessionConfig(
            providers=(*chosen, (CPU, {})),
            provider_cache=CACHE_FOLDER if provider.cache else "",
            options=self.options,
            entries=self.entries,
            disabled_optimizers=tuple(self.disabled_optimizers),
            free_dimensions=self.free_dimensions,
            env_allocator=self.env_allocator,
            run_entries=self.run_entries,
        )


@dataclass(frozen=True, kw_only=True)
class Composite:
    """A parameter that is more than one plain option.

    Attributes:
        domain: Its values.
        apply: Sets in a draft what a value other than the default stands for. The mapping has the
            sizes of the model's named dimensions.
        words: How a person reads each value other than the default; numbers have words in
            :func:`session_words`.
    """

    domain: Domain
    apply: Callable[[SessionDraft, Value, Mapping[str, int]], None]
    words: Mapping[Value, str]


def _apply_nchwc(draft: SessionDraft, value: Value, dimensions: Mapping[str, int]) -> None:
    del value, dimensions
    # Dropping to ORT_ENABLE_EXTENDED would also lose every other pass of the layout level.
    draft.disabled_optimizers.append("NchwcTransformer")


def _apply_spinning(draft: SessionDraft, value: Value, dimensions: Mapping[str, int]) -> None:
    del dimensions
    if value == "off":
        draft.entries["session.intra_op.allow_spinning"] = "0"
    else:
        draft.entries["session.force_spinning_stop"] = "1"


def _apply_arena(draft: SessionDraft, value: Value, dimensions: Mapping[str, int]) -> None:
    del dimensions
    if value == "off":
        draft.options["enable_cpu_mem_arena"] = False
    else:  # the CPU provider takes no arena options; a shared allocator is the only way
        draft.entries["session.use_env_allocators"] = "1"
        draft.env_allocator["arena_extend_strategy"] = 1


def _apply_arena_shrinkage(
    draft: SessionDraft, value: Value, dimensions: Mapping[str, int]
) -> None:
    del value, dimensions
    draft.run_entries["memory.enable_memory_arena_shrinkage"] = "cpu:0"


def _apply_fixed_dimensions(
    draft: SessionDraft, value: Value, dimensions: Mapping[str, int]
) -> None:
    del value
    draft.free_dimensions.update(dimensions)


def _apply_outside(draft: SessionDraft, value: Value, dimensions: Mapping[str, int]) -> None:
    # the application decides how many sessions there are, and what each run gets
    del draft, value, dimensions


def _apply_provider(draft: SessionDraft, value: Value, dimensions: Mapping[str, int]) -> None:
    del dimensions
    draft.provider = str(value)


COMPOSITES: Mapping[str, Composite] = {
    EXECUTION_PROVIDER: Composite(
        domain=Domain(choices=tuple(PROVIDERS), default="cpu"),
        apply=_apply_provider,
        words={word: provider.title for word, provider in PROVIDERS.items()},
    ),
    "nchwc": Composite(
        domain=Domain(choices=("on", "off"), default="on"),
        apply=_apply_nchwc,
        words={"off": "no NCHWc layout"},
    ),
    "spinning": Composite(
        domain=Domain(choices=("on", "stop_after_run", "off"), default="on"),
        apply=_apply_spinning,
        words={"off": "no spinning", "stop_after_run": "spinning stops after a run"},
    ),
    "arena": Composite(
        domain=Domain(choices=("on", "off", "same_as_requested"), default="on"),
        apply=_apply_arena,
        words={"off": "no arena", "same_as_requested": "arena grows as requested"},
    ),
    "arena_shrinkage": Composite(
        domain=Domain(choices=(True, False), default=False),
        apply=_apply_arena_shrinkage,
        words={True: "arena shrinks after a run"},
    ),
    "fixed_dimensions": Composite(
        domain=Domain(choices=(True, False), default=False),
        apply=_apply_fixed_dimensions,
        words={True: "dimensions fixed"},
    ),
    BATCH: Composite(
        # the default is that of a study without --batch; in the others it is the smallest size
        domain=Domain(low=1, high=LARGEST_BATCH, default=1),
        apply=_apply_outside,
        words={},
    ),
    SESSIONS: Composite(
        domain=Domain(choices=SESSION_KINDS, default=SHARED),
        apply=_apply_outside,
        words={
            PER_CLIENT: "a session for each client",
            PROCESSES: "a process for each client",
        },
    ),
}
"""All composite parameters by name."""

PROVIDER_OPTIONS: Mapping[str, tuple[str, str]] = {
    f"{word}.{option}": (word, option)
    for word, provider in PROVIDERS.items()
    for option in provider.options
}
"""Parameters that are options of an execution provider: its word, and the name of the option."""

SESSION_PARAMETERS: Mapping[str, Domain] = {
    **{name: composite.domain for name, composite in COMPOSITES.items()},
    **{name: PROVIDERS[word].options[option] for name, (word, option) in PROVIDER_OPTIONS.items()},
    **ATTRIBUTES,
    **SESSION_ENTRIES,
}
"""The values of every parameter that changes how a file is opened and run, by name."""

_OPTION_WORDS: Mapping[tuple[str, Value], str] = {
    ("enable_mem_pattern", False): "no memory pattern",
    ("session.use_device_allocator_for_initializers", "1"): "initializers outside the arena",
    ("session.x64quantprecision", "1"): "exact int8 products",
    ("session.disable_prepacking", "1"): "no pre-packing",
    ("session.set_denormal_as_zero", "1"): "denormals as zero",
    ("optimization.enable_gelu_approximation", "1"): "GELU approximated",
    ("execution_mode", "ORT_PARALLEL"): "parallel execution",
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
    if name == "intra_op_num_threads":
        return f"{value} thread{'s' if value != 1 else ''}"
    if name == "inter_op_num_threads":
        return f"{value} inter-op threads"
    if name == "graph_optimization_level":
        return f"graph level {str(value).removeprefix('ORT_ENABLE_').removeprefix('ORT_').lower()}"
    return f"{name.removeprefix('session.')}={value}"


def session_config(half: Mapping[str, Value], dimensions: Mapping[str, int]) -> SessionConfig:
    """Returns how a session is opened.

    Args:
        half: Session parameters that differ from their default, by name.
        dimensions: Sizes of the model's named dimensions, for ``fixed_dimensions``.
    """
    draft = SessionDraft()
    for name, value in half.items():
        if name in ATTRIBUTES:
            draft.options[name] = value
        elif name in SESSION_ENTRIES:
            draft.entries[name] = str(value)
        elif name in PROVIDER_OPTIONS:
            draft.provider_options[name] = str(value)
        else:
            COMPOSITES[name].apply(draft, value, dimensions)
    return draft.finished()
