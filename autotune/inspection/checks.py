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
    Check,
    Finding,
    InspectedModel,
    by_answers,
)
from autotune.inspection.memory_checks import ARENA, GROWTH, INLINE_WEIGHTS
from autotune.inspection.profile import CASTS, REORDERS
from autotune.space.needs import unmet_needs

# Per-channel quantisation and most pre-passes need it.
_OLDEST_OPSET = 13
_MANY_REORDERS = 0.05


def _subnormal_weights(inspected: InspectedModel) -> Finding | None:
    graph = inspected.reading.optimised
    if graph is None or not graph.subnormals:
        return None
    worst = graph.subnormal_weights[0]
    share = graph.subnormals / graph.float_elements
    return Finding(
        name="subnormal weights",
        severity=MEDIUM if share > 0.01 else LOW,
        says="Weights are subnormal numbers, on which many processors compute many times slower.",
        evidence=f"{graph.subnormals:,} of {graph.float_elements:,} weights of the optimised graph "
        f"({share:.1%}) are below 1.2e-38; '{worst.name}' has {worst.subnormals:,} of "
        f"{worst.elements:,}.",
        remedy="Set these weights to zero before the export. A study tries to treat them as zero; "
        "in all its trials: " + inspected.study("--fix session.set_denormal_as_zero=1"),
        try_out={"session.set_denormal_as_zero": "1"},
    )


def _reorders(inspected: InspectedModel) -> Finding | None:
    graph = inspected.reading.optimised
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
        says="Convolutions run in a blocked layout (NCHWc), and operators between them lack it.",
        evidence=f"Changes of layout: {reorders}; convolutions: {convolutions}."
        + ("" if share is None else f" The changes take {share:.0%} of the run time.")
        + _at_extended(inspected),
        remedy="A study tries to leave the layout out; in all its trials: "
        + inspected.study("--fix nchwc=off"),
        try_out={"nchwc": "off"},
    )


def _at_extended(inspected: InspectedModel) -> str:
    """Returns what the profile without layout changes shows, in a sentence."""
    if inspected.extended is None or inspected.profile is None:
        return ""
    share = inspected.extended.overhead(REORDERS).share
    return (
        f" At graph level extended they take {share:.0%}, and a run takes "
        f"{inspected.extended.run_ms:.3g} ms instead of {inspected.profile.run_ms:.3g} ms."
    )


def _weights_as_inputs(inspected: InspectedModel) -> Finding | None:
    count = inspected.reading.weights_as_inputs
    if not count:
        return None
    return Finding(
        name="weights as inputs",
        severity=HIGH,
        says="Weights are listed as inputs of the graph, so ONNX Runtime must not take them for "
        "constants: it folds and packs nothing that depends on them.",
        evidence=f"{count} initializers are graph inputs too.",
        remedy="python -m onnxruntime.tools.remove_initializer_from_input --input "
        f"{inspected.file} --output fixed.onnx",
    )


def _unfolded(inspected: InspectedModel) -> Finding | None:
    graph = inspected.reading.optimised
    if graph is None or not graph.unfolded:
        return None
    count = sum(graph.unfolded.values())
    kinds = ", ".join(f"{number} {name}" for name, number in list(graph.unfolded.items())[:5])
    return Finding(
        name="blocked folding",
        severity=MEDIUM,
        says="Nodes that depend on constants alone are computed in every run.",
        evidence=f"{count} such nodes are left in the optimised graph: {kinds}.",
        remedy="ONNX Simplifier folds them"
        + (": " if is_installed("onnxsim") else " (the extra [passes] brings it): ")
        + inspected.study("--fix pre_pass=onnxsim"),
        try_out={"pre_pass": "onnxsim"} if is_installed("onnxsim") else {},
    )


def _old_opset(inspected: InspectedModel) -> Finding | None:
    opset = inspected.reading.opset
    if not 0 < opset < _OLDEST_OPSET:
        return None
    return Finding(
        name="old opset",
        severity=LOW,
        says="The model's opset is old: some optimisations do not know its operators, and "
        "quantising it per channel needs a newer one.",
        evidence=f"It has opset {opset}; {_OLDEST_OPSET} is the oldest that all tools take.",
        remedy="Export the model again with opset 17, or convert it: "
        "python -m onnxruntime.tools.update_onnx_opset --opset 17 "
        f"{inspected.file} newer.onnx",
    )


def _unmet_needs(inspected: InspectedModel) -> Mapping[str, str]:
    return unmet_needs(inspected.model, inspected.workload, inspected.machine)


def _fp16_weights(inspected: InspectedModel) -> Finding | None:
    if "fp16_kernels" not in _unmet_needs(inspected):
        return None
    groups = [group for group in inspected.reading.weights if group.dtype == "float16"]
    if not groups:
        return None
    graph, profile = inspected.reading.optimised, inspected.profile
    casts = "" if graph is None else f" The optimised graph has {graph.count('Cast')} casts"
    if casts:
        share = None if profile is None else profile.overhead(CASTS).share
        casts += "." if share is None else f", which take {share:.0%} of the run time."
    return Finding(
        name="fp16 weights",
        severity=MEDIUM,
        says="Weights are in half precision, for which this processor has no kernels: ONNX Runtime "
        "converts them to fp32 and casts between.",
        evidence=f"{groups[0].elements:,} fp16 weights, {groups[0].size_bytes / 2**20:.1f} MiB."
        + casts,
        remedy="Export the model in fp32 for this machine.",
    )


def _saturation(inspected: InspectedModel) -> Finding | None:
    saturation = inspected.reading.saturation
    saturates = "saturating_int8" not in _unmet_needs(inspected)
    if not saturation.products or not saturates:
        return None
    return Finding(
        name="saturating int8",
        severity=HIGH,
        says="Eight-bit products overflow on this processor, which has no VNNI: answers can be "
        "wrong without a word.",
        evidence=f"{saturation.products} products of unsigned activations and signed weights; "
        f"{saturation.large_share:.0%} of their weights are beyond 64.",
        remedy="Quantise again with a reduced range (reduce_range=True), or let ONNX Runtime "
        "compute exactly: " + inspected.study("--fix session.x64quantprecision=1"),
        try_out={"session.x64quantprecision": "1"},
    )


def _branches(inspected: InspectedModel) -> Finding | None:
    branches, cores = inspected.model.branches, inspected.machine.usable_cores
    if branches < 2 or cores < 4:
        return None
    return Finding(
        name="parallel branches",
        severity=LOW,
        says="Heavy nodes can run side by side, and ONNX Runtime's default runs one at a time.",
        evidence=f"Up to {branches} heavy nodes do not depend on each other; {cores} cores are "
        "usable.",
        remedy="A study tries to run them in parallel; in all its trials: "
        + inspected.study("--fix execution_mode=ORT_PARALLEL"),
        try_out={
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
        says="ONNX Runtime starts a thread for each core of the machine, and this process may use "
        "fewer: the threads take the cores from each other.",
        evidence=f"The machine has {machine.physical_cores} cores; {machine.usable_cores} are "
        f"usable here, because {quota}.",
        remedy="Set the threads yourself. A study never tries more than are usable; in all its "
        "trials: " + inspected.study(f"--fix intra_op_num_threads={machine.usable_cores}"),
        try_out={"intra_op_num_threads": machine.usable_cores},
    )


CHECKS = (
    Check(name="subnormal weights", about="subnormal weights", find=_subnormal_weights),
    Check(name="layout reorders", about="layout reorders", find=_reorders),
    Check(
        name="weights as inputs",
        about="weights as graph inputs",
        find=_weights_as_inputs,
    ),
    Check(name="blocked folding", about="blocked constant folding", find=_unfolded),
    Check(name="old opset", about="an old opset", find=_old_opset),
    Check(name="fp16 weights", about="fp16 weights", find=_fp16_weights),
    Check(name="saturating int8", about="int8 that saturates", find=_saturation, rate=by_answers),
    GROWTH,
    ARENA,
    INLINE_WEIGHTS,
    Check(
        name="parallel branches",
        about="branches for parallel execution",
        find=_branches,
    ),
    Check(name="too many threads", about="more threads than usable cores", find=_threads),
)
"""All checks; where severities are equal, the order of the findings."""
