"""The child of :mod:`autotune.inspection.profile`: profiles the optimised graph, node by node.

Every node of the graph gets a name of its own first, so that the profiler's times can be told
apart. The blocked layout of convolutions is left to the session that runs the graph.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import onnx
from onnx import numpy_helper

from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, load_samples
from autotune.facts.graphs import all_graphs, operator_name, operator_of
from autotune.graph.algebra.model import simplify
from autotune.graph.model_file import save, write_optimised
from autotune.inspection.profile import MOST_PATTERNS, Elementwise, Pattern
from autotune.inspection.trace import node_events, node_name
from autotune.process.child_end import Message, serve

_ELEMENTWISE = frozenset(
    """
    Abs Add And com.microsoft.BiasGelu Cast Ceil Clip Cos Div Elu Equal Erf Exp
    com.microsoft.FastGelu Floor Gelu com.microsoft.Gelu Greater
    GreaterOrEqual HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul
    Neg Not Or PRelu Pow com.microsoft.QuickGelu Reciprocal ReduceL1 ReduceL2
    ReduceLogSumExp ReduceMax ReduceMean
    ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Round Selu Sigmoid Sign Sin Softplus
    Softsign Sqrt Sub Sum Swish Tanh ThresholdedRelu Where
    """.split()
)
_COMMUTATIVE = frozenset({"Add", "And", "Equal", "Max", "Mean", "Min", "Mul", "Or", "Sum"})
_MOST_NODES = 6
_RUNS = 8
_LETTERS = "xyzuvw"
# A share of the time below this is nobody's next rule.
_LEAST_SHARE = 0.002


def patterns(message: Message) -> Elementwise:
    """Returns the patterns of the file ``model``, run on the samples in the file ``samples``."""
    source, file = Path(message["model"]), Path.cwd() / "optimised.onnx"
    write_optimised(source, file, "ORT_ENABLE_EXTENDED")
    model = onnx.load(file)
    graphs = list(all_graphs(model.graph))
    for i, node in enumerate(node for graph in graphs for node in graph.node):
        node.name = f"node{i}"
    named = Path.cwd() / "named.onnx"
    save(model, named)
    times_ms = _times_ms(named, load_samples(Path(message["samples"])))
    pieces = [piece for graph in graphs for piece in _pieces(graph)]
    # tensors that the optimisation leaves keep their names; what it makes has new ones
    return _summary(pieces, times_ms, _changed(onnx.load(source), model))


def _times_ms(model: Path, feeds: Sequence[Feed]) -> dict[str, float]:
    """Returns the time of each node in a run, by its name; the first run is left out."""
    session = open_session(model, SessionConfig(), trace=Path.cwd() / "trace")
    for i in range(_RUNS + 1):
        session.run(None, dict(feeds[i % len(feeds)]))
    events = json.loads(Path(session.end_profiling()).read_text(errors="replace"))
    second = sorted(float(e["ts"]) for e in events if e["name"] == "model_run")[1]
    durations: dict[str, list[float]] = defaultdict(list)
    for event in node_events(events):
        if event["ts"] >= second:
            durations[node_name(event)].append(float(event["dur"]))
    return {
        name: median(each) * len(each) / _RUNS / 1e3
        for name, each in durations.items()
        if name.startswith("node") or name.endswith("_nchwc")
    }


def _changed(*models: onnx.ModelProto) -> dict[str, set[str]]:
    """Returns the rules of algebra that change the node which writes a tensor, by the tensor."""
    rules: dict[str, set[str]] = defaultdict(set)
    for model in models:
        simplify(model, on_change=lambda rule, tensor: rules[tensor].add(rule))
    return rules


class _Piece:
    """Connected elementwise nodes of one graph, the last one first."""

    def __init__(self, graph: onnx.GraphProto, nodes: Sequence[onnx.NodeProto]) -> None:
        self.nodes = nodes
        self._producers = {name: node for node in nodes for name in node.output}
        taken = {name for node in nodes for name in node.input}
        self._constants = {i.name: i for i in graph.initializer if i.name in taken}
        self._letters: dict[str, str] = {}

    def expression(self) -> str:
        """Returns the form of the nodes."""
        return self._text(self.nodes[0].output[0], named=True)

    def _text(self, name: str, *, named: bool) -> str:
        node = self._producers.get(name)
        if node is not None:
            names = [item for item in node.input if item]
            if operator_of(node) in _COMMUTATIVE:
                names.sort(
                    key=lambda item: (item in self._constants, self._text(item, named=False))
                )
            return f"{operator_name(node)}({', '.join(self._text(n, named=named) for n in names)})"
        constant = self._constants.get(name)
        if constant is None:
            return self._letter(name) if named else "~"
        values = numpy_helper.to_array(constant)
        return f"{values.reshape(-1)[0]:.4g}" if values.size == 1 else "constant"

    def _letter(self, name: str) -> str:
        count = len(self._letters)
        letter = _LETTERS[count] if count < len(_LETTERS) else f"x{count}"
        return self._letters.setdefault(name, letter)


def _pieces(graph: onnx.GraphProto) -> Iterator[_Piece]:
    """Gives the elementwise nodes of a graph in connected pieces, cut from the last node on."""
    producers = {node.output[0]: node for node in graph.node if operator_of(node) in _ELEMENTWISE}
    done: set[str] = set()
    for last in reversed(graph.node):
        if operator_of(last) not in _ELEMENTWISE or last.name in done:
            continue
        done.add(last.name)
        nodes = [last]
        for node in nodes:  # grows while it is gone through
            for name in node.input:
                before = producers.get(name)
                if before is not None and before.name not in done and len(nodes) < _MOST_NODES:
                    done.add(before.name)
                    nodes.append(before)
        yield _Piece(graph, nodes)


def _summary(
    pieces: Sequence[_Piece], times_ms: Mapping[str, float], changed: Mapping[str, set[str]]
) -> Elementwise:
    """Returns the pieces by their form, the longest time first."""
    total_ms = sum(times_ms.values()) or 1.0
    forms: dict[str, list[_Piece]] = defaultdict(list)
    for piece in pieces:
        forms[piece.expression()].append(piece)
    found = []
    for expression, same in forms.items():
        nodes = [node for piece in same for node in piece.nodes]
        time_ms = sum(times_ms.get(node.name, 0.0) for node in nodes)
        rules = {rule for node in nodes for rule in changed.get(node.output[0], ())}
        found.append(
            Pattern(
                expression=expression,
                times=len(same),
                nodes=len(same[0].nodes),
                time_ms=time_ms,
                share=time_ms / total_ms,
                rules=tuple(sorted(rules)),
            )
        )
    found.sort(key=lambda pattern: -pattern.time_ms)
    return Elementwise(
        share=sum(pattern.share for pattern in found),
        patterns=tuple(p for p in found[:MOST_PATTERNS] if p.share >= _LEAST_SHARE),
    )


if __name__ == "__main__":
    serve({"patterns": patterns})
