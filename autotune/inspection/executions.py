"""The shapes that a real run has, where shapes depend on values; for the child that reads a model.

ONNX Runtime's profiler notes the shapes of every node that it executes. The model is run as it is,
without optimisation, so that the nodes are those of the file.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
from autotune.facts.counting import Execution
from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_nodes, all_weights
from autotune.facts.shapes import Extent
from autotune.inspection.trace import node_events, node_name

_PLAIN = SessionConfig(options={"graph_optimization_level": "ORT_DISABLE_ALL"})
# Bits of an element, by the names that the profiler gives to types.
_BITS = {
    **dict.fromkeys(("float", "int32", "uint32"), 32),
    **dict.fromkeys(("double", "int64", "uint64"), 64),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("int8", "uint8", "bool"), 8),
}


def executions_of(path: Path, model: onnx.ModelProto, feed: Feed) -> dict[str, Execution] | None:
    """Returns how a run executes each node, by its name, or None where names do not tell.

    Nodes without a name of their own get one, here and in a copy of the file that is run. A model
    with external data is not copied.

    Args:
        path: The model's file.
        model: The model in it, whose nodes get names.
        feed: The inputs of the run.

    Raises:
        Exception: whatever ONNX Runtime raises where it cannot run the model.
    """
    names = [node.name for node in all_nodes(model.graph)]
    if "" in names or len(set(names)) < len(names):
        if any(map(external_data_helper.uses_external_data, all_weights(model.graph))):
            return None
        for number, node in enumerate(all_nodes(model.graph)):
            node.name = f"node_{number}"
        path = Path.cwd() / "named.onnx"
        onnx.save(model, path)
    session = open_session(path, _PLAIN, trace=Path.cwd() / "shapes")
    session.run(None, dict(feed))
    file = Path(session.end_profiling())
    events = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    file.unlink()
    executions: dict[str, Execution] = {}
    for event in node_events(events):
        name = node_name(event)
        before = executions.get(name)
        executions[name] = Execution(
            inputs=_extents(event["args"]["input_type_shape"]),
            outputs=_extents(event["args"]["output_type_shape"]),
            times=1 if before is None else before.times + 1,
        )
    return executions


def _extents(arguments: list[Mapping[str, Any]]) -> tuple[Extent, ...]:
    """Returns the extents of arguments such as ``{"float": [1, 3]}``."""
    return tuple(
        Extent(shape=tuple(shape), item_bits=_BITS.get(kind, 0))
        for argument in arguments
        for kind, shape in argument.items()
    )
