"""What the inspection of a model reports: a record that both ends of the channel import."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.deploy.decoder import Decoder
from autotune.deploy.records import BareName, Text, Whole

NO_MODEL = "it is no ONNX model"
"""How the reason begins where a file is no model at all."""

Dimension = Whole | Text | None
"""A size, a symbolic name, or None where the model says nothing."""


def in_brackets(shape: Sequence[Dimension]) -> str:
    """Returns a shape in words: ``[?, 3, height]``."""
    return "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A dimension of an input."""

    input: Text
    number: Whole


@dataclass(frozen=True, kw_only=True)
class Span:
    """The range of the values of an input."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input of a model, and what the graph tells of it.

    Attributes:
        dtype: Its element type as numpy spells it; ``str`` for strings.
        shape: Its dimensions; empty for a scalar.
        is_ranked: Whether the model says how many dimensions there are; else they are a guess.
        index_bound: The number of rows of the constant table that its values index; None where they
            index none.
        index_of: The dimension of an input that its values index; None where they index none.
        indexed: Which of its own dimensions the values of other inputs index.
        walked: Which of its own dimensions a recurrent node goes through, step by step.
        length_of: The dimension of an input of which a recurrent node takes as many steps as its
            values say; None where none does.
        known: For each dimension the size that weights demand; None where they demand none. Empty
            if none is known.
        span: The range that the first constants of the graph tell; None where they tell none.
        categories: The texts that it may hold; empty where the graph names none.
    """

    name: Text
    dtype: Text
    shape: tuple[Dimension, ...]
    is_ranked: bool = True
    index_bound: Whole | None = None
    index_of: Axis | None = None
    indexed: tuple[Whole, ...] = ()
    walked: tuple[Whole, ...] = ()
    length_of: Axis | None = None
    known: tuple[Whole | None, ...] = ()
    span: Span | None = None
    categories: tuple[Text, ...] = ()

    @property
    def is_dynamic(self) -> bool:
        """Whether some dimension is left open."""
        return any(not isinstance(size, int) for size in self.shape)

    @property
    def is_mask(self) -> bool:
        """Whether its name says that it is a mask."""
        return "mask" in self.name.lower()

    def misfit(self, shape: Sequence[int]) -> str | None:
        """Returns why the input takes no array of the shape; None if it does."""
        if not self.is_ranked:
            return None
        if len(shape) != len(self.shape):
            return f"the model takes rank {len(self.shape)}: {in_brackets(self.shape)}"
        for given, wanted in zip(shape, self.shape, strict=True):
            if isinstance(wanted, int) and given != wanted:
                return f"the model takes {in_brackets(self.shape)}"
        return None


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The contents of a model file.

    Attributes:
        data_names: Names of its external data files, beside it.
        inputs: The inputs that must be fed.
        optional: The inputs with a default value, which a call may replace.
        weights_are_inputs: Whether all weights are such inputs, so that nobody means to feed them.
        operators: How many nodes there are of each type, subgraphs included, constants not.
        parameters: Number of elements of all weights, wherever they are.
        has_gelu: Whether there is a GELU, whole or in pieces.
        quantisable: How many nodes of each type have a constant float weight, in the main graph.
        quantisable_inside: The same in the branches and bodies of its nodes.
        embeddings: How many nodes take rows out of a large constant table of their own.
        branches: How many heavy nodes can run side by side, at least.
        breaking: ONNX Runtime's own optimisations with which it does not open, or is wrong.
        subnormals: Subnormal numbers among the weights, after ONNX Runtime's optimisation; None
            where its graph could not be read.
        decoder: Which outputs are inputs of the next step; None where none is.
    """

    data_names: tuple[BareName, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Text, ...]
    operators: Mapping[str, Whole]
    parameters: Whole
    has_conv: bool
    has_gelu: bool
    quantisable: Mapping[str, Whole]
    quantisable_inside: Mapping[str, Whole]
    branches: Whole
    subnormals: Whole | None
    embeddings: Whole = 0
    breaking: tuple[Text, ...] = ()
    decoder: Decoder | None = None
    optional: tuple[Tensor, ...] = ()
    weights_are_inputs: bool = False


@dataclass(frozen=True, kw_only=True)
class Breaking:
    """ONNX Runtime's own optimisations with which a model is wrong."""

    names: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class TriedRun:
    """What came of a run with generated inputs.

    Attributes:
        nan: Names of the outputs that hold NaN.
    """

    nan: tuple[Text, ...] = ()
