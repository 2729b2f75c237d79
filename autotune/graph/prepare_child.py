"""The child that makes prepared models: one step after another, in a folder of its own."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import onnx
from onnx import numpy_helper

from autotune.facts.feeds import Feed, load_samples
from autotune.graph import precision, storage_form
from autotune.graph.graph_facts import GraphFacts
from autotune.graph.passes import LARGEST_PROTO_BYTES, PASSES, has_data, load
from autotune.graph.prepare import FILE
from autotune.graph.refusal import StepRefusedError
from autotune.process.child_end import Handler, Message, serve

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


def convert(message: Message) -> GraphFacts:
    """Applies ``steps`` to the file ``source``; the result lies in ``folder`` as :data:`FILE`.

    Returns the facts of the result.

    Raises:
        StepRefusedError: a step is not for this model; the text names the step.
    """
    samples = load_samples(Path(message["samples"])) if message["samples"] else []
    current = Path(message["source"])
    steps = list(message["steps"])
    if has_data(current) and not any(name in storage_form.FORMS for name, _ in steps):
        # tools write one file: what that costs in memory is not the pass's doing
        steps.append(["external_data", {}])
    last = len(steps) - 1
    for i, (name, options) in enumerate(steps):
        folder = Path(message["folder"]) if i == last else Path(tempfile.mkdtemp(dir=Path.cwd()))
        try:
            STEPS[name](current, folder / FILE, samples, **options)
        except MemoryError:
            raise
        # some tools end the process where they mean to refuse
        except (Exception, SystemExit) as error:
            raise StepRefusedError(f"{name}: {str(error) or type(error).__name__}") from error
        if i:
            shutil.rmtree(current.parent)
        current = folder / FILE
        if not current.is_file():
            raise StepRefusedError(f"{name}: it wrote no model")
    return _facts(current)


def look(message: Message) -> GraphFacts:
    """Returns the facts of the model in the file ``path``."""
    return _facts(Path(message["path"]))


def _facts(path: Path) -> GraphFacts:
    model = onnx.load(path, load_external_data=False)
    names = {path.name, *(name for name in map(_data_file, model.graph.initializer) if name)}
    sizes = [(path.parent / name).stat().st_size for name in names]
    return GraphFacts(
        operators=len(model.graph.node),
        parameters=sum(_count(item) for item in model.graph.initializer),
        size_bytes=sum(sizes),
        graph_digest=_digest(path) if sum(sizes) <= _LARGEST_COMPARED_BYTES else None,
    )


def _count(tensor: onnx.TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def _data_file(tensor: onnx.TensorProto) -> str | None:
    return next((e.value for e in tensor.external_data if e.key == "location"), None)


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
    opsets = sorted((item.domain, item.version) for item in model.opset_import)
    digest = hashlib.sha256(repr(opsets).encode())
    for item in (*model.graph.input, *model.graph.output):
        digest.update(f"{item.name} ".encode())
    _hash_graph(digest, model.graph, {}, {})
    return digest.hexdigest()


def _hash_graph(
    digest: "hashlib._Hash",
    graph: onnx.GraphProto,
    places: Mapping[str, int],
    weights: Mapping[str, str],
) -> None:
    """Adds the nodes to the digest: weights by what they hold, other tensors by first appearance.

    Args:
        digest: What is added to.
        graph: The main graph or the body of a branch or loop.
        places: Numbers of the tensors of the graphs around it.
        weights: Digests of the weights of the graphs around it, by name.
    """
    places, weights = dict(places), dict(weights)
    for item in graph.initializer:
        array = numpy_helper.to_array(item)
        text = f"{array.dtype} {array.shape}".encode()
        weights[item.name] = hashlib.sha256(text + array.tobytes()).hexdigest()

    def told(name: str) -> str:
        if not name:
            return "-"
        return weights[name] if name in weights else str(places.setdefault(name, len(places)))

    def add(*names: str) -> None:
        digest.update(" ".join(map(told, names)).encode())

    add(*(item.name for item in graph.input))
    for node in graph.node:
        digest.update(f"\n{node.domain} {node.op_type} ".encode())
        add(*node.input)
        for attribute in sorted(node.attribute, key=lambda item: item.name):
            if attribute.type == onnx.AttributeProto.GRAPH:
                digest.update(attribute.name.encode())
                _hash_graph(digest, attribute.g, places, weights)
            else:
                digest.update(attribute.SerializeToString(deterministic=True))
        digest.update(b" = ")
        add(*node.output)
    add(*(item.name for item in graph.output))


def handlers() -> dict[str, Handler]:
    """Returns what answers each message."""
    return {"convert": convert, "look": look}


if __name__ == "__main__":
    serve(handlers())
