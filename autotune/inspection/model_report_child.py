"""The child that reads a model for an inspection."""

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import onnx
from onnx import external_data_helper

from autotune.facts.counting import count, item_bits
from autotune.facts.eight_bits import signed_products
from autotune.facts.feeds import load_samples
from autotune.facts.graphs import (
    all_graphs,
    all_nodes,
    all_weights,
    operator_name,
    operator_of,
)
from autotune.facts.optimised import count_subnormals, optimised_model, optimised_weights
from autotune.inspection.model_report import (
    ModelReport,
    OptimisedGraph,
    Saturation,
    SubnormalWeight,
    WeightGroup,
)
from autotune.process.child_end import Message, serve

_MOST_NAMED = 5
# Nodes that give another result each time, or that folding leaves on purpose.
_NEVER_FOLDED = frozenset(
    """
    RandomNormal RandomUniform RandomNormalLike RandomUniformLike Multinomial Bernoulli
    DequantizeLinear QuantizeLinear Constant If Loop Scan
    """.split()
)


def read(message: Message) -> ModelReport:
    """Returns what the file ``path`` says; ``samples`` has the shapes of a run."""
    path = Path(message["model"])
    model = onnx.load(path, load_external_data=False)
    feed = load_samples(Path(message["samples"]))[0]
    inline_bytes, external_bytes = _sizes(model)
    opsets = {item.domain: item.version for item in model.opset_import}
    inputs = {item.name for item in model.graph.input}
    optimised = optimised_model(path)
    return ModelReport(
        opset=opsets.get("", opsets.get("ai.onnx", 0)),
        ir_version=model.ir_version,
        producer=f"{model.producer_name} {model.producer_version}".strip()[:100],
        weights=_groups(model),
        inline_bytes=inline_bytes,
        external_bytes=external_bytes,
        weights_as_inputs=sum(item.name in inputs for item in model.graph.initializer),
        optimised=None if optimised is None else _optimised(optimised, path.parent),
        saturation=_saturation(model, path.parent),
        work=count(model, {name: array.shape for name, array in feed.items()}),
    )


def _saturation(model: onnx.ModelProto, folder: Path) -> Saturation:
    """Returns which quantised products of the model may saturate."""
    products = list(signed_products(model, folder))
    large = sum(product.large for product in products)
    return Saturation(
        products=len(products) if large else 0,
        large_share=large / sum(product.weights for product in products) if large else 0.0,
    )


def _sizes(model: onnx.ModelProto) -> tuple[int, int]:
    """Returns the bytes of the weights inside the file and outside of it."""
    inline = external = 0
    for tensor in all_weights(model.graph):
        size = int(np.prod(tensor.dims)) * item_bits(tensor.data_type) // 8
        if external_data_helper.uses_external_data(tensor):
            external += size
        else:
            inline += size
    return inline, external


def _groups(model: onnx.ModelProto) -> tuple[WeightGroup, ...]:
    tensors: Counter[int] = Counter()
    elements: Counter[int] = Counter()
    for tensor in all_weights(model.graph):
        tensors[tensor.data_type] += 1
        elements[tensor.data_type] += int(np.prod(tensor.dims))
    groups = [
        WeightGroup(
            dtype=onnx.TensorProto.DataType.Name(kind).lower(),
            tensors=tensors[kind],
            elements=elements[kind],
            size_bytes=elements[kind] * item_bits(kind) // 8,
        )
        for kind in tensors
    ]
    return tuple(sorted(groups, key=lambda group: -group.size_bytes))


def _optimised(model: onnx.ModelProto, folder: Path) -> OptimisedGraph:
    graph = model.graph
    subnormal = []
    elements = 0
    for name, array in optimised_weights(model, folder):
        elements += array.size
        if number := count_subnormals(array):
            subnormal.append(SubnormalWeight(name=name, subnormals=number, elements=array.size))
    subnormal.sort(key=lambda weight: -weight.subnormals)
    return OptimisedGraph(
        operators=dict(Counter(operator_name(node) for node in all_nodes(graph)).most_common()),
        unfolded=_unfolded(graph),
        float_elements=elements,
        subnormals=sum(weight.subnormals for weight in subnormal),
        subnormal_weights=tuple(subnormal[:_MOST_NAMED]),
    )


def _unfolded(graph: onnx.GraphProto) -> dict[str, int]:
    """Returns the nodes whose inputs are all constants, and those that follow from them alone.

    Initializers that are graph inputs count as constants here: a caller hardly ever feeds them, and
    ONNX Runtime folds nothing that depends on them.
    """
    kinds: dict[str, int] = defaultdict(int)
    for inner in all_graphs(graph):
        constants = {item.name for item in inner.initializer}
        constants |= {node.output[0] for node in inner.node if operator_of(node) == "Constant"}
        for node in inner.node:
            names = [name for name in node.input if name]
            if operator_of(node) not in _NEVER_FOLDED and names and constants.issuperset(names):
                kinds[operator_name(node)] += 1
                constants.update(node.output)
    return dict(kinds)


if __name__ == "__main__":
    serve({"read": read})
