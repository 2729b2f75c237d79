"""What a model's file says beyond what a study needs, and the work of a run of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.records import MeasuredAmount, Text, Whole
from autotune.facts.work import Work
from autotune.facts.workload import Workload
from autotune.inspection.asking import ask

_CHILD = "autotune.inspection.model_report_child"


@dataclass(frozen=True, kw_only=True)
class WeightGroup:
    """The weights of one element type.

    Attributes:
        dtype: The type as ONNX spells it, in lower case.
    """

    dtype: Text
    tensors: Whole
    elements: Whole
    size_bytes: Whole


@dataclass(frozen=True, kw_only=True)
class SubnormalWeight:
    """A weight of the optimised graph that has subnormal numbers."""

    name: Text
    subnormals: Whole
    elements: Whole


@dataclass(frozen=True, kw_only=True)
class OptimisedGraph:
    """The graph that ONNX Runtime's default makes of the model.

    Attributes:
        operators: How many nodes there are of each type, subgraphs included.
        unfolded: Nodes of each type all of whose inputs are constants: folding left them.
        float_elements: Numbers of its fp32 weights.
        subnormals: How many of these are subnormal.
        subnormal_weights: The weights that have most of them, at most five.
    """

    operators: Mapping[str, Whole]
    unfolded: Mapping[str, Whole]
    float_elements: Whole
    subnormals: Whole
    subnormal_weights: tuple[SubnormalWeight, ...]

    def count(self, *types: str) -> int:
        """Returns how many nodes there are of these types."""
        return sum(self.operators.get(name, 0) for name in types)


@dataclass(frozen=True, kw_only=True)
class Saturation:
    """Quantised products whose sums do not fit into 16 bits on a processor without VNNI.

    Their activations are unsigned and their weights signed eight-bit numbers, and a pair of weights
    may exceed 128 in sum: x86 without VNNI adds pairs of products in 16 bits.

    Attributes:
        products: How many nodes there are.
        large_share: Share of their weights beyond 64, which can make a pair overflow.
    """

    products: Whole
    large_share: MeasuredAmount


@dataclass(frozen=True, kw_only=True)
class ModelReport:
    """What the file says.

    Attributes:
        producer: The program that wrote the file, as it says itself.
        weights: The weights by element type, the largest group first.
        weights_as_inputs: Initializers that are graph inputs too, so that they are no constants.
        optimised: The optimised graph; None where it cannot be written out.
        saturation: Quantised products that may saturate.
        work: The work of a run with the shapes of the first sample.
    """

    opset: Whole
    ir_version: Whole
    producer: Text
    weights: tuple[WeightGroup, ...]
    inline_bytes: Whole
    external_bytes: Whole
    weights_as_inputs: Whole
    optimised: OptimisedGraph | None
    saturation: Saturation
    work: Work


def read_model(model: Path, workload: Workload) -> ModelReport:
    """Returns what the model's file says, from a process of its own.

    Args:
        workload: Its inputs; the shapes of the first sample count.

    Raises:
        CannotMeasureError: the file cannot be read; the message says why.
    """
    request = {"do": "read"}
    return ask(_CHILD, request, model, workload.feeds[:1], ModelReport, verb="inspected")
