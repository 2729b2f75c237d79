"""A digest that is the same for models that ONNX Runtime optimises to the same graph."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
from onnx import numpy_helper

from autotune.facts.graphs import operator_of
from autotune.graph.model_file import is_large, write_optimised


def graph_digest(path: Path, leave_out: str = "") -> str | None:
    """Returns the digest of the graph that ONNX Runtime makes of the model in the file `path`.

    Tensors are known by the order in which they appear, because passes invent names of their own.
    None where ONNX Runtime does not write the graph.
    """
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        optimised = Path(folder) / "optimised.onnx"
        try:
            write_optimised(path, optimised, "ORT_ENABLE_EXTENDED", leave_out=leave_out)
            model = onnx.load(optimised)
        except Exception:  # noqa: BLE001  # without a digest the model is measured: nothing is lost
            return None
    if is_large(model):
        return None
    opsets = sorted((item.domain, item.version) for item in model.opset_import)
    digest = hashlib.sha256(repr(opsets).encode())
    for item in (*model.graph.input, *model.graph.output):
        digest.update(f"{item.name} ".encode())
    _hash_graph(digest, model.graph, {}, {})
    return digest.hexdigest()


def _hash_graph(
    digest: "hashlib._Hash",
    graph: onnx.GraphProto,
    outer_places: Mapping[str, int],
    outer_weights: Mapping[str, str],
) -> None:
    """Adds the nodes to the digest: weights by their values, other tensors by first appearance.

    Args:
        graph: The main graph or the body of a branch or loop.
        outer_places: Numbers of the tensors of the graphs around it.
        outer_weights: Digests of the weights of the graphs around it, by name.
    """
    places, weights = dict(outer_places), dict(outer_weights)
    for item in graph.initializer:
        array = numpy_helper.to_array(item)
        text = f"{array.dtype} {array.shape}".encode()
        weights[item.name] = hashlib.sha256(text + array.tobytes()).hexdigest()

    def neutral_name(name: str) -> str:
        if not name:
            return "-"
        return weights[name] if name in weights else str(places.setdefault(name, len(places)))

    def add(*names: str) -> None:
        digest.update(" ".join(map(neutral_name, names)).encode())

    add(*(item.name for item in graph.input))
    for node in graph.node:
        digest.update(f"\n{operator_of(node)} ".encode())
        add(*node.input)
        for attribute in sorted(node.attribute, key=lambda item: item.name):
            if attribute.type == onnx.AttributeProto.GRAPH:
                digest.update(attribute.name.encode())
                _hash_graph(digest, attribute.g, places, weights)
            else:
                digest.update(attribute.SerializeToString(deterministic=True))
        digest.update(b" = ")
        add(*node.output)
    add(*(item.name for item in graph.output))
