"""Queries in groups: each group is multiplied with the one matrix that its heads share."""

from typing import Any

import numpy as np
import onnx
import pytest
from algebra_models import assert_same_answers, inputs_of, operators, simplified
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

_SPELLINGS = ("constant", "computed", "chosen", "tile", "reshape")


class _Attention:
    """Attention of grouped queries in the spelling of some exporter.

    Args:
        spelling: How keys and values are repeated.
        sizes: Batch, shared heads, groups, words that ask, words of the past, channels.
        is_open: Whether batch, words and past are open.
    """

    def __init__(self, spelling: str, sizes: tuple[int, ...], *, is_open: bool) -> None:
        self.sizes = sizes
        self._spelling, self._is_open = spelling, is_open
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}

    def add(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Returns the output of a new node; what is no name becomes a constant."""
        names = []
        for item in inputs:
            name = item if isinstance(item, str) else f"c{len(self.weights)}"
            if not isinstance(item, str):
                self.weights[name] = np.asarray(item)
            names.append(name)
        output = output or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, names, [output], **attributes))
        return output

    def repeated(self, x: str, grown: int = 0) -> str:
        """Returns keys or values for all heads; one word becomes `grown` of them, if given."""
        batch, heads, groups, asked, past, channels = self.sizes
        words = grown or asked + past
        first: Any = np.array([batch])
        third: Any = np.array([words])
        if self._is_open and not grown and self._spelling in ("computed", "chosen"):
            shape = self.add("Shape", x)
            first, third = (self.add("Gather", shape, np.array([i]), axis=0) for i in (0, 2))
        if self._spelling == "sum":
            first = self.add("Gather", self.add("Shape", x), np.array([0]), axis=0)
            parts = (self.add("Shape", f"{p}{x[-1]}") for p in ("past_", ""))
            third = self.add("Add", *(self.add("Gather", s, np.array([2]), axis=0) for s in parts))
        last = np.array([channels])
        counts = [first, np.array([heads]), np.array([groups]), third, last]
        sizes: Any = np.array([1, 1, groups, words if grown else 1, 1])
        if self._spelling in ("computed", "chosen", "sum"):
            sizes = self.add("Concat", *counts, axis=0)
        if self._spelling == "chosen":
            minus = self.add("Mul", self.add("ConstantOfShape", np.array([5]), value=_ONE), [-1])
            ones = self.add("ConstantOfShape", np.array([5]), value=_ONE)
            sizes = self.add("Where", self.add("Equal", sizes, minus), ones, sizes)
        if self._spelling == "reshape":
            own = 1 if grown else words
            x = self.add("Reshape", x, np.array([batch, heads, 1, own, channels]))
        else:
            x = self.add("Unsqueeze", x, np.array([2]))
        x = self.add("Tile" if self._spelling == "tile" else "Expand", x, sizes)
        merged = [first, np.array([heads * groups]), third, last]
        return self.add("Reshape", x, self.add("Concat", *merged, axis=0))

    def model(self, *, scales_keys: bool, mask: bool, grown: int = 0) -> onnx.ModelProto:
        """Returns attention over keys and values behind those of the past."""
        batch, heads, groups, asked, past, channels = self.sizes
        scale = np.float32(channels**-0.5)
        cached = {
            x: self.add("Concat", *([f"past_{x}"] if past else []), x, output=f"all_{x}", axis=2)
            for x in "kv"
        }
        keys = self.add("Transpose", self.repeated(cached["k"], grown), perm=[0, 1, 3, 2])
        if scales_keys:
            keys = self.add("Mul", keys, scale)
        scores = self.add("MatMul", "q", keys)
        scores = scores if scales_keys else self.add("Mul", scores, scale)
        scores = self.add("Add", scores, "mask") if mask else scores
        shares = self.add("Softmax", scores, axis=-1)
        self.add("MatMul", shares, self.repeated(cached["v"], grown), output="y")
        total = "p + s" if self._spelling == "sum" else "t"
        b, s, p, t = ("b", "s", "p", total) if self._is_open else (batch, asked, past, asked + past)
        shapes: dict[str, list[int | str]] = {
            "q": [b, heads * groups, s, channels],
            **{f"past_{x}": [b, heads, p, channels] for x in "kv" if past},
            **{x: [b, heads, s, channels] for x in "kv"},
            "mask": [b, 1, s, t],
        }
        outputs = {"y": None, **{f"all_{x}": [b, heads, t, channels] for x in "kv"}}
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, v) for n, v in shapes.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, v) for n, v in outputs.items()],
            [numpy_helper.from_array(values, name) for name, values in self.weights.items()],
        )
        opsets = [helper.make_opsetid("", 17)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def feeds(self, before: onnx.ModelProto, seed: int) -> dict[str, Any]:
        """Returns inputs of these sizes, with a mask that hides words and is the lowest float."""
        batch, _, _, asked, past, _ = self.sizes
        both = asked + past
        actual = {"b": batch, "s": asked, "p": past, "t": both, "p + s": both}
        closed = onnx.ModelProto()
        closed.CopyFrom(before)
        for item in closed.graph.input:
            for dim in item.type.tensor_type.shape.dim:
                dim.dim_value = actual.get(dim.dim_param, dim.dim_value)
        feeds = inputs_of(closed, seed)
        hidden = np.random.default_rng(seed).random(feeds["mask"].shape) < 0.4
        feeds["mask"] = np.where(hidden, np.finfo(np.float32).min, 0).astype(np.float32)
        return feeds


_ONE = numpy_helper.from_array(np.array([1], np.int64))


@given(
    spelling=st.sampled_from(_SPELLINGS),
    sizes=st.tuples(*(st.integers(1, n) for n in (2, 3, 4, 3, 4, 5))),
    is_open=st.booleans(),
    scales_keys=st.booleans(),
    mask=st.booleans(),
    strange=st.sampled_from([0.0, np.nan, np.inf, -np.inf]),
    seed=st.integers(0, 9),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_grouped_queries_keep_their_answers(
    spelling: str,
    sizes: tuple[int, ...],
    is_open: bool,
    scales_keys: bool,
    mask: bool,
    strange: float,
    seed: int,
) -> None:
    """All spellings, masks of whole rows, past words, values that are not finite."""
    is_open = is_open and spelling in ("computed", "chosen")
    attention = _Attention(spelling, sizes, is_open=is_open)
    before = attention.model(scales_keys=scales_keys, mask=mask)
    after = simplified(before)
    if sizes[2] > 1:
        assert not {"Expand", "Tile", "Where"} & set(operators(after))
    feeds = attention.feeds(before, seed)
    for name in "qkv":
        values = feeds[name].reshape(-1)
        values[seed % values.size] += strange
    assert_same_answers(before, after, feeds, 3e-6)


@pytest.mark.parametrize("spelling", ["constant", "tile", "reshape"])
def test_a_word_that_is_repeated_too_stays(spelling: str) -> None:
    """One key is 3 after it was repeated: the mask, and the sum of the shares, are of 3 words."""
    attention = _Attention(spelling, (1, 2, 3, 1, 0, 4), is_open=False)
    before = attention.model(scales_keys=False, mask=False, grown=3)
    after = simplified(before)
    assert {"Expand", "Tile"} & set(operators(after))
    assert_same_answers(before, after, attention.feeds(before, 0), 0)


def test_heads_in_another_order_stay() -> None:
    """Heads repeated as 0 1 0 1 are no groups of neighbours."""
    attention = _Attention("tile", (1, 2, 3, 2, 1, 4), is_open=False)
    before = attention.model(scales_keys=False, mask=True)
    for node in before.graph.node:
        if node.op_type == "Unsqueeze":
            axes = next(item for item in before.graph.initializer if item.name == node.input[1])
            axes.CopyFrom(numpy_helper.from_array(np.array([1]), axes.name))
        elif node.op_type == "Tile":
            counts = next(item for item in before.graph.initializer if item.name == node.input[1])
            counts.CopyFrom(numpy_helper.from_array(np.array([1, 3, 1, 1, 1]), counts.name))
    after = simplified(before)
    assert "Tile" in operators(after)
    assert_same_answers(before, after, attention.feeds(before, 0), 0)


def test_a_size_that_may_differ_stays() -> None:
    """An open number of words that the shape takes from elsewhere proves nothing."""
    attention = _Attention("computed", (2, 2, 3, 2, 1, 4), is_open=True)
    before = attention.model(scales_keys=False, mask=False)
    for node in before.graph.node:
        if node.op_type == "Shape":
            node.input[0] = "q"
    assert operators(simplified(before)).count("Expand") == 2


@pytest.mark.parametrize(("name", "stays"), [("p + s", False), ("p + r", True), ("?", True)])
def test_a_sum_of_sizes_is_known_by_the_name_that_the_model_gives_it(
    name: str, *, stays: bool
) -> None:
    """PyTorch's newer exporter names it; a name that is not made of the inputs' proves nothing."""
    attention = _Attention("sum", (2, 2, 3, 2, 1, 4), is_open=True)
    before = attention.model(scales_keys=False, mask=True)
    for node in before.graph.node:
        if node.op_type == "Reshape":
            shape: list[int | str] = ["b", 6, name, 4]
            before.graph.value_info.append(
                helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, shape)
            )
    after = simplified(before)
    assert ("Expand" in operators(after)) == stays
    assert_same_answers(before, after, attention.feeds(before, 0), 3e-6)
