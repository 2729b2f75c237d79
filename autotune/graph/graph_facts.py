"""The file that a child makes and what it reports of it; both ends of the channel import them."""

from dataclasses import dataclass

from autotune.deploy.records import Text, Whole

FILE = "best.onnx"
"""Name of every prepared model: under it the winner is emitted, its data as ``best.onnx.data``."""


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """The contents of a prepared model.

    Attributes:
        operators: Nodes of its main graph, constants not.
        parameters: Elements of its weights, wherever they are.
        size_bytes: Size of all its files.
        graph_digest: Equal for models that ONNX Runtime optimises to the same graph; None where
            that is not known.
    """

    operators: Whole
    parameters: Whole
    size_bytes: Whole
    graph_digest: Text | None


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """The reply to ``rename_data``: the model is in the file that the message named."""
