"""A model with some of its outputs, and without what served the others alone."""

from pathlib import Path

import onnx

from autotune.facts.graphs import taken_by
from autotune.graph.entries import StepRefusedError
from autotune.graph.model_file import refill, save


def keep(source: Path, target: Path, *, outputs: str) -> None:
    """Writes the model with these outputs, whose names are separated by commas.

    Its inputs stay, also those that nothing takes any more: callers give them.

    Raises:
        StepRefusedError: the model has no such output.
    """
    model = onnx.load(source)
    names = outputs.split(",")
    kept = [item for item in model.graph.output if item.name in names]
    if len(kept) < len(names):
        raise StepRefusedError(f"the model has not all of the outputs {', '.join(names)}")
    del model.graph.output[:]
    model.graph.output.extend(kept)
    _remove_unused(model.graph)
    save(model, target)


def _remove_unused(graph: onnx.GraphProto) -> None:
    """Removes the nodes and weights on which no output depends."""
    needed = {item.name for item in graph.output}
    defaults = {item.name for item in graph.input}  # an input without its default must be fed
    nodes = []
    for node in reversed(graph.node):  # every node stands behind those that it takes from
        if not needed.isdisjoint(filter(None, node.output)):
            nodes.append(node)
            needed |= taken_by(node)
    weights = [item for item in graph.initializer if item.name in needed | defaults]
    nodes.reverse()
    refill(graph.node, nodes)
    refill(graph.initializer, weights)
