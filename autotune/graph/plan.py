"""Which steps make the model of a graph half, in which order, and where the result may run."""

from collections.abc import Collection, Mapping
from typing import NamedTuple

from autotune.deploy.options import Value
from autotune.graph.entries import Step
from autotune.graph.passes import PASSES
from autotune.graph.precision import PRECISIONS, Precision
from autotune.graph.precision_options import EMBEDDINGS
from autotune.graph.storage_form import STORAGE_FORMS

_EMBEDDINGS = {
    f"{value}_embeddings": step for value, step in EMBEDDINGS.items() if isinstance(step, Step)
}
STEPS: Mapping[str, Step] = {**PASSES, **PRECISIONS, **_EMBEDDINGS, **STORAGE_FORMS}
"""Every step by name."""


class PlannedStep(NamedTuple):
    """A step of a plan.

    Attributes:
        name: One of :data:`STEPS`.
        options: What it is called with, by name; a precision alone has some.
    """

    name: str
    options: Mapping[str, Value]


def steps_of(half: Mapping[str, Value]) -> tuple[PlannedStep, ...]:
    """Returns what is done to the model for a graph half, in order.

    Pre-passes first, then precision, then embeddings, whose operator the tools do not know; ONNX
    Runtime's own optimisation after that, because it writes operators that quantisation does not
    know; the storage form last.

    Args:
        half: Graph parameters that differ from their default, by name.
    """
    passes = str(half["pre_pass"]).split("+") if "pre_pass" in half else []
    steps = [PlannedStep(name, {}) for name in passes if not PASSES[name].late]
    if "precision" in half:
        name = str(half["precision"])
        names = PRECISIONS[name].options
        steps.append(PlannedStep(name, {k: v for k, v in half.items() if k in names}))
    embeddings = f"{half.get('embeddings')}_embeddings"
    if embeddings in _EMBEDDINGS:
        steps.append(PlannedStep(embeddings, {}))
    steps += [PlannedStep(name, {}) for name in passes if PASSES[name].late]
    if "storage" in half:
        steps.append(PlannedStep(str(half["storage"]), {}))
    return tuple(steps)


def shared_passes(
    steps: tuple[PlannedStep, ...],
) -> tuple[tuple[PlannedStep, ...], tuple[PlannedStep, ...]]:
    """Returns the passes that other graph halves begin with too, and the other steps.

    There are none of the former where nothing follows them.
    """
    others = (i for i, (name, _) in enumerate(steps) if name not in PASSES or PASSES[name].late)
    place = next(others, 0)
    return steps[:place], steps[place:]


def wants_samples(steps: Collection[PlannedStep]) -> bool:
    """Returns whether a step reads the calibration samples."""
    return any(step.name in PRECISIONS and PRECISIONS[step.name].wants_samples for step in steps)


def is_for_this_cpu(steps: Collection[PlannedStep]) -> bool:
    """Returns whether a step writes what was chosen for this kind of processor."""
    return any(STEPS[step.name].for_this_cpu for step in steps)


def needed_features(half: Mapping[str, Value], features: Collection[str]) -> tuple[str, ...]:
    """Returns the CPU features without which a model made here is slower or wrong elsewhere.

    Eight-bit products saturate on x86 without VNNI. A model that ONNX Runtime optimised or packed
    for this processor has the block sizes of its vectors.

    Args:
        half: Graph parameters that differ from their default, by name.
        features: Those of the processor that the model was made on.
    """
    steps = steps_of(half)
    saturates = any(_saturates(step) for step in steps)
    vnni = [name for name in ("avx512_vnni", "avx_vnni") if saturates and name in features]
    vectors = [name for name in ("avx512f", "avx2") if is_for_this_cpu(steps) and name in features]
    return (*vnni[:1], *vectors[:1])


def _saturates(step: PlannedStep) -> bool:
    entry = STEPS[step.name]
    return (
        isinstance(entry, Precision)
        and entry.saturates
        and not step.options.get("reduce_range", False)
        and not step.options.get("unsigned_weights", False)
    )
