"""Applies the rules to all graphs of a model, until none of them changes anything."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import onnx
from onnx import helper

from autotune.facts.graphs import ONNX_DOMAINS, RUNTIME_DOMAIN, all_graphs, all_nodes, operator_of
from autotune.facts.usual_sizes import is_name
from autotune.facts.weights import element_count, to_initializers
from autotune.graph.algebra.rules import CONSTANTS, RULES, SHAPES, Rules
from autotune.graph.algebra.scope import SMALL, Scope, TensorFacts

_OLDEST_OPSET = 7
_OPEN_BRANCHES_OPSET = 11
_WORDS = re.compile(r"[A-Za-z_]\w*")
# ONNX Runtime's operators whose output is of the type and shape of their first input.
_ACTIVATIONS = frozenset(
    f"{RUNTIME_DOMAIN}.{name}" for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")
)


def simplify(model: onnx.ModelProto) -> Counter[str]:
    """Applies the rules to a model until none of them changes anything.

    Every rule removes nodes, or puts a pattern into a form that no rule changes, so this ends.
    A model whose operators are older than opset 7 stays as it is.

    Args:
        model: The model with its weights in memory; changed in place.

    Returns:
        How often each rule was applied, by its name.
    """
    if _opset(model) < _OLDEST_OPSET or _has_strict_branches(model):
        return Counter()
    # a shape that is known makes others known that follow: this takes many rounds
    fired = _applied(model, SHAPES, RULES)
    domains = {item.domain for item in model.opset_import}
    if RUNTIME_DOMAIN not in domains and _uses_runtime_domain(model):
        model.opset_import.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))
    return fired


def fold_constants(model: onnx.ModelProto) -> None:
    """Computes the nodes of a model that take constants alone; changed in place.

    What nothing takes any more is dropped.

    Args:
        model: The model with its weights in memory.
    """
    _applied(model, CONSTANTS)


def _applied(model: onnx.ModelProto, *stages: Rules) -> Counter[str]:
    """Applies rules, stage by stage, until nothing changes; returns how often each was applied."""
    fired: Counter[str] = Counter()
    to_initializers(model)
    settled: set[str] = set()
    for stage in stages:
        while True:
            before = fired.total()
            # inner graphs first: writing the outer one copies its nodes
            for scope in reversed(_scopes(model, settled)):
                _apply(scope, stage, fired)
                scope.write()
            if fired.total() == before:
                break
    return fired


def _has_strict_branches(model: onnx.ModelProto) -> bool:
    """Returns whether known shapes may make the model invalid.

    Before opset 11 the branches of an If must have one shape, as far as it is known.
    """
    nodes = all_nodes(model.graph)
    return _opset(model) < _OPEN_BRANCHES_OPSET and any(operator_of(n) == "If" for n in nodes)


def _uses_runtime_domain(model: onnx.ModelProto) -> bool:
    return any(node.domain == RUNTIME_DOMAIN for node in all_nodes(model.graph))


def _apply(scope: Scope, rules: Rules, fired: Counter[str]) -> None:
    """Applies each rule to each node of one graph, from the last one to the first."""
    for rule, operators in rules.items():
        starts = set(operators.split())
        for node in reversed(scope.nodes[:]):
            if (
                operator_of(node) in starts
                and node.output[0] not in scope.settled
                and scope.has(node)
                and rule(scope, node)
            ):
                fired[rule.__name__] += 1


def _opset(model: onnx.ModelProto) -> int:
    versions = [item.version for item in model.opset_import if item.domain in ONNX_DOMAINS]
    return max(versions, default=1)


class _Pair(NamedTuple):
    """A graph, the same graph with what shape inference found, and the scope around it."""

    graph: onnx.GraphProto
    inferred: onnx.GraphProto
    outer: Scope | None


def _scopes(model: onnx.ModelProto, settled: set[str]) -> list[Scope]:
    """Returns the graphs of a model, outer ones before those inside their nodes."""
    names = {name for node in all_nodes(model.graph) for name in (*node.input, *node.output)}
    names |= {node.name for node in all_nodes(model.graph)}
    for graph in all_graphs(model.graph):
        names |= {item.name for item in (*graph.initializer, *graph.input, *graph.output)}
    inputs = [dim for item in model.graph.input for dim in item.type.tensor_type.shape.dim]
    open_sizes = {dim.dim_param for dim in inputs if dim.dim_param}
    pending = [_Pair(model.graph, _inferred(model).graph, None)]
    scopes: list[Scope] = []
    while pending:
        graph, inferred, outer = pending.pop()
        scope = Scope(
            graph,
            opset=_opset(model),
            facts={
                **(outer.facts if outer else {}),
                **_named(_facts(inferred), graph, open_sizes),
            },
            names=names,
            outer=outer,
            settled=settled,
        )
        scopes.append(scope)
        bodies = zip(_bodies(graph), _bodies(inferred), strict=True)
        pending += [_Pair(body, typed, scope) for body, typed in bodies]
    return scopes


def _bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yields the graphs directly inside the nodes of a graph."""
    for node in graph.node:
        for item in node.attribute:
            if item.HasField("g"):
                yield item.g
            yield from item.graphs


def _facts(graph: onnx.GraphProto) -> dict[str, TensorFacts]:
    """Returns the known types and sizes of a graph's tensors, by name."""
    facts = {}
    for item in (*graph.input, *graph.output, *graph.value_info):
        tensor = item.type.tensor_type
        sizes = None
        if tensor.HasField("shape"):
            sizes = tuple(
                d.dim_value
                if d.HasField("dim_value")
                else (d.dim_param if is_name(d.dim_param) else None)
                for d in tensor.shape.dim
            )
        facts[item.name] = TensorFacts(tensor.elem_type, sizes)
    return facts


def _named(
    facts: dict[str, TensorFacts], graph: onnx.GraphProto, open_sizes: set[str]
) -> dict[str, TensorFacts]:
    """Returns facts with the names that the model itself gives to sizes that are not inferred.

    PyTorch's exporter names sums of sizes, which no inference does. A name counts where it is made
    of those of the inputs' sizes; there too, equal names stand for equal sizes. Numbers are not
    taken, because tools that fix a size may leave an old one there.
    """
    for item in graph.value_info:
        inferred = facts.get(item.name)
        given = item.type.tensor_type.shape.dim
        if inferred is None or inferred.sizes is None or len(inferred.sizes) != len(given):
            continue
        sizes = tuple(
            dim.dim_param
            if _is_unknown(size)
            and _WORDS.findall(dim.dim_param)
            and open_sizes.issuperset(_WORDS.findall(dim.dim_param))
            else size
            for size, dim in zip(inferred.sizes, given, strict=True)
        )
        facts[item.name] = inferred._replace(sizes=sizes)
    return facts


def _is_unknown(size: int | str | None) -> bool:
    return size is None or (isinstance(size, str) and size.startswith("unk__"))


def _for_inference(node: onnx.NodeProto) -> onnx.NodeProto:
    """Returns a node that shape inference knows, with the output of the same type and shape."""
    if operator_of(node) in _ACTIVATIONS:
        return helper.make_node("Identity", node.input[:1], node.output[:1])
    return node


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    """Returns a copy of the model with the types and shapes of its tensors.

    The values of large weights are left out: inferring shapes needs none of them.
    """
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.opset_import.append(helper.make_opsetid(RUNTIME_DOMAIN, 1))
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(map(_for_inference, model.graph.node))
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    inputs = {item.name for item in model.graph.input}
    for item in model.graph.initializer:
        if item.name in inputs:
            continue  # its values are a default, which a caller may replace
        if element_count(item) <= SMALL:
            graph.initializer.append(item)
        else:
            graph.input.append(helper.make_tensor_value_info(item.name, item.data_type, item.dims))
    try:
        return onnx.shape_inference.infer_shapes(copy, data_prop=True)
    except Exception:  # noqa: BLE001  # ONNX Runtime runs models that onnx cannot infer
        return copy
