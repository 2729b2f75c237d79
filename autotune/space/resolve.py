"""What of a search space exists for one model on one machine."""

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from autotune.deploy.options import Value
from autotune.errors import RequestError, did_you_mean
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.space.candidate import PARAMETERS, parse_value
from autotune.space.space import CORES, NEEDS, THREAD_COUNTS, Condition, Parameter, Space

_VALUE_NEEDS: Mapping[tuple[str, Value], tuple[str, ...]] = {
    ("pre_pass", "onnxslim"): ("onnxslim",),
    ("pre_pass", "onnxsim"): ("onnxsim",),
    ("pre_pass", "onnxoptimizer"): ("onnxoptimizer",),
    ("pre_pass", "onnxscript"): ("onnxscript",),
    ("pre_pass", "ort_transformers"): ("transformer",),
    ("pre_pass", "onnxslim+ort_transformers"): ("onnxslim", "transformer"),
    ("pre_pass", "onnxslim+onnxscript"): ("onnxslim", "onnxscript"),
    ("pre_pass", "onnxslim+ort_extended"): ("onnxslim",),
    ("precision", "fp16"): ("fp16_kernels",),
    ("precision", "fp16_mixed"): ("fp16_kernels",),
    ("precision", "int8_dynamic"): ("matrix_products",),
    ("precision", "int8_static"): ("weights",),
    ("precision", "int8_weight_only"): ("matmul", "onnx_ir"),
    ("precision", "int4_weight_only"): ("matmul", "onnx_ir"),
    ("quantized_operators", "conv"): ("conv_and_matrix_products",),
    ("quantized_operators", "matmul"): ("conv_and_matrix_products",),
}
# Kernels that take half precision are compiled in for these processors alone.
_FP16_ARCHITECTURES = frozenset({"aarch64", "arm64"})
_X86 = frozenset({"x86_64", "amd64", "i686"})


def resolve(
    space: Space,
    model: Model,
    workload: Workload,
    machine: Hardware,
    fixed: Mapping[str, str] | None = None,
) -> Space:
    """Returns what of `space` exists for this model, these inputs and this machine.

    Args:
        space: The space as its file says.
        model: The model.
        workload: Its inputs.
        machine: This machine.
        fixed: Parameters that have one value in all candidates, as typed by the user.

    Raises:
        RequestError: `fixed` names an unknown parameter, or a value that it does not take.
    """
    chosen = _fixed_values(fixed or {})
    have = _facts(model, workload, machine)
    kept: list[Parameter] = []
    left_out: dict[str, str] = {}
    for parameter in space.parameters:
        if parameter.name in chosen:
            continue
        if lacking := [NEEDS[need] for need in parameter.needs if not have[need]]:
            left_out[parameter.name] = lacking[0]
            continue
        if unmet := _never_met(parameter, {p.name: p.values for p in kept}, chosen):
            left_out[parameter.name] = f"{unmet} stays at its default"
            continue
        resolved = _with_cores(_with_needs(parameter, have, left_out), machine.usable_cores)
        if parameter.name == "kept_in_float":
            resolved = _without_all_kept(resolved, model, left_out)
        if set(resolved.values) == {parameter.default}:
            left_out[parameter.name] = "only its default fits this machine"
        else:
            kept.append(replace(resolved, needs=()))
    forced = [
        Parameter(
            name=name,
            values=(value,),
            default=PARAMETERS[name].default,
            when={},
            unless={},
            needs=(),
        )
        for name, value in chosen.items()
    ]
    parameters = (*forced, *kept)
    impossible = tuple(_impossible(parameters, model))
    return replace(space, parameters=parameters, left_out=left_out, impossible=impossible)


def _without_all_kept(parameter: Parameter, model: Model, left_out: dict[str, str]) -> Parameter:
    """Returns the parameter without the values that would keep every node of the model in float."""
    most = max(count for _, count in _quantisable(model))
    fitting = []
    for value in parameter.values:
        if value and int(value) >= most:
            left_out[f"{parameter.name}={value}"] = "it would leave nothing to quantise"
        else:
            fitting.append(value)
    return replace(parameter, values=tuple(fitting) or (parameter.default,))


def _impossible(parameters: Sequence[Parameter], model: Model) -> Iterator[Condition]:
    """Gives what would leave no node to quantise, because so many of them stay in float."""
    values = {parameter.name: parameter.values for parameter in parameters}
    for condition, count in _quantisable(model):
        too_many = tuple(v for v in values.get("kept_in_float", ()) if v and int(v) >= count)
        if too_many and condition.keys() <= values.keys():
            yield {**condition, "kept_in_float": too_many}


def _quantisable(model: Model) -> list[tuple[Condition, int]]:
    """Returns how many nodes can be quantised, at most, under which conditions."""

    def count(*kinds: str) -> int:
        return sum(model.operators.get(kind, 0) for kind in kinds)

    # these are quantised as well and never kept in float, so that all the rest may be
    others = 1 if count("LSTM", "Attention") else 0
    return [
        ({"precision": ("int8_static",)}, count("Conv", "MatMul", "Gemm")),
        ({"precision": ("int8_static",), "quantized_operators": ("conv",)}, count("Conv")),
        (
            {"precision": ("int8_static",), "quantized_operators": ("matmul",)},
            count("MatMul", "Gemm"),
        ),
        ({"precision": ("int8_dynamic",)}, count("MatMul", "Gemm") + others),
        ({"precision": ("int8_weight_only", "int4_weight_only")}, count("MatMul")),
    ]


def _facts(model: Model, workload: Workload, machine: Hardware) -> dict[str, bool]:
    """Returns which of the needs are met."""
    operators = model.operators
    products = not operators.keys().isdisjoint({"MatMul", "Gemm"})
    packages = ("onnxslim", "onnxsim", "onnxoptimizer", "onnxscript", "onnx_ir")
    return {
        "conv": model.has_conv,
        "gelu": model.has_gelu,
        "branches": model.branches > 1,
        "dynamic_shapes": model.is_dynamic,
        "named_dimensions": bool(workload.dimensions(model)),
        "subnormals": model.subnormals > 0,
        "several_cores": machine.usable_cores > 1,
        "four_cores": machine.usable_cores >= 4,
        "weights": model.has_conv or products,
        "matmul": "MatMul" in operators,
        "matrix_products": products or not operators.keys().isdisjoint({"LSTM", "Attention"}),
        "conv_and_matrix_products": model.has_conv and products,
        "transformer": operators.get("Softmax", 0) > 0 and operators.get("MatMul", 0) > 1,
        "fp16_kernels": machine.architecture.lower() in _FP16_ARCHITECTURES
        and not {"asimdhp", "fphp"}.isdisjoint(machine.features),
        "saturating_int8": machine.architecture.lower() in _X86
        and {"avx512_vnni", "avx_vnni"}.isdisjoint(machine.features),
        **{name: importlib.util.find_spec(name) is not None for name in packages},
    }


def _with_needs(
    parameter: Parameter, have: Mapping[str, bool], left_out: dict[str, str]
) -> Parameter:
    """Returns the parameter with the values that are of use; the others go to `left_out`."""
    fitting = []
    for value in parameter.values:
        needs = _VALUE_NEEDS.get((parameter.name, value), ())
        lacking = [NEEDS[need] for need in needs if not have[need]]
        if lacking:
            left_out[f"{parameter.name}={value}"] = lacking[0]
        else:
            fitting.append(value)
    return replace(parameter, values=tuple(fitting) or (parameter.default,))


def _never_met(
    parameter: Parameter, kept: Mapping[str, tuple[Value, ...]], fixed: Mapping[str, Value]
) -> str | None:
    """Returns a parameter that can never have a value which `parameter` waits for."""
    for name, wanted in parameter.when.items():
        single = (fixed.get(name, PARAMETERS[name].default),)
        if not set(kept.get(name, single)) & set(wanted):
            return name
    return None


def _fixed_values(fixed: Mapping[str, str]) -> dict[str, Value]:
    values = {}
    for name, text in fixed.items():
        if name not in PARAMETERS:
            raise RequestError(
                f"--fix: there is no parameter '{name}'.{did_you_mean(name, PARAMETERS)}"
            )
        try:
            values[name] = parse_value(name, text)
        except ValueError as error:
            raise RequestError(f"--fix: {error}") from None
    return values


def _with_cores(parameter: Parameter, cores: int) -> Parameter:
    """Returns the parameter with thread counts as numbers, none above the usable cores."""
    if parameter.name not in THREAD_COUNTS:
        return parameter
    counts = (cores // CORES[v] if isinstance(v, str) else v for v in parameter.values)
    fitting = (v for v in counts if v <= cores and (v or parameter.default == 0))
    return replace(parameter, values=tuple(dict.fromkeys(fitting)))
