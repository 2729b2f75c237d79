"""Static int8 by NNCF: every operator that a compiler runs in eight bits, its biases corrected."""

from collections.abc import Sequence
from pathlib import Path

import onnx

from autotune.facts.feeds import Feed
from autotune.facts.graphs import all_nodes, operator_of
from autotune.graph.entries import StepRefusedError
from autotune.graph.float_model import FloatModel
from autotune.graph.int8 import unequal_joins
from autotune.graph.intermediates import Intermediates
from autotune.graph.ready_model import give_names, original_names
from autotune.graph.silence import silent_tools


def quantise(
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    *,
    shared: Intermediates | None = None,
) -> None:
    """Writes the model with activations and weights in eight bits (QDQ), as NNCF does.

    Raises:
        StepRefusedError: NNCF quantises none of its nodes, or the model cannot be made ready.
    """
    import nncf

    ready = FloatModel.ready(source, samples, shared or Intermediates())
    model = ready.load()
    types = [operator_of(node) for node in all_nodes(model.graph)]
    ranges = ready.ranges("minmax", target.with_name("calibrated.onnx"))
    apart = unequal_joins(model, ranges)
    # attention needs smoothing and leaves more in float
    is_transformer = types.count("MatMul") > types.count("Conv")
    with silent_tools():
        quantised = nncf.quantize(
            model,
            nncf.Dataset([dict(feed) for feed in ready.samples]),
            subset_size=len(samples),
            model_type=nncf.ModelType.TRANSFORMER if is_transformer else None,
            ignored_scope=nncf.IgnoredScope(names=apart) if apart else None,
        )
    if not any(operator_of(node) == "QuantizeLinear" for node in all_nodes(quantised.graph)):
        raise StepRefusedError("NNCF quantises none of its nodes")
    onnx.save(quantised, target)
    give_names(target, original_names(model))
