"""The parameters that change the model's file, their values, and the steps that they make.

Fewer bits are most of them: a precision, the options of a precision, and embeddings apart from it.
To add a precision, write its function and its entry in :data:`PRECISIONS`; to add an option, its
entry in :data:`OPTIONS`, and its name into the entries of the precisions that take it. Nothing here
imports onnx or onnxruntime before a step runs, because the command line imports it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from autotune.deploy.options import OWN, RUNTIME, Domain, Value
from autotune.graph.entries import (
    ALL_ERROR,
    AS_PRECISION,
    OFF,
    OPERATOR_GROUPS,
    Entry,
    GraphParameter,
    Step,
)
from autotune.graph.passes import PASSES, PRE_PASSES
from autotune.graph.storage_form import STORAGE_FORMS

CALIBRATIONS: Mapping[str, Entry] = {
    "percentile": Entry(words="calibrated by percentile"),
}
"""Values of ``calibration`` besides ``minmax``; ``percentile`` is 99.999, ONNX Runtime's own."""


def _calls(module: str, function: str, **options: Any) -> Callable[..., None]:
    """Returns a step's function, whose module and its tools are imported when it is called."""

    def run(*files: Any, **more: Any) -> None:
        own = importlib.import_module(f"autotune.graph.{module}")
        getattr(own, function)(*files, **options, **more)

    return run


EMBEDDINGS: Mapping[str, Entry] = {
    "float": Entry(words="embeddings in float", needs=("embeddings",)),
    "int8": Step(
        run=_calls("embeddings", "quantise"), words="embeddings in int8", needs=("embeddings",)
    ),
}
"""Values of ``embeddings`` besides ``as_precision``."""


LAST_PRODUCTS: Mapping[str, Entry] = {
    name: Entry(words=f"last product in {name}") for name in ("float", "int8", "int4")
}
"""Values of ``last_product`` besides ``as_precision``."""


def _flag(words: str) -> GraphParameter:
    return GraphParameter(
        domain=Domain(choices=(True, False), default=False), words=lambda _: words
    )


OPTIONS: Mapping[str, GraphParameter] = {
    "calibration": GraphParameter.of_entries("minmax", CALIBRATIONS),
    "per_channel": _flag("per channel"),
    "reduce_range": _flag("reduced range"),
    "unsigned_weights": _flag("unsigned weights"),
    "symmetric": _flag("symmetric"),
    "quantized_operators": GraphParameter.of_entries("all", OPERATOR_GROUPS),
    "kept_in_float": GraphParameter(
        domain=Domain(choices=(0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32), default=0),
        words=lambda value: f"{value} node{'s' if value != 1 else ''} kept in float",
    ),
    "slow_in_float": _flag("nodes that int8 slows down in float"),
    "error_left": GraphParameter(
        domain=Domain(choices=(ALL_ERROR, 85, 70, 50, 35, 25, 17, 12, 8, 5, 3), default=ALL_ERROR),
        words=lambda value: f"nodes in float until {value} % of the error are left",
    ),
    "float_outputs": _flag("outputs of matrix products in float"),
    "smoothing": GraphParameter(
        domain=Domain(choices=(OFF, "0.5", "0.6", "0.7", "0.8", "0.85"), default=OFF),
        words=lambda value: f"smoothed with alpha {value}",
    ),
    "block_size": GraphParameter(
        domain=Domain(choices=(16, 32, 64, 128, 256), default=32),
        words=lambda value: f"blocks of {value}",
    ),
    "zero_points": _flag("zero points"),
    "last_product": GraphParameter.of_entries(AS_PRECISION, LAST_PRODUCTS),
    "accuracy_level": GraphParameter(
        domain=Domain(choices=(0, 1, 2, 3, 4), default=4),
        words=lambda value: f"accuracy_level={value}",
    ),
}
"""All options by name."""


@dataclass(frozen=True, kw_only=True)
class Precision(Step):
    """A precision.

    Attributes:
        options: Names of the options that ``run`` takes, from :data:`OPTIONS`, and ``embeddings``.
        float_types: Types of the nodes that it quantises and that ``kept_in_float`` excludes.
        always_quantised: Types of the nodes that it quantises whatever ``kept_in_float`` is.
    """

    options: frozenset[str] = frozenset()
    float_types: tuple[str, ...] = ()
    always_quantised: tuple[str, ...] = ()


def _weight_only(bits: int) -> Precision:
    return Precision(
        run=_calls("weight_only", "quantise", bits=bits),
        words=f"int{bits} weights",
        needs=("matmul",),
        options=frozenset({"block_size", "accuracy_level", "zero_points", "last_product"}),
    )


PRECISIONS: Mapping[str, Precision] = {
    "fp16": Precision(run=_calls("fp16", "half"), words="fp16", needs=("fp16_kernels",)),
    "fp16_mixed": Precision(
        run=_calls("fp16", "mixed"),
        words="fp16, sensitive nodes in fp32",
        needs=("fp16_kernels",),
        wants_samples=True,
    ),
    "int8_static": Precision(
        run=_calls("int8", "static"),
        words="int8 static",
        wants_samples=True,
        needs=("weights", "small_model"),
        options=frozenset(
            {"calibration", "per_channel", "reduce_range", "symmetric", "quantized_operators"}
            | {"kept_in_float", "smoothing", "float_outputs", "unsigned_weights", "embeddings"}
            | {"slow_in_float", "error_left"}
        ),
        float_types=("Conv", "MatMul", "Gemm"),
    ),
    "int8_nncf": Precision(
        run=_calls("nncf_static", "quantise"),
        words="int8 static by NNCF",
        wants_samples=True,
        needs=("weights", "small_model"),
        packages=("nncf",),
    ),
    "int8_dynamic": Precision(
        run=_calls("int8", "dynamic"),
        words="int8 dynamic",
        wants_samples=True,
        needs=("matrix_products", "small_model"),
        options=frozenset(
            {"per_channel", "reduce_range", "kept_in_float", "smoothing"}
            | {"unsigned_weights", "embeddings"}
        ),
        float_types=OPERATOR_GROUPS["matmul"].types,
        always_quantised=("LSTM", "com.microsoft.Attention"),
    ),
    "int8_weight_only": _weight_only(8),
    "int4_weight_only": _weight_only(4),
}
"""All precisions by name but the default, ``fp32``."""

_JOINED = Step(
    run=_calls("joined_products", "join"), words="products of one input joined",
    needs=("several_products", "small_model"),
)  # fmt: skip

CACHES: Mapping[str, Step] = {
    "int8": Step(
        run=_calls("int8_caches", "quantise"),
        words="caches in int8",
        wants_samples=True,
        needs=("gqa_caches",),
        changes_interface=True,
    ),
}
"""Values of ``caches`` besides ``float``."""

_RUNTIME = GraphParameter(
    domain=Domain(pattern=f"{OWN}|[a-z][a-z-]{{0,40}}==[0-9][0-9A-Za-z.+_]{{0,40}}", default=OWN),
    words=lambda value: f"on {str(value).replace('==', ' ')}",
)

JOINED = "joined_products"
"""The parameter that makes one product of packed products of one input."""

OUTPUTS = "outputs"
"""The parameter that names the outputs that the file has, by commas; all of them if empty."""


GRAPH_PARAMETERS: Mapping[str, GraphParameter] = {
    # it makes the files, because each ONNX Runtime has tools and operators of its own
    RUNTIME: _RUNTIME,
    OUTPUTS: GraphParameter(
        domain=Domain(pattern="(?s:.*)", default=""),
        words=lambda value: f"with the outputs {str(value).replace(',', ', ')} alone",
    ),
    "pre_pass": GraphParameter.of_entries("none", PRE_PASSES),
    "precision": GraphParameter.of_entries("fp32", PRECISIONS),
    **OPTIONS,
    JOINED: replace(_flag(_JOINED.words), entries={"True": _JOINED}),
    "embeddings": GraphParameter.of_entries(AS_PRECISION, EMBEDDINGS),
    "caches": GraphParameter.of_entries("float", CACHES),
    "weight_storage": GraphParameter.of_entries("inline", STORAGE_FORMS),
}
"""All of them by name, in the order in which their words are listed."""

ANSWER_PARAMETERS = frozenset({"precision", "embeddings", "caches", *OPTIONS})
"""Those that are meant to change the answers; the others change them by rounding, or by a fault."""

PACKAGES = tuple(
    dict.fromkeys(
        package
        for parameter in GRAPH_PARAMETERS.values()
        for entry in parameter.entries.values()
        for package in entry.packages
    )
)
"""Import names of all packages that an entry needs."""


def graph_words(half: Mapping[str, Value]) -> tuple[str, ...]:
    """Returns graph parameters in words, a phrase for each parameter that is not at its default.

    Args:
        half: Graph parameters that differ from their default, by name.
    """
    return tuple(
        parameter.words(half[name]) for name, parameter in GRAPH_PARAMETERS.items() if name in half
    )


_EMBEDDINGS = {
    f"{value}_embeddings": step for value, step in EMBEDDINGS.items() if isinstance(step, Step)
}
STEPS: Mapping[str, Step] = {
    OUTPUTS: Step(
        run=_calls("kept_outputs", "keep"), words="with some outputs alone", changes_interface=True
    ),
    **PASSES,
    **PRECISIONS,
    JOINED: _JOINED,
    **_EMBEDDINGS,
    **{f"{value}_caches": step for value, step in CACHES.items()},
    **STORAGE_FORMS,
}
"""Every step by name."""


Condition = Mapping[str, tuple[Value, ...]]
"""Values of parameters by name; it holds where each of these parameters has one of its values."""


class PlannedStep(NamedTuple):
    """A step of a plan.

    Attributes:
        name: One of :data:`STEPS`.
        options: What it is called with, by name.
    """

    name: str
    options: Mapping[str, Value]


def steps_of(half: Mapping[str, Value]) -> tuple[PlannedStep, ...]:
    """Returns what is done to the model for a set of graph parameters, in order.

    Outputs that nobody asked for go first; then pre-passes, then precision, then embeddings and
    caches, which write operators that the tools do not know; ONNX Runtime's own optimisation after
    that, because it writes operators that quantisation does not know; the storage form last.

    Args:
        half: Graph parameters that differ from their default, by name.
    """
    passes = str(half["pre_pass"]).split("+") if "pre_pass" in half else []
    steps = [PlannedStep(OUTPUTS, {OUTPUTS: half[OUTPUTS]})] if OUTPUTS in half else []
    steps += [PlannedStep(name, {}) for name in passes if not PASSES[name].late]
    if "precision" in half:
        name = str(half["precision"])
        names = PRECISIONS[name].options
        steps.append(PlannedStep(name, {k: v for k, v in half.items() if k in names}))
    if half.get(JOINED):
        steps.append(PlannedStep(JOINED, {}))
    embeddings = f"{half.get('embeddings')}_embeddings"
    if embeddings in _EMBEDDINGS:
        steps.append(PlannedStep(embeddings, {}))
    if "caches" in half:
        steps.append(PlannedStep(f"{half['caches']}_caches", {}))
    steps += [PlannedStep(name, {}) for name in passes if PASSES[name].late]
    if "weight_storage" in half:
        steps.append(PlannedStep(str(half["weight_storage"]), {}))
    return tuple(steps)


def values_with(step: str) -> Condition:
    """Returns the values that plan a step, by the parameter that they are values of."""
    return {
        name: values
        for name, parameter in GRAPH_PARAMETERS.items()
        if (
            values := tuple(
                value
                for value in parameter.domain.choices
                if value != parameter.domain.default
                and any(planned.name == step for planned in steps_of({name: value}))
            )
        )
    }


def shared_passes(
    steps: tuple[PlannedStep, ...],
) -> tuple[tuple[PlannedStep, ...], tuple[PlannedStep, ...]]:
    """Returns the passes that other sets of graph parameters begin with too, and the other steps.

    There are none of the former where nothing follows them.
    """
    first = {OUTPUTS, *(name for name, entry in PASSES.items() if not entry.late)}
    others = (i for i, step in enumerate(steps) if step.name not in first)
    place = next(others, 0)
    return steps[:place], steps[place:]


def wants_samples(steps: Collection[PlannedStep]) -> bool:
    """Returns whether a step reads the calibration samples."""
    return any(STEPS[step.name].wants_samples for step in steps)
