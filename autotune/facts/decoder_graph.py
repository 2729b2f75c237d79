"""Which inputs of a graph come back as outputs: caches and recurrent states, by any names.

A value carries an input where it holds the input's numbers: the input with new ones appended, or
the state that an operator hands on. An output that carries one input is its next value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx

from autotune.deploy.decoder import Decoder, Port, decoder_of, fits, pairs_by_name
from autotune.facts.graphs import operator_of
from autotune.facts.model_facts import in_brackets

# Operators that hand a state on: (input, output) by number, and the axis along which it grows.
_HANDED_ON: Mapping[str, tuple[tuple[tuple[int, int], ...], int | None]] = {
    "com.microsoft.GroupQueryAttention": (((3, 1), (4, 2)), 2),
    "com.microsoft.MultiHeadAttention": (((6, 1), (7, 2)), 2),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (((5, 1), (6, 2)), 2),
    # the operator of ONNX takes both caches, that of ONNX Runtime one tensor for both
    "Attention": (((4, 1), (5, 2)), 2),
    "com.microsoft.Attention": (((4, 1),), 3),
    "LSTM": (((5, 1), (6, 2)), None),
    "GRU": (((5, 1),), None),
    "RNN": (((5, 1),), None),
    "com.microsoft.LinearAttention": (((3, 1),), None),
    "com.microsoft.CausalConvWithState": (((3, 1),), None),
}
# Their first input goes on with its numbers; where axes move, the one along which it grows is lost.
_KEEP = frozenset({"Identity", "Cast", "Dropout"})
_MOVE = frozenset(
    """
    Reshape Transpose Squeeze Unsqueeze Slice Split Gather Flatten Expand
    ScatterND ScatterElements Scatter TensorScatter
    """.split()
)

_Carried = dict[str, int | None]
"""The inputs that a value carries, each with the axis along which it grew, or None."""


@dataclass
class _Reach:
    """The values of one graph and those around it, and the inputs that they come from.

    Attributes:
        carried: By value, the inputs that it carries.
        computed: By value, all inputs that it depends on.
    """

    carried: dict[str, _Carried] = field(default_factory=dict)
    computed: dict[str, set[str]] = field(default_factory=dict)

    def inner(self) -> "_Reach":
        return _Reach(dict(self.carried), dict(self.computed))


def decoder_in(
    graph: onnx.GraphProto,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    bounds: Mapping[str, int],
    given: Mapping[str, str],
) -> Decoder | None:
    """Returns how the model of a graph generates; None where no output is fed back.

    Args:
        inputs: The inputs that must be fed.
        bounds: How many rows the tables have that inputs index.
        given: Pairs that the user names; where there are some, no others are looked for.

    Raises:
        ValueError: a pair of the user's does not fit.
    """
    _check(given, inputs, outputs)
    reach = _Reach()
    for port in inputs:
        reach.carried[port.name] = {port.name: None}
        reach.computed[port.name] = {port.name}
    _walk(graph, reach)
    pairs = dict(given) or _pairs(inputs, outputs, reach)
    ranks = {port.name: len(port.shape) for port in inputs}
    axes = {}
    for past, present in pairs.items():
        axis = reach.carried.get(present, {}).get(past)
        if axis is not None:
            axes[past] = axis % ranks[past]
    decoder = decoder_of(inputs, outputs, pairs, axes=axes, bounds=bounds)
    if decoder is None or decoder.tokens is None:
        return decoder
    crosses = [
        past
        for past, present in pairs.items()
        if decoder.tokens not in reach.computed.get(present, {decoder.tokens})
    ]
    return decoder_of(inputs, outputs, pairs, axes=axes, crosses=crosses, bounds=bounds)


def _check(given: Mapping[str, str], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    ins, outs = ({port.name: port for port in ports} for ports in (inputs, outputs))
    for past, present in given.items():
        if past not in ins:
            raise ValueError(f"pair={past}={present}: it has no input '{past}'")
        if present not in outs:
            raise ValueError(f"pair={past}={present}: it has no output '{present}'")
        if not fits(ins[past], outs[present]):
            a, b = ins[past], outs[present]
            raise ValueError(
                f"pair={past}={present} does not fit: the input is {a.dtype} "
                f"{in_brackets(a.shape)}, and the output {b.dtype} {in_brackets(b.shape)}"
            )


def _pairs(inputs: Sequence[Port], outputs: Sequence[Port], reach: _Reach) -> dict[str, str]:
    """Returns the pairs that the graph shows, and by name those among the others that fit."""
    ins = {
        port.name: port for port in inputs if port.dtype not in ("int64", "int32", "bool", "str")
    }
    pairs: dict[str, str] = {}
    for output in outputs:
        carried = [name for name in reach.carried.get(output.name, {}) if name in ins]
        fitting = [n for n in carried if fits(ins[n], output) and n not in pairs]
        # what comes out as it went in is no state, but a cross-attention cache is paired by name
        is_same = output.name in ins
        if len(fitting) == 1 and not is_same:
            pairs[fitting[0]] = output.name
    left = [port for port in ins.values() if port.name not in pairs]
    free = [port for port in outputs if port.name not in pairs.values()]
    pairs |= {
        past: present
        for past, present in pairs_by_name(left, free).items()
        if past in reach.computed.get(present, ()) or _is_cache(past)
    }
    # in the order of the inputs, so that what is read first comes first
    return {port.name: pairs[port.name] for port in inputs if port.name in pairs}


def _is_cache(name: str) -> bool:
    """Returns whether a name says so: a cross-attention cache's output need not depend on it."""
    return "past" in name or "cache" in name


def _walk(graph: onnx.GraphProto, reach: _Reach) -> None:
    """Adds every value of a graph."""
    for node in graph.node:
        inner = [item.g for item in node.attribute if item.type == onnx.AttributeProto.GRAPH]
        depends: set[str] = set()
        for name in node.input:
            depends |= reach.computed.get(name, set())
        if inner:
            _walk_inner(node, inner, reach, depends)
            continue
        for name in node.output:
            reach.computed[name] = depends
        for number, carried in _carried(node, reach).items():
            if carried and number < len(node.output):
                reach.carried[node.output[number]] = carried


def _walk_inner(
    node: onnx.NodeProto, graphs: Sequence[onnx.GraphProto], reach: _Reach, depends: set[str]
) -> None:
    """Adds the outputs of a node with branches, or with a body.

    The state of a Scan, and what a Loop carries on, come first among inputs and outputs.
    """
    first = {"Loop": 2, "Scan": 0}.get(operator_of(node))
    for graph in graphs:
        within = reach.inner()
        if first is not None:
            for item, name in zip(graph.input[first:], node.input[first:], strict=False):
                within.carried[item.name] = dict(reach.carried.get(name, {}))
                within.computed[item.name] = set(reach.computed.get(name, set()))
        _walk(graph, within)
        skipped = 1 if operator_of(node) == "Loop" else 0  # the condition
        for item, name in zip(graph.output[skipped:], node.output, strict=False):
            reach.carried.setdefault(name, {}).update(within.carried.get(item.name, {}))
            known = reach.computed.setdefault(name, set(depends))
            reach.computed[name] = known | within.computed.get(item.name, set())


def _carried(node: onnx.NodeProto, reach: _Reach) -> dict[int, _Carried]:
    """Returns what each output of a node carries, by its number."""
    kind, axis = operator_of(node), None
    of = [reach.carried.get(name, {}) for name in node.input]
    if kind in _KEEP:
        return {0: of[0]}
    if kind in _MOVE:
        moved: _Carried = dict.fromkeys(of[0])
        if kind == "Transpose":
            moved = {name: _moved(node, grown) for name, grown in of[0].items()}
        return dict.fromkeys(range(len(node.output)), moved)
    if kind == "Concat":
        axis = next(item.i for item in node.attribute if item.name == "axis")
        grows = [carried for carried in of if carried]
        # the parts of one state come together again
        together = len(grows) == len(of) and len({name for c in grows for name in c}) == 1
        return {0: {name: None if together else axis for c in grows for name in c}}
    if kind == "Where":
        return {0: {name: grown for carried in of for name, grown in carried.items()}}
    if kind not in _HANDED_ON:
        return {}
    numbers, axis = _HANDED_ON[kind]
    return {out: dict.fromkeys(of[place], axis) for place, out in numbers if place < len(of)}


def _moved(node: onnx.NodeProto, axis: int | None) -> int | None:
    """Returns where a Transpose puts an axis."""
    order = next((list(item.ints) for item in node.attribute if item.name == "perm"), None)
    return None if axis is None or order is None else order.index(axis % len(order))
