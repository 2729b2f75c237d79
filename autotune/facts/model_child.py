"""The child of :mod:`autotune.facts.model`: opens a stranger's file and reports its contents."""

import contextlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from onnx import external_data_helper

from autotune.deploy.decoder import Decoder, Port
from autotune.facts.breaking import breaking_on, open_default
from autotune.facts.decoder_graph import decoder_in
from autotune.facts.feeds import load_samples
from autotune.facts.graph_inputs import described
from autotune.facts.graphs import RUNTIME_DOMAIN, all_graphs, all_nodes, all_weights, operator_of
from autotune.facts.model_facts import NO_MODEL, Breaking, ModelFacts, Tensor
from autotune.facts.optimised import count_subnormals, optimised_model, optimised_weights
from autotune.facts.weights import (
    element_count,
    embedding_nodes,
    quantisable_nodes,
    to_initializers,
)
from autotune.process.child_end import Message, serve

# Nodes that are worth a thread of their own.
_HEAVY = frozenset(
    """
    Conv ConvTranspose MatMul Gemm LSTM GRU RNN Attention Einsum com.microsoft.Attention
    com.microsoft.FusedConv com.microsoft.FusedMatMul
    """.split()
)
_GELUS = frozenset({"Erf", "Gelu", f"{RUNTIME_DOMAIN}.Gelu", f"{RUNTIME_DOMAIN}.BiasGelu"})
# Samples and their features.
_ROWS = 2
# Kinds of inputs that are no tensors, by the name of the field in onnx.TypeProto.
_OTHER_KINDS = {
    "sequence_type": "a sequence",
    "map_type": "a map",
    "optional_type": "an optional value",
    "sparse_tensor_type": "a sparse tensor",
    "opaque_type": "an opaque value",
}


def inspect(message: Message) -> ModelFacts:
    """Returns the facts of the model in the file ``message["path"]``.

    Raises:
        ValueError: the file is no model, or one that autotune cannot feed.
        Exception: whatever ONNX Runtime raises when it opens the model with default options.
    """
    path = Path(message["path"])
    model = _parse(path)
    if model.functions:  # what is inside them counts
        model = onnx.inliner.inline_local_functions(model)
    data_names = _data_names(model, path.parent)
    shown = len(model.graph.input)
    to_initializers(model)
    session, breaking = open_default(path)
    _check_outputs(model)
    inputs = _inputs(session, model)
    optional = _optional(session, model)
    operators = Counter(operator_of(node) for node in all_nodes(model.graph))
    quantisable, quantisable_inside = quantisable_nodes(model.graph)
    parameters = sum(map(element_count, all_weights(model.graph)))
    branches = max(map(_branches, all_graphs(model.graph)))
    embeddings = len(embedding_nodes(model.graph))
    # the last to look at the graph: it drops numbers that only the facts above need
    inputs = described(model, inputs)
    return ModelFacts(
        data_names=data_names,
        inputs=inputs,
        outputs=tuple(output.name for output in model.graph.output),
        breaking=breaking,
        operators=dict(operators.most_common()),
        parameters=parameters,
        has_conv="Conv" in operators,
        has_gelu=not operators.keys().isdisjoint(_GELUS),
        quantisable=dict(quantisable),
        quantisable_inside=dict(quantisable_inside),
        branches=branches,
        subnormals=_subnormals(path),
        embeddings=embeddings,
        decoder=_decoder(session, model, inputs, message.get("pairs", {})),
        optional=optional,
        weights_are_inputs=len(model.graph.input) < shown,
    )


def _parse(path: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # the parser's own classes differ between protobuf versions
        raise ValueError(f"{NO_MODEL}, or a truncated one") from error
    if not model.ir_version or not model.graph.node:
        raise ValueError(f"{NO_MODEL}, or one without nodes")
    return model


def _data_names(model: onnx.ModelProto, folder: Path) -> tuple[str, ...]:
    """Returns the names of the external data files; each is there, inside `folder` and long enough.

    ONNX Runtime refuses paths that leave the folder; the check is repeated because autotune hashes
    and copies the files.
    """
    names: dict[str, None] = {}
    for tensor in filter(external_data_helper.uses_external_data, all_weights(model.graph)):
        place: Any = external_data_helper.ExternalDataInfo(tensor)
        name = place.location
        file = folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"its external data '{name}' lie outside its folder")
        if Path(name).name != name:
            raise ValueError(
                f"its external data are named '{name}', with a folder; save the model again with "
                "its data beside it (onnx.save_model with location='weights.bin')"
            )
        if not file.is_file():
            raise ValueError(f"its external data file '{name}' is missing; put it beside the model")
        end = (place.offset or 0) + (place.length or 0)
        if file.stat().st_size < end:
            raise ValueError(f"its external data file '{name}' is truncated")
        names[name] = None
    return tuple(names)


def _decoder(
    session: Any, model: onnx.ModelProto, inputs: tuple[Tensor, ...], pairs: Mapping[str, str]
) -> Decoder | None:
    """Returns how the model generates; None where no output is fed back."""
    outputs = []
    for item in session.get_outputs():
        kind = item.type.removeprefix("tensor(").removesuffix(")")
        dtype = {"float": "float32", "double": "float64", "string": "str"}.get(kind, kind)
        shape = tuple(size or None for size in item.shape)
        outputs.append(Port(name=item.name, dtype=dtype, shape=shape))
    ports = [Port(name=t.name, dtype=t.dtype, shape=t.shape) for t in inputs]
    bounds = {t.name: t.index_bound for t in inputs if t.index_bound}
    return decoder_in(model.graph, ports, outputs, bounds, pairs)


def _inputs(session: Any, model: onnx.ModelProto) -> tuple[Tensor, ...]:
    """Returns the inputs that must be fed, after ONNX Runtime has opened the model.

    An input of the model without a rank gets one.
    """
    types = {item.name: item.type for item in model.graph.input}
    inputs = []
    for item in session.get_inputs():
        kind = types[item.name].WhichOneof("value")
        if kind != "tensor_type":
            raise ValueError(
                f"its input '{item.name}' is {_OTHER_KINDS[kind]}, and autotune feeds tensors "
                "only; export the model with tensor inputs"
            )
        is_ranked = types[item.name].tensor_type.HasField("shape")
        shape = tuple(size or None for size in item.shape)
        if not is_ranked:
            shape = (None,) * _likely_rank(model.graph, item.name)
            types[item.name].tensor_type.shape.dim.extend(
                onnx.TensorShapeProto.Dimension() for _ in shape
            )
        inputs.append(
            Tensor(
                name=item.name,
                dtype=_dtype(f"input '{item.name}'", types[item.name].tensor_type.elem_type),
                shape=shape,
                is_ranked=is_ranked,
            )
        )
    return tuple(inputs)


def _likely_rank(graph: onnx.GraphProto, name: str) -> int:
    """Returns as many dimensions as the filter has that first takes an input, else those of rows.

    Between the two lie nodes of one tensor, which most often keep its dimensions.
    """
    ranks = {item.name: len(item.dims) for item in graph.initializer}
    values = {name}
    for node in graph.node:
        if values.isdisjoint(node.input[:1]):
            continue
        if operator_of(node) in ("Conv", "ConvTranspose"):
            return ranks.get(node.input[1], _ROWS)
        values.update(node.output)
    return _ROWS


def _optional(session: Any, model: onnx.ModelProto) -> tuple[Tensor, ...]:
    """Returns the inputs with a default value of a type that numpy can hold."""
    kinds = {item.name: item.data_type for item in model.graph.initializer}
    tensors = []
    for item in session.get_overridable_initializers():
        with contextlib.suppress(ValueError):
            dtype = _dtype(f"input '{item.name}'", kinds[item.name])
            shape = tuple(size or None for size in item.shape)
            tensors.append(Tensor(name=item.name, dtype=dtype, shape=shape))
    return tuple(tensors)


def _check_outputs(model: onnx.ModelProto) -> None:
    """Refuses a model whose answers Python cannot read.

    Raises:
        ValueError: an output has a type that numpy cannot hold.
    """
    for output in model.graph.output:
        if element := output.type.tensor_type.elem_type:
            _dtype(f"output '{output.name}'", element)


def _dtype(name: str, element: int) -> str:
    if element == onnx.TensorProto.STRING:
        return "str"
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    if dtype.kind not in "fiubc" or dtype.str[1:] == "V1":  # bfloat16, float8, int4: no numpy type
        named = onnx.TensorProto.DataType.Name(element).lower()
        raise ValueError(
            f"its {name} has the type {named}, which numpy cannot hold; "
            "export the model with a cast inside"
        )
    return dtype.name


def _branches(graph: onnx.GraphProto) -> int:
    """Returns the most heavy nodes that lie equally deep.

    Counting only heavy nodes along the longest path to each, two of the same depth cannot depend
    on each other: this is a lower bound of how many can run side by side.
    """
    depth: dict[str, int] = {}
    width: Counter[int] = Counter()
    for node in graph.node:
        below = max((depth.get(name, 0) for name in node.input), default=0)
        if operator_of(node) in _HEAVY:
            below += 1
            width[below] += 1
        depth.update(dict.fromkeys(node.output, below))
    return max(width.values(), default=1)


def _subnormals(path: Path) -> int | None:
    """Returns how many weights are subnormal once ONNX Runtime has optimised the graph.

    The file itself does not tell: folding a batch normalisation into a convolution can make nearly
    all weights subnormal, or none. Returns None where the optimised graph cannot be read.
    """
    optimised = optimised_model(path)
    if optimised is None:
        return None
    return sum(count_subnormals(array) for _, array in optimised_weights(optimised, path.parent))


def find_breaking(message: Message) -> Breaking:
    """Returns the optimisations that must be off for right answers to the sample."""
    (feed,) = load_samples(Path(message["sample"]))
    return Breaking(names=breaking_on(Path(message["path"]), feed, message["off"]))


if __name__ == "__main__":
    serve({"inspect": inspect, "find_breaking": find_breaking})
