"""Model files as the steps of the graph parameters read and write them."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from onnx import external_data_helper

from autotune.facts.graphs import all_graphs, all_nodes, all_weights, taken_by
from autotune.facts.weights import to_initializers
from autotune.graph.entries import StepRefusedError

LARGEST_PROTO_BYTES = (1 << 31) - 1
"""Above this protobuf cannot hold a model in one file, and most tools hold one in memory."""

BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""The domain of convolutions whose weights lie in the blocks of one kind of processor."""

_BLOCKED_LAYOUT = "NchwcTransformer"
DATA_FILE = "session.optimized_model_external_initializers_file_name"
"""The entry of a session that writes its model: the file of the weights."""

NO_PREPACKING = "session.disable_prepacking"
"""The entry of a session whose weights need no layout of their kernels, because it never runs."""

# The rest of a model has a few megabytes.
_LARGEST_WEIGHTS_BYTES = LARGEST_PROTO_BYTES - (1 << 26)


def is_large(model: onnx.ModelProto) -> bool:
    """Returns whether a model with its weights in memory is too large for one file.

    A model that is cannot tell its own size.
    """
    sizes: list[int] = [item.ByteSize() for item in all_weights(model.graph)]
    return sum(sizes) > _LARGEST_WEIGHTS_BYTES


def save(model: onnx.ModelProto, target: Path) -> None:
    """Writes the model, with its weights beside it where one file cannot hold them.

    Raises:
        StepRefusedError: there is no model: the tool returned None.
    """
    if model is None:
        raise StepRefusedError("the tool returned no model")
    if is_large(model):
        onnx.save(model, target, save_as_external_data=True, location=f"{target.name}.data")
    else:
        onnx.save(model, target)


def write_optimised(
    source: Path,
    target: Path,
    level: str,
    entries: Mapping[str, str] | None = None,
    leave_out: str = "",
) -> None:
    """Writes what ONNX Runtime's CPU provider makes of the model, for every processor.

    The blocked layout of convolutions (NCHWc) is left to the session that opens the file: its
    weights have the block size of one kind of processor, and another kind computes wrong answers
    from them without an error.

    Raises:
        StepRefusedError: ONNX Runtime wrote the blocked layout all the same.
    """
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    settings.optimized_model_filepath = str(target)
    settings.log_severity_level = 4
    left_out = f"{_BLOCKED_LAYOUT};{leave_out}" if leave_out else _BLOCKED_LAYOUT
    settings.add_session_config_entry("optimization.disable_specified_optimizers", left_out)
    given = dict(entries or {})
    # without a name the written model refers to the external data of the source by their path
    if DATA_FILE not in given and (
        size_with_data(source) > LARGEST_PROTO_BYTES // 2 or has_external_data(source)
    ):
        given[DATA_FILE] = f"{target.name}.data"
    for key, value in given.items():
        settings.add_session_config_entry(key, value)
    onnxruntime.InferenceSession(
        source, settings, providers=["CPUExecutionProvider"], enable_fallback=0
    )
    written = onnx.load(target, load_external_data=False).graph
    if any(node.domain == BLOCKED_DOMAIN for node in all_nodes(written)):
        raise StepRefusedError("ONNX Runtime wrote weights in the blocks of this processor")


def remove_unneeded(graph: onnx.GraphProto) -> None:
    """Removes the nodes and weights of a graph on which no output depends."""
    makers = {name: node for node in graph.node for name in node.output if name}
    needed: set[str] = set()
    waiting = [item.name for item in graph.output]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += taken_by(makers[name]) if name in makers else ()
    keep(graph.node, lambda node: not needed.isdisjoint(node.output))
    needed |= {item.name for item in graph.input}  # an input without its default must be fed
    keep(graph.initializer, lambda item: item.name in needed)


def keep(field: Any, is_kept: Callable[[Any], bool]) -> None:
    """Removes the other items of a repeated field, without a copy of those that stay."""
    for i in reversed(range(len(field))):
        if not is_kept(field[i]):
            del field[i]


def refill(field: Any, items: Sequence[Any]) -> None:
    """Makes a repeated field of a message hold these items, which may be some of its own."""
    copies = [type(item).FromString(item.SerializeToString()) for item in items]
    del field[:]
    field.extend(copies)


def has_external_data(source: Path) -> bool:
    """Returns whether some weights of the model are stored outside its file."""
    return any(
        external_data_helper.uses_external_data(item)
        for item in all_weights(onnx.load(source, load_external_data=False).graph)
    )


def make_plain(source: Path) -> None:
    """Rewrites a model in the form that the steps take.

    Its functions are put in the place of their calls, each node stands behind those that it takes
    from, and weights in Constant nodes and inputs become initializers. External data stay as they
    are.
    """
    model = onnx.load(source, load_external_data=False)
    changed = bool(model.functions)
    if changed:
        model = _inlined(model)
    for graph in all_graphs(model.graph):
        changed |= _sort(graph)
    changed |= _copy_constant_outputs(model.graph)
    if to_initializers(model) or changed:
        source.write_bytes(model.SerializeToString())


def _copy_constant_outputs(graph: onnx.GraphProto) -> bool:
    """Makes a weight that is an output too a copy; returns whether there was one.

    Tools that change the weight would change the output, or define it twice.
    """
    fed = {item.name for item in graph.input}
    names = {item.name for item in graph.output} - fed
    weights = [item for item in graph.initializer if item.name in names]
    known = {name for node in all_nodes(graph) for name in (*node.input, *node.output)}
    for weight in weights:
        output = weight.name
        while weight.name in known | names:
            weight.name += "_"
        for node in all_nodes(graph):
            node.input[:] = [weight.name if name == output else name for name in node.input]
        graph.node.append(onnx.helper.make_node("Identity", [weight.name], [output]))
    return bool(weights)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns the model with its functions in the place of their calls."""
    try:
        inlined = onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:
        raise StepRefusedError(f"its functions cannot be put in place: {error}") from error
    known = {item.domain for item in inlined.opset_import}
    for item in (item for function in model.functions for item in function.opset_import):
        if item.domain not in known:
            known.add(item.domain)
            inlined.opset_import.append(item)
    return inlined


def _sort(graph: onnx.GraphProto) -> bool:
    """Puts each node of a graph behind those that it takes from; returns whether that moved one.

    ONNX Runtime opens such models, and tools go through the nodes in their order.
    """
    nodes = list(graph.node)
    makers = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    waits_for = [{makers[n] for n in taken_by(node) if n in makers} for node in nodes]
    if all(max(before, default=-1) < i for i, before in enumerate(waits_for)):
        return False
    takers: dict[int, list[int]] = {}
    for i, before in enumerate(waits_for):
        for j in before:
            takers.setdefault(j, []).append(i)
    left = [len(before) for before in waits_for]
    ready = [i for i, count in enumerate(left) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for i in takers.get(order[-1], ()):
            left[i] -= 1
            if not left[i]:
                heapq.heappush(ready, i)
    if len(order) < len(nodes):
        return False  # nodes in a circle: the tools say what is wrong
    refill(graph.node, [nodes[i] for i in order])
    return True


def data_file(tensor: onnx.TensorProto) -> str | None:
    """Returns the name of the file that holds the tensor; None where the model's own does."""
    return next((e.value for e in tensor.external_data if e.key == "location"), None)


def size_with_data(source: Path) -> int:
    """Returns the bytes of all files in the folder of `source`, which holds no other model."""
    return sum(file.stat().st_size for file in source.parent.iterdir() if file.is_file())


def model_bytes(path: Path, model: onnx.ModelProto) -> int:
    """Returns the bytes of a model's file and of the data files that it names."""
    names = {name for tensor in all_weights(model.graph) if (name := data_file(tensor))}
    return sum(file.stat().st_size for file in (path, *(path.parent / name for name in names)))
