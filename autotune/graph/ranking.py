"""Which nodes are best left in float: by their own outputs, or by those of the model."""

from collections.abc import Sequence
from functools import partial

import onnx

from autotune.facts.feeds import Feed
from autotune.graph import output_sensitivity, sensitivity
from autotune.graph.intermediates import Intermediates
from autotune.graph.precision_options import BY_OUTPUTS


def ranked(
    name: str,
    shared: Intermediates,
    model: onnx.ModelProto,
    samples: Sequence[Feed],
    *,
    by: str,
    types: Sequence[str] = sensitivity.QUANTISABLE,
) -> list[str]:
    """Returns the names of the nodes that can be quantised, those best left in float first.

    Args:
        name: Of the model among what is shared.
        shared: Where rankings are kept, each made once.
        model: The float model, its nodes named; weights in memory.
        samples: Calibration samples.
        by: A value of ``ranking``.
        types: Types of nodes that are ranked.
    """

    def by_nodes() -> list[str]:
        order: list[str] = shared.record(
            f"{name}-ranking", partial(sensitivity.rank, model, samples, types)
        )
        return order

    if by != BY_OUTPUTS:
        return by_nodes()
    order: list[str] = shared.record(
        f"{name}-ranking_{by}",
        partial(output_sensitivity.rank, model, samples, types, by_nodes),
    )
    return order
