"""The file that a child makes and what it reports of it; both ends of the channel import them."""

from dataclasses import dataclass

from autotune.deploy.records import Text

FILE = "best.onnx"
"""Name of every such file: the winner is written under it, its data as ``best.onnx.data``."""


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """Facts about a transformed model.

    Attributes:
        graph_digest: Equal for models that ONNX Runtime optimises to the same graph; None where
            that is not known.
    """

    graph_digest: Text | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a step was not applied.

    Attributes:
        step: The name of the step.
        of_model: Whether it refuses the model with all of its options.
    """

    message: Text
    step: Text
    of_model: bool


@dataclass(frozen=True, kw_only=True)
class Converted:
    """The reply to ``convert``: the facts of the file, or why there is none."""

    facts: GraphFacts | None = None
    refusal: Refusal | None = None


@dataclass(frozen=True, kw_only=True)
class Renamed:
    """The reply to ``rename_data``: the model is in the file that the message named."""


@dataclass(frozen=True, kw_only=True)
class ProcessorFacts:
    """What of a file another kind of processor may compute in another way.

    Attributes:
        overflows: Whether it has eight-bit products whose sums overflow on x86 without VNNI.
        exactness_reaches: Whether ``session.x64quantprecision`` makes all of them exact.
        has_blocks: Whether weights lie in the blocks (NCHWc) of the processor that wrote it.
        float16: Whether it computes with numbers of half precision.
    """

    overflows: bool
    exactness_reaches: bool
    has_blocks: bool
    float16: bool


@dataclass(frozen=True, kw_only=True)
class Optimizers:
    """The reply to ``firing``.

    Attributes:
        names: ONNX Runtime's names of the optimisations that change a model.
    """

    names: tuple[Text, ...]
