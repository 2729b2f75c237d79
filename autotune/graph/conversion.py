"""The child that makes prepared models: one step after another, in a folder of its own."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx
from onnx import numpy_helper

from autotune.child import Message, serve
from autotune.facts.feeds import load_samples
from autotune.facts.workload import Feed
from autotune.graph import precision, storage_form
from autotune.graph.passes import LARGEST_PROTO_BYTES, PASSES, load
from autotune.graph.prepare import FILE
from autotune.graph.refusal import StepRefusedError

# Above this the optimised graph is not compared with others: it would be written out whole.
_LARGEST_COMPARED_BYTES = 1 << 30

Step = Callable[[Path, Path, Sequence[Feed]], None]


def _without_samples(run: Callable[[Path, Path], None]) -> Step:
    return lambda source, target, _: run(source, target)


STEPS: Mapping[str, Callable[..., None]] = {
    **{name: _without_samples(item.run) for name, item in PASSES.items()},
    "fp16": precision.fp16,
    "fp16_mixed": precision.fp16_mixed,
    "int8_dynamic": precision.int8_dynamic,
    "int8_static": precision.int8_static,
    "int8_weight_only": partial(precision.weight_only, bits=8),
    "int4_weight_only": partial(precision.weight_only, bits=4),
    **{name: _without_samples(form) for name, form in storage_form.FORMS.items()},
}
"""What may be done to a model, by name."""


def convert(message: Message) -> Message:
    """Applies ``steps`` to the file ``source``; the result lies in ``folder`` as :data:`FILE`.

    Returns the facts of the result.

    Raises:
        StepRefusedError: a step is not for this model; the text names the step.
    """
    samples = load_samples(Path(message["samples"])) if message["samples"] else []
    current = Path(message["source"])
    last = len(message["steps"]) - 1
    for i, (name, options) in enumerate(message["steps"]):
        folder = Path(message["folder"]) if i == last else Path(tempfile.mkdtemp(dir=Path.cwd()))
        try:
            STEPS[name](current, folder / FILE, samples, **options)
        except Exception as error:
            raise StepRefusedError(f"{name}: {str(error) or type(error).__name__}") from error
        if i:
            _empty(current.parent)
        current = folder / FILE
        if not current.is_file():
            raise StepRefusedError(f"{name}: it wrote no model")
    return _facts(current)


def look(message: Message) -> Message:
    """Returns the facts of the model in the file ``path``."""
    return _facts(Path(message["path"]))


def _facts(path: Path) -> Message:
    model = onnx.load(path, load_external_data=False)
    names = {path.name, *(name for name in map(_data_file, model.graph.initializer) if name)}
    sizes = [(path.parent / name).stat().st_size for name in names]
    return {
        "operators": len(model.graph.node),
        "parameters": sum(_count(item) for item in model.graph.initializer),
        "size_bytes": sum(sizes),
        "graph_digest": _digest(path) if sum(sizes) <= _LARGEST_COMPARED_BYTES else None,
    }


def _count(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def _data_file(tensor: onnx.TensorProto) -> str | None:
    return next((e.value for e in tensor.external_data if e.key == "location"), None)


def _empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


def _digest(path: Path) -> str | None:
    """Returns what is the same for models that ONNX Runtime optimises to the same graph.

    Tensors are named by the order in which they appear: passes invent names of their own. None
    where ONNX Runtime does not write the graph.
    """
    optimised = Path(tempfile.mkdtemp(dir=Path.cwd())) / "optimised.onnx"
    try:
        PASSES["ort_all"].run(path, optimised)
        model = load(optimised)
    except Exception:  # noqa: BLE001  # it is only a short cut
        return None
    finally:
        optimised.unlink(missing_ok=True)
    if model.ByteSize() > LARGEST_PROTO_BYTES:
        return None
    digest = hashlib.sha256()
    places: dict[str, int] = {}
    weights = {item.name: item for item in model.graph.initializer}
    for item in (*model.graph.input, *model.graph.output):
        digest.update(f"{item.name} ".encode())
        places.setdefault(item.name, len(places))
    for node in model.graph.node:
        digest.update(f"\n{node.domain} {node.op_type}".encode())
        for name in node.input:
            if name in weights and name not in places:
                array = numpy_helper.to_array(weights[name])
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(array.tobytes())
            digest.update(f" {places.setdefault(name, len(places)) if name else '-'}".encode())
        for name in node.output:
            digest.update(f" {places.setdefault(name, len(places)) if name else '-'}".encode())
        for attribute in sorted(node.attribute, key=lambda item: item.name):
            digest.update(attribute.SerializeToString(deterministic=True))
    return digest.hexdigest()


def handlers() -> dict[str, Callable[[Message], Message]]:
    """Returns what answers each message."""
    return {"convert": convert, "look": look}


if __name__ == "__main__":
    serve(handlers())
