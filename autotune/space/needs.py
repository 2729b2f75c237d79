"""What a parameter, or one of its values, may need of model, inputs, machine and installation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.graph.entries import is_installed, not_installed
from autotune.graph.parameters import PACKAGES

if TYPE_CHECKING:  # they bring in onnxruntime, which reading a search space does not need
    from autotune.facts.hardware import Hardware
    from autotune.facts.model import Model
    from autotune.facts.workload import Workload

# ONNX Runtime has half-precision kernels on the CPU for these processors alone.
_FP16_ARCHITECTURES = frozenset({"aarch64", "arm64"})
# Above this protobuf cannot hold a model in one file, and ONNX Runtime's tools write one.
LARGEST_QUANTISED_BYTES = (1 << 31) - 1
_X86 = frozenset({"x86_64", "amd64", "i686"})


@dataclass(frozen=True, kw_only=True)
class Need:
    """A fact that a parameter or a value needs.

    Attributes:
        is_met: Returns whether it is met, by the model, its inputs, the machine and the number of
            clients.
    """

    lacking: str
    is_met: Callable[[Model, Workload, Hardware, int], bool]


def has_weighted(model: Model, *types: str, inside: bool = False) -> bool:
    """Returns whether a node of one of these types has a constant weight.

    Args:
        inside: Whether nodes in the branches and bodies of others count too.
    """
    counts = [model.quantisable, *([model.quantisable_inside] if inside else [])]
    return any(count.get(name, 0) for count in counts for name in types)


def _package(name: str) -> Need:
    return Need(lacking=not_installed(name), is_met=lambda *_: is_installed(name))


NEEDS: Mapping[str, Need] = {
    "conv": Need(
        lacking="the model has no convolution",
        is_met=lambda model, *_: model.has_conv,
    ),
    "gelu": Need(
        lacking="the model has no GELU",
        is_met=lambda model, *_: model.has_gelu,
    ),
    "branches": Need(
        lacking="no heavy nodes of the model can run side by side",
        is_met=lambda model, *_: model.branches > 1,
    ),
    "dynamic_shapes": Need(
        lacking="the model's shapes are fixed",
        is_met=lambda model, *_: model.is_dynamic,
    ),
    "named_dimensions": Need(
        lacking="the model has no named dimension whose size you gave, the same in all samples; "
        "give sizes with --shape or --data; docs/providers.md says how to name dimensions",
        is_met=lambda model, workload, *_: bool(workload.dimensions(model)),
    ),
    "subnormals": Need(
        lacking="the optimised model has no subnormal weights",
        # where it is not known whether there are some, the option is tried
        is_met=lambda model, *_: model.subnormals is None or model.subnormals > 0,
    ),
    "several_cores": Need(
        lacking="there is only one usable core",
        is_met=lambda _model, _workload, machine, _clients: machine.usable_cores > 1,
    ),
    "four_cores": Need(
        lacking="there are fewer than four usable cores",
        is_met=lambda _model, _workload, machine, _clients: machine.usable_cores >= 4,
    ),
    "several_clients": Need(
        lacking="there is one client; --clients N has several",
        is_met=lambda _model, _workload, _machine, clients: clients > 1,
    ),
    "bound_buffers": Need(
        lacking="a captured graph needs buffers that stay: one client, samples of one shape, and "
        "no model that generates tokens",
        is_met=lambda _model, workload, _machine, clients: (
            clients == 1 and workload.plan is None and workload.one_shape
        ),
    ),
    "weights": Need(
        lacking="the model has no convolution or matrix product with a constant weight, "
        "or only inside branches and loops",
        is_met=lambda model, *_: has_weighted(model, "Conv", "MatMul", "Gemm"),
    ),
    "matrix_products": Need(
        lacking="the model has no matrix product or LSTM with a constant weight",
        is_met=lambda model, *_: has_weighted(
            model, "MatMul", "Gemm", "LSTM", "com.microsoft.Attention", inside=True
        ),
    ),
    "matmul": Need(
        lacking="the model has no MatMul or Gemm whose weights could be packed",
        is_met=lambda model, *_: has_weighted(model, "MatMul", "Gemm", inside=True),
    ),
    "conv_and_matrix_products": Need(
        lacking="the model does not have both convolutions and matrix products",
        is_met=lambda model, *_: (
            has_weighted(model, "Conv") and has_weighted(model, "MatMul", "Gemm")
        ),
    ),
    "several_products": Need(
        lacking="the model has no two matrix products with constant weights",
        is_met=lambda model, *_: (
            sum(model.quantisable.get(name, 0) for name in ("MatMul", "Gemm")) > 1
        ),
    ),
    "embeddings": Need(
        lacking="the model has no embedding: no node that takes rows out of a large constant table",
        is_met=lambda model, *_: model.embeddings > 0,
    ),
    "gqa_caches": Need(
        lacking="the model has no GroupQueryAttention, whose kernel takes caches in int8",
        is_met=lambda model, *_: (
            model.decoder is not None and "com.microsoft.GroupQueryAttention" in model.operators
        ),
    ),
    "small_model": Need(
        lacking="ONNX Runtime's tools cannot quantise a model over 2 GiB",
        is_met=lambda model, *_: model.size_bytes <= LARGEST_QUANTISED_BYTES,
    ),
    "transformer": Need(
        lacking="the model has no attention",
        is_met=lambda model, *_: (
            "Softmax" in model.operators and model.operators.get("MatMul", 0) > 1
        ),
    ),
    "fp16_kernels": Need(
        lacking="the CPU provider has no fp16 kernels on this processor",
        is_met=lambda _model, _workload, machine, _clients: (
            machine.architecture.lower() in _FP16_ARCHITECTURES
            and not {"asimdhp", "fphp"}.isdisjoint(machine.features)
        ),
    ),
    "bf16": Need(
        lacking="the processor does not compute in bfloat16",
        is_met=lambda _model, _workload, machine, _clients: (
            not {"avx512_bf16", "amx_bf16"}.isdisjoint(machine.features)
        ),
    ),
    "arm_bf16": Need(
        lacking="the processor is no ARM one that computes in bfloat16",
        is_met=lambda _model, _workload, machine, _clients: (
            machine.architecture.lower() in _FP16_ARCHITECTURES and "bf16" in machine.features
        ),
    ),
    "saturating_int8": Need(
        lacking="eight-bit products do not saturate on this processor",
        is_met=lambda _model, _workload, machine, _clients: (
            machine.architecture.lower() in _X86
            and {"avx512_vnni", "avx_vnni"}.isdisjoint(machine.features)
        ),
    ),
    **{name: _package(name) for name in PACKAGES},
}
"""All needs by the names that a search space uses; a package is a need under its import name."""


def unmet_needs(
    model: Model, workload: Workload, machine: Hardware, clients: int = 1
) -> dict[str, str]:
    """Returns the needs that are not met, each with the sentence that says so."""
    return {
        name: need.lacking
        for name, need in NEEDS.items()
        if not need.is_met(model, workload, machine, clients)
    }
