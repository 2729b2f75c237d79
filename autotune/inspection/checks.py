"""All that an inspection looks for: one entry of :data:`CHECKS` each.

To add a check, write its function and its entry. A function returns a finding with the severity
that holds until its remedy has been measured.
"""

from collections.abc import Mapping

from autotune.graph.entries import is_installed
from autotune.inspection.findings import (
    HIGH,
    LOW,
    MEDIUM,
    Finding,
    FindingKind,
    InspectedModel,
    by_answers,
    by_held_memory,
)
from autotune.inspection.growth import DEFAULT
from autotune.inspection.profile import CASTS, REORDERS
from autotune.space.needs import unmet_needs

# Per-channel quantisation and most pre-passes need it.
_OLDEST_OPSET = 13
_MANY_REORDERS = 0.05
# Less does not matter, and the allocator's luck is as large.
_LEAST_MIB = 16.0
_LEAST_SHARE = 0.15


def _subnormal_weights(inspected: InspectedModel) -> Finding | None:
    graph = inspected.report.optimised
    if graph is None or not graph.subnormals:
        return None
    worst = graph.subnormal_weights[0]
    share = graph.subnormals / graph.float_elements
    return Finding(
        name="subnormal weights",
        severity=MEDIUM if share > 0.01 else LOW,
        summary="Weights are subnormal numbers, on which many processors compute many times "
        "slower.",
        evidence=f"{graph.subnormals:,} of {graph.float_elements:,} weights of the optimised graph "
        f"({100 * share:.1f} %) are below 1.2e-38; '{worst.name}' has {worst.subnormals:,} of "
        f"{worst.elements:,}.",
        advice="Set these weights to zero before the export. A study tries to treat them as zero; "
        "in all its trials: " + inspected.study("--fix session.set_denormal_as_zero=1"),
        remedy={"session.set_denormal_as_zero": "1"},
    )


def _reorders(inspected: InspectedModel) -> Finding | None:
    graph = inspected.report.optimised
    if graph is None:
        return None
    reorders = graph.count("ReorderInput", "ReorderOutput")
    convolutions = graph.count("Conv", "FusedConv")
    share = None if inspected.profile is None else inspected.profile.overhead(REORDERS).share
    many = reorders >= max(2, convolutions / 4) if share is None else share > _MANY_REORDERS
    if not reorders or not many:
        return None
    return Finding(
        name="layout reorders",
        severity=MEDIUM,
        summary="Convolutions run in a blocked layout (NCHWc), and operators between them lack it.",
        evidence=f"Changes of layout: {reorders}; convolutions: {convolutions}."
        + ("" if share is None else f" The changes take {100 * share:.0f} % of the run time."),
        advice="A study tries to leave the layout out; in all its trials: "
        + inspected.study("--fix optimizer.NchwcTransformer=off"),
        remedy={"optimizer.NchwcTransformer": "off"},
    )


def _weights_as_inputs(inspected: InspectedModel) -> Finding | None:
    count = inspected.report.weights_as_inputs
    if not count:
        return None
    return Finding(
        name="weights as inputs",
        severity=HIGH,
        summary="Weights are listed as inputs of the graph, so ONNX Runtime must not take them for "
        "constants: it folds and packs nothing that depends on them.",
        evidence=f"{count} initializers are graph inputs too.",
        advice="python -m onnxruntime.tools.remove_initializer_from_input --input "
        f"{inspected.file} --output fixed.onnx",
    )


def _unfolded(inspected: InspectedModel) -> Finding | None:
    graph = inspected.report.optimised
    if graph is None or not graph.unfolded:
        return None
    count = sum(graph.unfolded.values())
    kinds = ", ".join(f"{number} {name}" for name, number in list(graph.unfolded.items())[:5])
    return Finding(
        name="blocked folding",
        severity=MEDIUM,
        summary="Nodes that depend on constants alone are computed in every run.",
        evidence=f"{count} such nodes are left in the optimised graph: {kinds}.",
        advice="ONNX Simplifier folds them"
        + (": " if is_installed("onnxsim") else " (the extra [passes] brings it): ")
        + inspected.study("--fix pre_pass=onnxsim"),
        remedy={"pre_pass": "onnxsim"} if is_installed("onnxsim") else {},
    )


def _old_opset(inspected: InspectedModel) -> Finding | None:
    opset = inspected.report.opset
    if not 0 < opset < _OLDEST_OPSET:
        return None
    return Finding(
        name="old opset",
        severity=LOW,
        summary="The model's opset is old: some optimisations do not know its operators, and "
        "quantising it per channel needs a newer one.",
        evidence=f"It has opset {opset}; {_OLDEST_OPSET} is the oldest that all tools take.",
        advice="Export the model again with opset 17, or convert it: "
        "python -m onnxruntime.tools.update_onnx_opset --opset 17 "
        f"{inspected.file} newer.onnx",
    )


def _unmet_needs(inspected: InspectedModel) -> Mapping[str, str]:
    return unmet_needs(inspected.model, inspected.workload, inspected.machine)


def _fp16_weights(inspected: InspectedModel) -> Finding | None:
    if "fp16_kernels" not in _unmet_needs(inspected):
        return None
    groups = [group for group in inspected.report.weights if group.dtype == "float16"]
    if not groups:
        return None
    graph, profile = inspected.report.optimised, inspected.profile
    casts = "" if graph is None else f" The optimised graph has {graph.count('Cast')} casts"
    if casts:
        share = None if profile is None else profile.overhead(CASTS).share
        casts += "." if share is None else f", which take {100 * share:.0f} % of the run time."
    return Finding(
        name="fp16 weights",
        severity=MEDIUM,
        summary="Weights are in half precision, for which this processor has no kernels: ONNX "
        "Runtime converts them to fp32 and casts between.",
        evidence=f"{groups[0].elements:,} fp16 weights, {groups[0].size_bytes / 2**20:.1f} MiB."
        + casts,
        advice="Export the model in fp32 for this machine.",
    )


def _saturation(inspected: InspectedModel) -> Finding | None:
    saturation = inspected.report.saturation
    saturates = "saturating_int8" not in _unmet_needs(inspected)
    if not saturation.products or not saturates:
        return None
    return Finding(
        name="saturating int8",
        severity=HIGH,
        summary="Eight-bit products overflow on this processor, which has no VNNI: answers can be "
        "wrong without a word.",
        evidence=f"{saturation.products} products of unsigned activations and signed weights; "
        f"{100 * saturation.large_share:.0f} % of their weights are beyond 64.",
        advice="Quantise again with a reduced range (reduce_range=True), or let ONNX Runtime "
        "compute exactly: " + inspected.study("--fix session.x64quantprecision=1"),
        remedy={"session.x64quantprecision": "1"},
    )


def _growth(inspected: InspectedModel) -> Finding | None:
    growth = inspected.growth
    if not growth:
        return None
    default = growth[DEFAULT]
    best = min(growth, key=lambda name: growth[name].held_mib)
    saved_mib = default.held_mib - growth[best].held_mib
    if saved_mib < max(_LEAST_MIB, _LEAST_SHARE * default.held_mib):
        return None
    return Finding(
        name="memory growth",
        severity=HIGH if saved_mib > 0.5 * default.held_mib else MEDIUM,
        summary="A session needs more memory with each new shape of the inputs and releases none.",
        evidence=f"A session holds {_mib(default.first_mib)} after the first of {default.shapes} "
        f"shapes and {_mib(default.held_mib)} after all of them. With {best} it holds "
        f"{_mib(growth[best].held_mib)} at the end, at a peak of {_mib(growth[best].peak_mib)} "
        f"instead of {_mib(default.peak_mib)}.",
        advice="With inputs of all your shapes in inputs.npz: "
        + inspected.study("--data inputs.npz --space memory --prefer memory", f"--fix {best}"),
    )


def _arena(inspected: InspectedModel) -> Finding | None:
    profile = inspected.profile
    if profile is None or profile.arena_mib is None:
        return None
    assert profile.weights_mib is not None
    assert profile.activations_mib is not None
    needed_mib = profile.weights_mib + profile.activations_mib
    spare_mib = profile.arena_mib - needed_mib
    if spare_mib + profile.activations_mib < max(_LEAST_MIB, _LEAST_SHARE * profile.arena_mib):
        return None
    return Finding(
        name="arena",
        severity=LOW,
        summary="ONNX Runtime's arena holds memory between runs and does not release it.",
        evidence=f"It has reserved {_mib(profile.arena_mib)}: weights {_mib(profile.weights_mib)}, "
        f"activations {_mib(profile.activations_mib)} at their peak, {_mib(spare_mib)} spare.",
        advice=inspected.study("--space memory --prefer memory"),
        remedy={"arena": "off"},
    )


def _inline_weights(inspected: InspectedModel) -> Finding | None:
    inline_mib = inspected.report.inline_bytes / 2**20
    if inline_mib < _LEAST_MIB / 2:
        return None
    return Finding(
        name="inline weights",
        severity=MEDIUM,
        summary="The weights are inside the model's file, so a session copies them; weights in a "
        "file beside it are mapped.",
        evidence=f"{inline_mib:.1f} MiB of weights are inside the file.",
        advice="A study tries to store them outside, with the same answers; in all its trials: "
        + inspected.study("--fix weight_storage=external_data"),
        remedy={"weight_storage": "external_data"},
    )


def _mib(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"


def _branches(inspected: InspectedModel) -> Finding | None:
    branches, cores = inspected.model.branches, inspected.machine.usable_cores
    if branches < 2 or cores < 4:
        return None
    return Finding(
        name="parallel branches",
        severity=LOW,
        summary="Heavy nodes can run side by side, and ONNX Runtime's default runs one at a time.",
        evidence=f"Up to {branches} heavy nodes do not depend on each other; {cores} cores are "
        "usable.",
        advice="A study tries to run them in parallel; in all its trials: "
        + inspected.study("--fix execution_mode=ORT_PARALLEL"),
        remedy={
            "execution_mode": "ORT_PARALLEL",
            "inter_op_num_threads": min(branches, cores // 2),
        },
    )


def _threads(inspected: InspectedModel) -> Finding | None:
    machine = inspected.machine
    if machine.usable_cores >= machine.physical_cores:
        return None
    quota = (
        "its affinity mask allows no more"
        if machine.quota_cores is None
        else f"its CPU quota is {machine.quota_cores:g} cores"
    )
    return Finding(
        name="too many threads",
        severity=HIGH,
        summary="ONNX Runtime starts a thread for each core of the machine, and this process may "
        "use fewer: the threads take the cores from each other.",
        evidence=f"The machine has {machine.physical_cores} cores; {machine.usable_cores} are "
        f"usable here, because {quota}.",
        advice="Set the threads yourself. A study never tries more than are usable; in all its "
        "trials: " + inspected.study(f"--fix intra_op_num_threads={machine.usable_cores}"),
        remedy={"intra_op_num_threads": machine.usable_cores},
    )


CHECKS = (
    FindingKind("subnormal weights", "subnormal weights", _subnormal_weights, optimised=True),
    FindingKind("layout reorders", "layout reorders", _reorders, optimised=True),
    FindingKind("weights as inputs", "weights as graph inputs", _weights_as_inputs),
    FindingKind("blocked folding", "blocked constant folding", _unfolded, optimised=True),
    FindingKind("old opset", "an old opset", _old_opset),
    FindingKind("fp16 weights", "fp16 weights", _fp16_weights),
    FindingKind("saturating int8", "int8 that saturates", _saturation, by_answers),
    FindingKind("memory growth", "memory growth over shapes", _growth, measured=True),
    FindingKind("arena", "memory held by the arena", _arena, by_held_memory, measured=True),
    FindingKind("inline weights", "weights inside the file", _inline_weights),
    FindingKind("parallel branches", "branches for parallel execution", _branches),
    FindingKind("too many threads", "more threads than usable cores", _threads),
)
"""All kinds of findings; where severities are equal, their order is that of the findings."""
