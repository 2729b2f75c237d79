"""One point of a search space, and what each of its values does to a session."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.deploy.options import ATTRIBUTES, SESSION_ENTRIES, Domain, Value
from autotune.deploy.session import SessionConfig
from autotune.errors import FormatError, did_you_mean

GRAPH_PARAMETERS: Mapping[str, Domain] = {
    "pre_pass": Domain(
        choices=(
            *("none", "onnxslim", "onnxsim", "onnxoptimizer", "onnxscript", "ort_transformers"),
            *("ort_basic", "ort_extended", "ort_all", "onnxslim+ort_transformers"),
            *("onnxslim+onnxscript", "onnxslim+ort_extended"),
        ),
        default="none",
    ),
    "precision": Domain(
        choices=(
            *("fp32", "fp16", "fp16_mixed", "int8_dynamic", "int8_static"),
            *("int8_weight_only", "int4_weight_only"),
        ),
        default="fp32",
    ),
    "calibration": Domain(choices=("minmax", "percentile", "entropy"), default="minmax"),
    "per_channel": Domain(choices=(True, False), default=False),
    "reduce_range": Domain(choices=(True, False), default=False),
    "symmetric": Domain(choices=(True, False), default=False),
    "quantized_operators": Domain(choices=("all", "products", "conv", "matmul"), default="all"),
    "kept_in_float": Domain(choices=(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32), default=0),
    "block_size": Domain(choices=(16, 32, 64, 128, 256), default=32),
    "accuracy_level": Domain(choices=(0, 1, 2, 3, 4), default=4),
    "storage": Domain(choices=("inline", "external_data", "prepacked"), default="inline"),
}
"""Parameters that change the model's file; :mod:`autotune.graph.prepare` applies them."""

ANSWER_PARAMETERS = frozenset(GRAPH_PARAMETERS) - {"pre_pass", "storage"}
"""Those of them that decide the answers; what others change of them is rounding, or a fault."""

COMPOSITES: Mapping[str, Domain] = {
    "nchwc": Domain(choices=("on", "off"), default="on"),
    "spinning": Domain(choices=("on", "stop_after_run", "off"), default="on"),
    "arena": Domain(choices=("on", "off", "same_as_requested"), default="on"),
    "arena_shrinkage": Domain(choices=(True, False), default=False),
    "fixed_dimensions": Domain(choices=(True, False), default=False),
}
"""Parameters that are more than one option of ONNX Runtime, or one of its less plain ones."""

PARAMETERS: Mapping[str, Domain] = {
    **GRAPH_PARAMETERS,
    **COMPOSITES,
    **ATTRIBUTES,
    **SESSION_ENTRIES,
}
"""Every name that a search space may use: ours, and all of :mod:`autotune.deploy.options`."""


@dataclass(frozen=True)
class Candidate:
    """A canonical point: active parameters that differ from their default, sorted by name.

    Two candidates are equal exactly when they open the same session on the same file. Make one
    with :meth:`of` or from a space.
    """

    values: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> "Candidate":
        """Returns the candidate with these values; those equal to their default are dropped."""
        changed = ((n, v) for n, v in values.items() if v != PARAMETERS[n].default)
        return cls(tuple(sorted(changed)))

    @classmethod
    def from_json(cls, data: object) -> "Candidate":
        """Returns the candidate that an object of parameters and values describes.

        Raises:
            FormatError: it is none, or one of them is no parameter or no value of it.
        """
        if not isinstance(data, dict):
            raise FormatError(f"it must be an object of parameters, not {data!r}")
        for name, value in data.items():
            if name not in PARAMETERS:
                near = did_you_mean(str(name), PARAMETERS)
                raise FormatError(f"there is no parameter '{name}'.{near}")
            if problem := PARAMETERS[name].problem(value):
                raise FormatError(f"{name} {problem}")
        return cls.of(data)

    def to_json(self) -> dict[str, Value]:
        """Returns the values by name."""
        return dict(self.values)

    @property
    def key(self) -> str:
        """16 hexadecimal digits that stand for this candidate."""
        return hashlib.sha256(json.dumps(self.values).encode()).hexdigest()[:16]

    @property
    def graph(self) -> "Candidate":
        """The half that changes the model's file."""
        return Candidate(tuple(pair for pair in self.values if pair[0] in GRAPH_PARAMETERS))

    @property
    def session(self) -> "Candidate":
        """The half that changes how the file is opened and run."""
        return Candidate(tuple(pair for pair in self.values if pair[0] not in GRAPH_PARAMETERS))

    def in_words(self) -> str:
        """Returns what differs from the default, for a person to read."""
        graph = sorted(self.graph.values, key=lambda pair: list(GRAPH_PARAMETERS).index(pair[0]))
        told = [_words(name, value) for name, value in (*graph, *self.session.values)]
        return ", ".join(told) or "the default"


BASELINE = Candidate()
"""The untouched model under a fresh ``SessionOptions()``."""


@dataclass
class _Settings:
    """A :class:`SessionConfig` in the making."""

    options: dict[str, Value] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    disabled_optimizers: list[str] = field(default_factory=list)
    free_dimensions: dict[str, int] = field(default_factory=dict)
    env_allocator: dict[str, int] = field(default_factory=dict)
    run_entries: dict[str, str] = field(default_factory=dict)


def session_config(candidate: Candidate, dimensions: Mapping[str, int]) -> SessionConfig:
    """Returns how a session is opened for the session half of `candidate`.

    Args:
        candidate: What differs from the default.
        dimensions: Sizes of the model's named dimensions, for ``fixed_dimensions``.
    """
    settings = _Settings()
    for name, value in candidate.session.values:
        if name in ATTRIBUTES:
            settings.options[name] = value
        elif name in SESSION_ENTRIES:
            settings.entries[name] = str(value)
        elif name == "fixed_dimensions":
            settings.free_dimensions.update(dimensions)
        else:
            _APPLY[name](settings, value)
    return SessionConfig(
        options=settings.options,
        entries=settings.entries,
        disabled_optimizers=tuple(settings.disabled_optimizers),
        free_dimensions=settings.free_dimensions,
        env_allocator=settings.env_allocator,
        run_entries=settings.run_entries,
    )


def _apply_nchwc(settings: _Settings, _: Value) -> None:
    # Dropping to ORT_ENABLE_EXTENDED would also lose every other pass of the layout level.
    settings.disabled_optimizers.append("NchwcTransformer")


def _apply_spinning(settings: _Settings, value: Value) -> None:
    if value == "off":
        settings.entries["session.intra_op.allow_spinning"] = "0"
    else:
        settings.entries["session.force_spinning_stop"] = "1"


def _apply_arena(settings: _Settings, value: Value) -> None:
    if value == "off":
        settings.options["enable_cpu_mem_arena"] = False
    else:  # the CPU provider takes no arena options; a shared allocator is the only way
        settings.entries["session.use_env_allocators"] = "1"
        settings.env_allocator["arena_extend_strategy"] = 1


def _apply_arena_shrinkage(settings: _Settings, _: Value) -> None:
    settings.run_entries["memory.enable_memory_arena_shrinkage"] = "cpu:0"


_APPLY: Mapping[str, Callable[[_Settings, Value], Any]] = {
    "nchwc": _apply_nchwc,
    "spinning": _apply_spinning,
    "arena": _apply_arena,
    "arena_shrinkage": _apply_arena_shrinkage,
}

_WORDS: Mapping[tuple[str, Value], str] = {
    ("nchwc", "off"): "no NCHWc layout",
    ("spinning", "off"): "no spinning",
    ("spinning", "stop_after_run"): "spinning stops after a run",
    ("arena", "off"): "no arena",
    ("arena", "same_as_requested"): "arena grows as requested",
    ("arena_shrinkage", True): "arena shrinks after a run",
    ("fixed_dimensions", True): "dimensions fixed",
    ("enable_mem_pattern", False): "no memory pattern",
    ("session.use_device_allocator_for_initializers", "1"): "initializers outside the arena",
    ("session.disable_prepacking", "1"): "no pre-packing",
    ("session.set_denormal_as_zero", "1"): "denormals as zero",
    ("optimization.enable_gelu_approximation", "1"): "GELU approximated",
    ("execution_mode", "ORT_PARALLEL"): "parallel execution",
    ("precision", "fp16_mixed"): "fp16, sensitive nodes in fp32",
    ("precision", "int8_dynamic"): "int8 dynamic",
    ("precision", "int8_static"): "int8 static",
    ("precision", "int8_weight_only"): "int8 weights",
    ("precision", "int4_weight_only"): "int4 weights",
    ("per_channel", True): "per channel",
    ("reduce_range", True): "reduced range",
    ("symmetric", True): "symmetric",
    ("quantized_operators", "products"): "convolutions and matrix products alone",
    ("quantized_operators", "conv"): "convolutions alone",
    ("quantized_operators", "matmul"): "matrix products alone",
    ("storage", "external_data"): "external data",
    ("storage", "prepacked"): "weights pre-packed in external data",
}


def _words(name: str, value: Value) -> str:
    if (name, value) in _WORDS:
        return _WORDS[name, value]
    if name == "intra_op_num_threads":
        return f"{value} thread{'s' if value != 1 else ''}"
    if name == "pre_pass":
        return str(value)
    if name == "calibration":
        return f"calibrated by {value}"
    if name == "kept_in_float":
        return f"{value} node{'s' if value != 1 else ''} kept in float"
    if name == "block_size":
        return f"blocks of {value}"
    if name == "inter_op_num_threads":
        return f"{value} inter-op threads"
    if name == "graph_optimization_level":
        return f"graph level {str(value).removeprefix('ORT_ENABLE_').removeprefix('ORT_').lower()}"
    return f"{name.removeprefix('session.')}={value}"


def parse_value(name: str, text: str) -> Value:
    """Returns `text`, as typed on a command line, as a value of the parameter `name`.

    Raises:
        ValueError: it is none of the values that the parameter takes; the message lists them.
    """
    domain = PARAMETERS[name]
    readings: Iterable[Value] = (
        *([text.lower() == "true"] if text.lower() in {"true", "false"} else []),
        *([int(text)] if text.isascii() and text.isdigit() else []),
        text,
    )
    for value in readings:
        if domain.problem(value) is None:
            return value
    raise ValueError(f"{name} {domain.problem(text)}")
