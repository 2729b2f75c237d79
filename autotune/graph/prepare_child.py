"""The child that makes transformed models: one step after another, in a folder of its own."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import Message as ProtobufMessage  # type: ignore[import-untyped]

from autotune.facts.eight_bits import exactness_reaches, signed_products
from autotune.facts.feeds import Feed, load_samples
from autotune.facts.graphs import all_graphs, all_initializers, all_nodes, operator_of
from autotune.facts.weights import to_initializers
from autotune.graph.entries import StepRefusedError, UnfitModelError, not_installed
from autotune.graph.graph_digest import graph_digest
from autotune.graph.graph_facts import (
    FILE,
    Converted,
    GraphFacts,
    ProcessorFacts,
    Refusal,
    Renamed,
)
from autotune.graph.interface import arrays_of, give_defaults, restore, take_defaults
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import (
    BLOCKED_DOMAIN,
    LARGEST_PROTO_BYTES,
    has_external_data,
    make_plain,
    model_bytes,
    size_with_data,
)
from autotune.graph.parameters import STEPS
from autotune.graph.storage_form import EXTERNAL_DATA, STORAGE_FORMS
from autotune.process.child_end import Handler, Message, TransientError, printable, serve

# Above this the optimised graph is not compared with others: it would be written out whole. Nor is
# one made of a model over 2 GiB: that takes three times what rounding tensor by tensor does.
_LARGEST_COMPARED_BYTES = 1 << 30


def convert(message: Message) -> Converted:
    """Applies ``steps`` to the file ``source``; the result lies in ``folder`` as :data:`FILE`.

    What other sets of graph parameters need too is kept in the folders ``shared``: of what the same
    passes made, and of the model.

    Raises:
        StepRefusedError: the model cannot be given the form that steps take.
        TransientError: a file could not be read or written: another process has evicted it, or the
            disk is away.
    """
    try:
        return Converted(facts=_converted(message))
    except _RefusedByStep as error:
        return Converted(refusal=error.refusal)
    except OSError as error:
        raise TransientError(str(error)) from error


class _RefusedByStep(Exception):
    """A step is not for this model."""

    def __init__(self, name: str, error: BaseException | str) -> None:
        super().__init__(name)
        text = str(error) or type(error).__name__
        is_alone = isinstance(error, Exception) and not getattr(STEPS[name], "options", ())
        self.refusal = Refusal(
            message=printable(f"{name}: {text}"),
            step=name,
            of_model=isinstance(error, UnfitModelError) or is_alone,
        )


def _converted(message: Message) -> GraphFacts:
    samples: Sequence[Feed] = load_samples(Path(message["samples"])) if message["samples"] else []
    shared = Intermediates(*map(Path, message["shared"])) if message["shared"] else None
    current = Path(message["source"])
    make_plain(current)
    is_external = has_external_data(current)
    defaults = take_defaults(current)
    samples = [{**arrays_of(defaults), **sample} for sample in samples]
    steps = list(message["steps"])
    if is_external and not any(name in STORAGE_FORMS for name, _ in steps):
        # tools write one file: what that costs in memory must not be charged to the pass
        steps.append([EXTERNAL_DATA, {}])
    last = len(steps) - 1
    for i, (name, options) in enumerate(steps):
        folder = Path(message["folder"]) if i == last else Path(tempfile.mkdtemp(dir=Path.cwd()))
        _apply(name, current, folder / FILE, samples, shared, options)
        if i:
            shutil.rmtree(current.parent)
        current = folder / FILE
    give_defaults(current, defaults)
    return _facts(current, size_with_data(Path(message["source"])) <= LARGEST_PROTO_BYTES)


def _apply(
    name: str,
    source: Path,
    target: Path,
    samples: Sequence[Feed],
    shared: Intermediates | None,
    options: Mapping[str, Any],
) -> None:
    """Applies one step.

    Raises:
        _RefusedByStep: a package is missing, or the step fails.
    """
    step = STEPS[name]
    for package in step.missing:
        raise _RefusedByStep(name, not_installed(package))
    try:
        if step.wants_samples:
            step.run(source, target, samples, shared=shared, **options)
        else:
            step.run(source, target, **options)
    except (MemoryError, OSError):
        raise
    # some tools end the process where they mean to refuse
    except (Exception, SystemExit) as error:
        raise _RefusedByStep(name, error) from error
    if not target.is_file():
        raise _RefusedByStep(name, "it wrote no model")
    if not step.changes_interface:
        try:
            restore(target, onnx.load(source, load_external_data=False).graph)
        except StepRefusedError as error:
            raise _RefusedByStep(name, error) from error


def look(message: Message) -> GraphFacts:
    """Returns the facts of the model in the file ``path``."""
    return _facts(Path(message["path"]))


def _facts(path: Path, is_compared: bool = True) -> GraphFacts:
    size_bytes = model_bytes(path, onnx.load(path, load_external_data=False))
    is_compared = is_compared and size_bytes <= _LARGEST_COMPARED_BYTES
    return GraphFacts(graph_digest=graph_digest(path) if is_compared else None)


def rename_data(message: Message) -> Renamed:
    """Writes the model in the file ``path`` to the file ``to``, its data files renamed.

    ``names`` holds the new name of each external data file, by its old one.

    Raises:
        ValueError: the model has a data file that has no new name.
    """
    model = onnx.load(message["path"], load_external_data=False)
    for tensor in _tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                if entry.value not in message["names"]:
                    raise ValueError(f"its data file '{entry.value}' is not among those it had")
                entry.value = message["names"][entry.value]
    Path(message["to"]).write_bytes(model.SerializeToString())
    return Renamed()


def look_at_processor_facts(message: Message) -> ProcessorFacts:
    """Returns what the answers of the model in the file ``path`` depend on the processor for."""
    path = Path(message["path"])
    model = onnx.load(path, load_external_data=False)
    if model.functions:
        model = onnx.inliner.inline_local_functions(model)
    to_initializers(model)
    overflowing = [product for product in signed_products(model, path.parent) if product.large]
    return ProcessorFacts(
        overflows=bool(overflowing),
        exactness_reaches=all(map(exactness_reaches, overflowing)),
        has_blocks=any(node.domain == BLOCKED_DOMAIN for node in all_nodes(model.graph)),
        float16=_computes_in_half(model),
    )


def _computes_in_half(model: onnx.ModelProto) -> bool:
    """Returns whether a node takes numbers of half precision, and does not only convert them."""
    half = onnx.TensorProto.FLOAT16
    names = {item.name for item in all_initializers(model.graph) if item.data_type == half}
    for graph in all_graphs(model.graph):
        names |= {i.name for i in graph.input if i.type.tensor_type.elem_type == half}
    for node in all_nodes(model.graph):
        if operator_of(node) == "Cast":
            if any(attribute.name == "to" and attribute.i == half for attribute in node.attribute):
                return True
        elif not names.isdisjoint(node.input):
            return True
    return False


def _tensors(message: ProtobufMessage) -> Iterator[onnx.TensorProto]:
    """Yields every tensor in a model: initializers and attributes, subgraphs and functions too."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in [value] if isinstance(value, ProtobufMessage) else value:
            if isinstance(item, onnx.TensorProto):
                yield item
            else:
                yield from _tensors(item)


def handlers() -> dict[str, Handler]:
    """Returns what answers each message."""
    return {
        "convert": convert,
        "look": look,
        "rename_data": rename_data,
        "processor_facts": look_at_processor_facts,
    }


if __name__ == "__main__":
    serve(handlers())
