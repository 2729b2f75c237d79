"""Graph pre-passes: one model file to another that computes the same.

Maintained tools do most of the work, and :mod:`autotune.graph.algebra` does what they leave. A
function here calls one of them, guards against inputs that break it, and says which of its failures
are refusals. To add a pre-pass, write its function and its entry in :data:`PASSES`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.graph.entries import Entry, Step, StepRefusedError


@dataclass(frozen=True, kw_only=True)
class Pass(Step):
    """A pre-pass.

    Attributes:
        late: Whether it runs after quantisation, because it writes operators of ONNX Runtime's own
            that the quantisation tools do not know.
    """

    late: bool = False


# Fused operators that a kind of transformer gives its mask.
_WITH_MASKS = ("Attention", "MultiHeadAttention", "EmbedLayerNormalization")


def _algebra(source: Path, target: Path) -> None:
    import onnx

    from autotune.graph.algebra.model import simplify
    from autotune.graph.model_file import save

    model = onnx.load(source)
    simplify(model)
    save(model, target)


def _onnxslim(source: Path, target: Path) -> None:
    import onnx
    import onnxslim

    from autotune.graph.model_file import save

    save(onnxslim.slim(onnx.load(source), model_check=False), target)


def _onnxsim(source: Path, target: Path) -> None:
    import onnx
    import onnxsim

    from autotune.graph.model_file import save

    # what it says of its result is true unless it is asked to run both; a study compares answers
    model, _ = onnxsim.simplify(onnx.load(source))
    save(model, target)


def _onnxoptimizer(source: Path, target: Path) -> None:
    import onnx
    import onnxoptimizer

    from autotune.graph.model_file import is_large, save

    model = onnx.load(source)
    if is_large(model):
        raise StepRefusedError("ONNX Optimizer cannot take a model over 2 GiB")
    save(onnxoptimizer.optimize(model), target)


def _onnxscript(source: Path, target: Path) -> None:
    import onnx_ir
    from onnxscript.optimizer import optimize
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    from autotune.graph.model_file import has_external_data

    is_outside = has_external_data(source)
    model = onnx_ir.load(source)
    optimize(model)
    fused, _ = optimize_for_ort(model)
    # otherwise the written model refers to the external data of the source
    onnx_ir.save(fused, target, external_data=f"{target.name}.data" if is_outside else None)


def _ort_transformers(source: Path, target: Path) -> None:
    """Applies the fusions of each known kind of transformer and keeps those that fused most.

    Several kinds have one class, and differ in how they hand attention its mask: where a class
    fused nothing that has a mask, no other kind of it is tried. Each takes seconds.
    """
    from onnxruntime.transformers.optimizer import MODEL_TYPES, optimize_model

    from autotune.graph.model_file import save

    most_fusions = 0
    best: Any = None
    without_masks = set()
    for kind in ("bert", "gpt2", "vit", "clip", "t5", "swin", "conformer"):
        (fused_by, *_) = MODEL_TYPES[kind]
        if fused_by in without_masks:
            continue
        try:
            optimiser = optimize_model(str(source), model_type=kind, opt_level=0)
        except Exception:  # noqa: BLE001  # the wrong kind for a model raises all sorts of errors
            continue
        counts = optimiser.get_fused_operator_statistics()
        if not any(counts.get(operator) for operator in _WITH_MASKS):
            without_masks.add(fused_by)
        fusions = sum(counts.values())
        if fusions > most_fusions:
            most_fusions, best = fusions, optimiser.model
    if best is None:
        raise StepRefusedError("no pattern of a transformer was found")
    save(best, target)


def _ort_offline(level: str) -> Callable[[Path, Path], None]:
    """Returns the step that writes what ONNX Runtime makes of a model at an optimisation level."""

    def run(source: Path, target: Path) -> None:
        from autotune.graph.model_file import write_optimised

        write_optimised(source, target, level)

    return run


PASSES: Mapping[str, Pass] = {
    "algebra": Pass(run=_algebra, words="graph rewrite (algebra)"),
    "onnxslim": Pass(run=_onnxslim, words="onnxslim", packages=("onnxslim",)),
    "onnxsim": Pass(run=_onnxsim, words="onnxsim", packages=("onnxsim",)),
    "onnxoptimizer": Pass(run=_onnxoptimizer, words="onnxoptimizer", packages=("onnxoptimizer",)),
    "onnxscript": Pass(run=_onnxscript, words="onnxscript", packages=("onnxscript", "onnx_ir")),
    "ort_transformers": Pass(
        run=_ort_transformers, words="ort_transformers", needs=("transformer",)
    ),
    "ort_basic": Pass(run=_ort_offline("ORT_ENABLE_BASIC"), words="ort_basic", late=True),
    "ort_extended": Pass(run=_ort_offline("ORT_ENABLE_EXTENDED"), words="ort_extended", late=True),
}
"""All pre-passes by name."""

COMBINATIONS = (
    "onnxslim+algebra",
    "algebra+onnxscript",
    "algebra+ort_transformers",
    "algebra+ort_extended",
    "onnxslim+ort_transformers",
    "onnxslim+onnxscript",
    "onnxslim+ort_extended",
)
"""Pre-passes that a space may offer one after the other."""


def _combined(name: str) -> Entry:
    parts = [PASSES[part] for part in name.split("+")]
    return Entry(
        words="+".join(part.words for part in parts),
        needs=tuple(dict.fromkeys(need for part in parts for need in part.all_needs)),
    )


PRE_PASSES: Mapping[str, Entry] = {**PASSES, **{name: _combined(name) for name in COMBINATIONS}}
"""What the parameter ``pre_pass`` may be besides ``none``: single pre-passes and combinations."""
