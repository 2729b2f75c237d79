"""What of a search space exists for one model on one machine."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from autotune.deploy.options import BATCH, OWN, RUNTIME, Value
from autotune.deploy.providers import OPENVINO_FLOAT_INPUTS
from autotune.errors import RequestError, did_you_mean
from autotune.facts.batches import Batching
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.providers import CPU_STATE, ProviderState, SearchedRuntime
from autotune.facts.workload import Workload
from autotune.graph.entries import OFF, OPERATOR_GROUPS
from autotune.graph.parameters import GRAPH_PARAMETERS, JOINED, PRECISIONS
from autotune.space.needs import unmet_needs
from autotune.space.parameters import CORES, PARAMETERS, THREAD_COUNTS, parse_value
from autotune.space.providers import SearchedProviders
from autotune.space.session import EVERY_OPTIMIZER, EXECUTION_PROVIDER
from autotune.space.space import Condition, Parameter, Space

_ONLY_CPU = "only the CPU provider can be used here; `autotune hardware` lists the others"
_NOTHING_LEFT = "it would leave nothing to quantise"


def _others(name: str, *values: Value) -> tuple[Value, ...]:
    """Returns the values of a graph parameter but these."""
    return tuple(v for v in GRAPH_PARAMETERS[name].domain.choices if v not in values)


_WITHOUT_EFFECT: tuple[Condition, ...] = (
    # embeddings are in float already
    {"precision": _others("precision", "int8_static", "int8_dynamic"), "embeddings": ("float",)},
    {
        "precision": ("int8_static",),
        "quantized_operators": _others("quantized_operators", "all"),
        "embeddings": ("float",),
    },
    # no product with an input in eight bits is left
    {
        "quantized_operators": ("conv",),
        "smoothing": _others("smoothing", OFF),
    },
    # the last product has these bits with the others
    {"precision": ("int8_weight_only",), "last_product": ("int8",)},
    {"precision": ("int4_weight_only",), "last_product": ("int4",)},
)
"""Values of graph parameters of which the last one changes nothing beside the others."""

# OpenVINO quantises activations only beside weights in few bits
_FLOAT_INPUTS: Condition = {
    "openvino.load_config": (OPENVINO_FLOAT_INPUTS,),
    "precision": _others("precision", "int8_weight_only", "int4_weight_only"),
}

# Packed products alone are joined.
_NOT_PACKED: tuple[Condition, ...] = (
    {
        "precision": _others("precision", "int8_weight_only", "int4_weight_only"),
        JOINED: (True,),
    },
)

# fp16 leaves no table in fp32 that could be rounded
_TABLES_IN_FP16: Condition = {"precision": ("fp16", "fp16_mixed"), "embeddings": ("int8",)}


def resolve(
    space: Space,
    model: Model,
    workload: Workload,
    machine: Hardware,
    fixed: Mapping[str, str] | None = None,
    providers: Sequence[ProviderState] = (CPU_STATE,),
    clients: int = 1,
    batch: Sequence[int] = (),
    firing: Callable[[Model], Collection[str]] = lambda _: (),
    runtimes: Sequence[SearchedRuntime] = (),
) -> Space:
    """Returns what of `space` exists for this model, these inputs and this machine.

    Args:
        fixed: Parameters that have one value in all configurations, as typed by the user.
        providers: The execution providers that may be searched, all of them ready.
        batch: Batch sizes, which take the place of those of the space.
        firing: Returns the optimisations of ONNX Runtime that change the model; asked only where
            the space names every one.

    Raises:
        RequestError: `fixed` names an unknown parameter, or a value that it does not take here; or
            the model cannot be run in batches of `batch`.
    """
    fixed_values = _parsed(fixed or {})
    unmet = unmet_needs(model, workload, machine, clients)
    left_out: dict[str, str] = {}
    offered_parameters = _batched(space.parameters, model, workload, batch, left_out)
    offered_parameters = _with_optimizers(offered_parameters, model, firing, left_out)
    offered_parameters = (*_of_runtimes(runtimes), *offered_parameters)
    searched = SearchedProviders.of(offered_parameters, fixed_values, providers, unmet, runtimes)
    kept: list[Parameter] = []
    for parameter in searched.arranged(offered_parameters):
        if parameter.name in fixed_values:
            continue
        offered = {**{name: (v,) for name, v in fixed_values.items()}, **_values_of(kept)}
        if reason := _reason_to_leave_out(parameter, unmet, offered):
            left_out[parameter.name] = reason
            continue
        fitting = _fitting_values(parameter, model, searched, machine.usable_cores, left_out)
        # one batch size alone is what the study is about
        if set(fitting) == {parameter.default} and parameter.name != BATCH:
            left_out[parameter.name] = (
                _ONLY_CPU
                if parameter.name == EXECUTION_PROVIDER
                else "only its default fits this machine"
            )
        else:
            kept.append(replace(parameter, values=fitting, needs=()))
    forced = [
        Parameter(name=name, values=(value,), default=PARAMETERS[name].default)
        for name, value in fixed_values.items()
    ]
    parameters = (*forced, *kept)
    impossible = (*_impossible(parameters, model), *searched.impossible(parameters))
    return replace(space, parameters=parameters, left_out=left_out, impossible=impossible)


def _parsed(fixed: Mapping[str, str]) -> dict[str, Value]:
    """Returns the typed values of `fixed`; see :func:`resolve`."""
    values = {}
    for name, text in fixed.items():
        if name == BATCH:
            raise RequestError(f"--fix: name the batch size with --batch {text}")
        if name == RUNTIME:
            raise RequestError(f"--fix: name the runtimes of the study with --runtimes {text}")
        if name not in PARAMETERS:
            raise RequestError(
                f"--fix: there is no parameter '{name}'.{did_you_mean(name, PARAMETERS)}"
            )
        try:
            values[name] = parse_value(name, text)
        except ValueError as error:
            raise RequestError(f"--fix: {error}") from None
    return values


def _batched(
    parameters: Sequence[Parameter],
    model: Model,
    workload: Workload,
    batch: Sequence[int],
    left_out: dict[str, str],
) -> tuple[Parameter, ...]:
    """Returns the parameters with the batch sizes of the study, if it has some."""
    own = next((p for p in parameters if p.name == BATCH), None)
    sizes = batch or (own.values if own else ())
    if not sizes:
        return tuple(parameters)
    try:
        batching = Batching.of(model, workload, [int(size) for size in sizes])
    except RequestError as error:
        if batch:
            raise RequestError(f"--batch: {error}") from None
        left_out[BATCH] = str(error)
        return tuple(parameter for parameter in parameters if parameter is not own)
    if own is None:
        made = Parameter(name=BATCH, values=batching.sizes, default=batching.smallest)
        return (*parameters, made)
    changed = replace(own, values=batching.sizes, default=batching.smallest)
    return tuple(changed if parameter is own else parameter for parameter in parameters)


def _of_runtimes(runtimes: Sequence[SearchedRuntime]) -> tuple[Parameter, ...]:
    """Returns the parameter that chooses between the user's ONNX Runtime and others, if any."""
    if not runtimes:
        return ()
    values = (OWN, *(each.text for each in runtimes))
    return (Parameter(name=RUNTIME, values=values, default=OWN),)


def _with_optimizers(
    parameters: Sequence[Parameter],
    model: Model,
    firing: Callable[[Model], Collection[str]],
    left_out: dict[str, str],
) -> tuple[Parameter, ...]:
    """Returns the parameters, with one for each optimisation in place of the one for every."""
    whole = next((p for p in parameters if p.name == EVERY_OPTIMIZER), None)
    if whole is None:
        return tuple(parameters)
    others = tuple(parameter for parameter in parameters if parameter is not whole)
    named = {parameter.name for parameter in others}
    names = (EVERY_OPTIMIZER.replace("*", name) for name in firing(model))
    added = tuple(replace(whole, name=name) for name in names if name not in named)
    if not added:
        left_out[EVERY_OPTIMIZER] = "none of ONNX Runtime's fusions changes this model"
    return (*others, *added)


def batching_of(space: Space, model: Model, workload: Workload) -> Batching | None:
    """Returns the batches of a resolved space; None where it has no batch sizes."""
    sizes = next((p.values for p in space.parameters if p.name == BATCH), ())
    return Batching.of(model, workload, [int(size) for size in sizes]) if sizes else None


def _values_of(parameters: Sequence[Parameter]) -> dict[str, tuple[Value, ...]]:
    return {parameter.name: parameter.values for parameter in parameters}


def _reason_to_leave_out(
    parameter: Parameter, unmet: Mapping[str, str], offered: Mapping[str, tuple[Value, ...]]
) -> str | None:
    """Returns why a parameter has no use here; None where it has one.

    Args:
        unmet: Needs that are not met, with the sentences that say so.
        offered: Values of the parameters that were kept or fixed; others stay at their default.
    """
    for need in parameter.needs:
        if need in unmet:
            return unmet[need]
    for name, values in parameter.when.items():
        if set(offered.get(name, (PARAMETERS[name].default,))).isdisjoint(values):
            return f"{name} stays at its default"
    return None


def _fitting_values(
    parameter: Parameter,
    model: Model,
    searched: SearchedProviders,
    cores: int,
    left_out: dict[str, str],
) -> tuple[Value, ...]:
    """Returns the values that are of use here, the default if none is; notes those left out."""
    reasons = [(v, _value_reason(parameter.name, v, model, searched)) for v in parameter.values]
    left_out |= {f"{parameter.name}={value}": reason for value, reason in reasons if reason}
    fitting = tuple(value for value, reason in reasons if not reason)
    if parameter.name in THREAD_COUNTS:
        fitting = _thread_counts(fitting, cores, parameter.default)
    return fitting or (parameter.default,)


def _value_reason(name: str, value: Value, model: Model, searched: SearchedProviders) -> str | None:
    """Returns why a value has no use here; None where it has one."""
    if reason := searched.reason_against(name, value):
        return reason
    if name == "kept_in_float" and value:
        most = max(count for _, count in _quantisable_nodes(model))
        return _NOTHING_LEFT if int(value) >= most else None
    return None


def _thread_counts(values: Sequence[Value], cores: int, default: Value) -> tuple[Value, ...]:
    """Returns thread counts as numbers, none above the usable cores.

    Zero is ONNX Runtime's own choice, and stays only where that is the default.
    """
    counts = (cores // CORES[value] if isinstance(value, str) else value for value in values)
    return tuple(dict.fromkeys(n for n in counts if n <= cores and (n or default == 0)))


def _impossible(parameters: Sequence[Parameter], model: Model) -> Iterator[Condition]:
    """Gives the values that cannot be chosen together, or that change nothing together."""
    values = _values_of(parameters)
    for condition, most in _quantisable_nodes(model):
        too_many = tuple(v for v in values.get("kept_in_float", ()) if v and int(v) >= most)
        if too_many and condition.keys() <= values.keys():
            yield {**condition, "kept_in_float": too_many}
    # a parameter that is fixed has no other value that would give the same file
    repeated = (c for c in _WITHOUT_EFFECT if len(values.get([*c][-1], ())) != 1)
    for condition in (*repeated, *_NOT_PACKED, _FLOAT_INPUTS, _TABLES_IN_FP16):
        within = _within(condition, values)
        if within is not None:
            yield within


def _within(condition: Condition, values: Mapping[str, tuple[Value, ...]]) -> Condition | None:
    """Returns what a condition is among these parameters; None where it cannot hold.

    Parameters that are not among them have their default.
    """
    kept = {}
    for name, excluded in condition.items():
        if name in values:
            kept[name] = tuple(value for value in excluded if value in values[name])
            if not kept[name]:
                return None
        elif PARAMETERS[name].default not in excluded:
            return None
    return kept


def _quantisable_nodes(model: Model) -> list[tuple[Condition, int]]:
    """Returns how many nodes can be quantised, at most, under which conditions.

    Precisions that quantise the same types share a condition. Nodes that ``kept_in_float`` does not
    reach count as one, so that all others may be kept: those of other types, and those in the
    branches and bodies of others.
    """

    def count(types: Sequence[str]) -> int:
        return sum(model.quantisable.get(name, 0) for name in types)

    names_by_types: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for name, precision in PRECISIONS.items():
        if "kept_in_float" in precision.options:
            types = precision.float_types, precision.always_quantised
            names_by_types.setdefault(types, []).append(name)
    counts: list[tuple[Condition, int]] = []
    for (float_types, always), names in names_by_types.items():
        unreached = count(always) or (always and sum(model.quantisable_inside.values()))
        extra = 1 if unreached else 0
        condition: Condition = {"precision": tuple(names)}
        counts.append((condition, count(float_types) + extra))
        if "quantized_operators" in PRECISIONS[names[0]].options:
            for group_name, group in OPERATOR_GROUPS.items():
                # the other groups quantise no fewer nodes than the condition above says
                if set(group.types) < set(float_types) and group.types:
                    counts.append(
                        ({**condition, "quantized_operators": (group_name,)}, count(group.types))
                    )
    return counts
