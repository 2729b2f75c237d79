"""Graph pre-passes: one model file to another that computes the same.

Each is a well-kept tool's work; here is only how to call it, what it must not be asked, and which
of its ways to fail is a refusal. They run in a limited child process, on a private copy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper

from autotune.graph.refusal import StepRefusedError

# Above this protobuf cannot hold a model in one file, and most tools hold one in memory.
LARGEST_PROTO_BYTES = (1 << 31) - 1


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A pre-pass.

    Attributes:
        run: Reads a model file, with its external data beside it, and writes a whole new one.
            Raises :class:`StepRefusedError` or whatever the tool raises where it cannot.
        packages: What must be installed for it, by the names under which they are imported.
        late: Whether it comes after quantisation: it bakes ONNX Runtime's own operators in, which
            quantisation does not know.
    """

    run: Callable[[Path, Path], None]
    packages: tuple[str, ...] = ()
    late: bool = False

    @property
    def missing(self) -> tuple[str, ...]:
        """The packages that are not installed."""
        return tuple(name for name in self.packages if find_spec(name) is None)


def load(source: Path) -> onnx.ModelProto:
    """Returns the model with its external data in memory."""
    return onnx.load(source)


def save(model: onnx.ModelProto, target: Path) -> None:
    """Writes the model, with its weights beside it where one file cannot hold them.

    Raises:
        StepRefusedError: the tool left nothing.
    """
    if model is None:
        raise StepRefusedError("the tool gave no model back")
    if model.ByteSize() <= LARGEST_PROTO_BYTES:
        onnx.save(model, target)
    else:
        onnx.save(model, target, save_as_external_data=True, location=f"{target.name}.data")


def _onnxslim(source: Path, target: Path) -> None:
    import onnxslim

    save(onnxslim.slim(load(source), model_check=False), target)


def _onnxsim(source: Path, target: Path) -> None:
    import onnxsim

    model, is_right = onnxsim.simplify(load(source))
    if not is_right:
        raise StepRefusedError("ONNX Simplifier says that its result differs from the model")
    save(model, target)


def _onnxoptimizer(source: Path, target: Path) -> None:
    import onnxoptimizer

    model = load(source)
    if model.ByteSize() > LARGEST_PROTO_BYTES:
        raise StepRefusedError("ONNX Optimizer cannot take a model over 2 GiB")
    save(onnxoptimizer.optimize(model), target)


def _onnxscript(source: Path, target: Path) -> None:
    import onnx_ir
    from onnxscript.optimizer import optimize
    from onnxscript.rewriter.ort_fusions import optimize_for_ort

    model = onnx_ir.load(source)
    optimize(model)
    fused, _ = optimize_for_ort(model)
    save(onnx_ir.to_proto(fused), target)


def _ort_transformers(source: Path, target: Path) -> None:
    """Applies the fusions of each known kind of transformer and keeps those that found most."""
    from onnxruntime.transformers.optimizer import optimize_model

    found: dict[int, Any] = {}
    for kind in ("bert", "gpt2", "vit", "clip", "t5", "swin", "conformer"):
        try:
            optimiser = optimize_model(str(source), model_type=kind, opt_level=0)
        except Exception:  # noqa: BLE001  # the wrong kind for the model takes any form
            continue
        fused = sum(optimiser.get_fused_operator_statistics().values())
        if fused and fused > max(found, default=0):
            found[fused] = optimiser
    if not found:
        raise StepRefusedError("no pattern of a transformer was found")
    save(found[max(found)].model, target)


def _ort_offline(level: str) -> Callable[[Path, Path], None]:
    def run(source: Path, target: Path) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        settings.optimized_model_filepath = str(target)
        settings.log_severity_level = 4
        # weights that lie outside are named by where they lie, not copied
        if _size(source) > LARGEST_PROTO_BYTES // 2 or has_data(source):
            name = f"{target.name}.data"
            settings.add_session_config_entry(
                "session.optimized_model_external_initializers_file_name", name
            )
        onnxruntime.InferenceSession(
            source, settings, providers=["CPUExecutionProvider"], enable_fallback=0
        )

    return run


def has_data(source: Path) -> bool:
    """Returns whether weights of the model lie outside of its file."""
    return any(
        external_data_helper.uses_external_data(item)
        for item in onnx.load(source, load_external_data=False).graph.initializer
    )


def _size(source: Path) -> int:
    """Returns the bytes of all files in the folder of `source`, which is private to it."""
    return sum(file.stat().st_size for file in source.parent.iterdir() if file.is_file())


PASSES: Mapping[str, Pass] = {
    "onnxslim": Pass(run=_onnxslim, packages=("onnxslim",)),
    "onnxsim": Pass(run=_onnxsim, packages=("onnxsim",)),
    "onnxoptimizer": Pass(run=_onnxoptimizer, packages=("onnxoptimizer",)),
    "onnxscript": Pass(run=_onnxscript, packages=("onnxscript", "onnx_ir")),
    "ort_transformers": Pass(run=_ort_transformers),
    "ort_basic": Pass(run=_ort_offline("ORT_ENABLE_BASIC"), late=True),
    "ort_extended": Pass(run=_ort_offline("ORT_ENABLE_EXTENDED"), late=True),
    "ort_all": Pass(run=_ort_offline("ORT_ENABLE_ALL"), late=True),
}
"""All pre-passes by name."""
