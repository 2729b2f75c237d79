"""What makes a model a decoder: which outputs of a step are inputs of the next one.

A record, and the reading of names and shapes. Pairs that a graph shows are found by
:mod:`autotune.facts.decoder_graph`; an application has a session alone, so pairs are found by name
here. Standard library only, because the loader is.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.deploy.records import PositiveWhole, Text, Whole
from autotune.errors import RequestError

CACHE, CROSS, STATE = "cache", "cross", "state"
"""Kinds of pairs: a cache grows with every token; a cross-attention cache is computed in the first
step and stays; a recurrent state has one size and changes."""

_BATCH_AXIS = 0
# Words of exporters for what comes in and what goes out; what is left of both names is the same.
_PAST = re.compile(r"past_key_values|past_key_value|past_keys?|past|cache_in|_in$|^in_|^prev_")
_PRESENT = re.compile(
    r"present_key_values|present_keys?|present|cache_out|updated_|_out$|^out_|^next_|^new_"
)
# What exporters append to a state's name: silero's stateN, and hn beside h.
_NEXT = ("N", "n", "_n", "_out", "_next", "_new", "_output", ".1")
_TOKENS = ("input_ids", "decoder_input_ids", "tokens", "token_ids", "token", "ids")
_FLOATS = ("float16", "float32", "float64", "bfloat16")
_LOGITS = ("logits", "lm_logits", "prediction_scores", "output")
_CHANGING = re.compile("position|past|total|cache|seq.*len")


@dataclass(frozen=True, kw_only=True)
class Port:
    """An input or an output of a model.

    Attributes:
        dtype: Its element type as numpy spells it.
        shape: Its dimensions: a size, a symbolic name, or None where the model says nothing.
    """

    name: Text
    dtype: Text
    shape: tuple[Whole | Text | None, ...]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An output that is an input of the next step.

    Attributes:
        kind: One of :data:`CACHE`, :data:`CROSS` and :data:`STATE`.
        axis: The dimension along which a cache grows; None where it has one size.
        batch: The dimension that counts sequences, where the model leaves it open; else None.
        dtype: Element type as numpy spells it.
        shape: The input's sizes before the first step, for one sequence; None where the model
            leaves one open that nothing tells.
    """

    past: Text
    present: Text
    kind: Text = CACHE
    axis: Whole | None = None
    batch: Whole | None = None
    dtype: Text = "float32"
    shape: tuple[Whole | None, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """How a model generates.

    Attributes:
        tokens: The input of token ids; None where the model takes no tokens.
        logits: The output of the next token's logits; None where the model has none.
        mask: The attention mask over all tokens so far; None without one.
        positions: The positions of the new tokens; None without them.
        branch: A flag that says whether there is a cache (Optimum's merged decoders); None without.
        others: Other inputs, which are the same in all steps, such as an encoder's output.
        vocabulary: How many tokens there are; None where the model does not say.
        context: The most tokens; None where nothing tells.
        rates_prompts: Whether the logits may be those of all tokens of a prompt, by their shape;
            else they are those of its last token.
    """

    pairs: tuple[Pair, ...]
    tokens: Text | None = None
    logits: Text | None = None
    mask: Text | None = None
    positions: Text | None = None
    branch: Text | None = None
    others: tuple[Text, ...] = ()
    vocabulary: Whole | None = None
    context: Whole | None = None
    token_dtype: Text = "int64"
    rates_prompts: bool = True

    @property
    def generates(self) -> bool:
        """Whether tokens go in and logits come out; others are recurrent models of frames."""
        return self.tokens is not None and self.logits is not None

    @property
    def open_shape(self) -> Pair | None:
        """The first pair with a size that nothing tells; None where all are known."""
        return next((pair for pair in self.pairs if None in pair.shape), None)

    @property
    def changing(self) -> tuple[str, ...]:
        """Other inputs that change from step to step by their names, so that nothing feeds them."""
        return tuple(name for name in self.others if _CHANGING.search(name.lower()))

    def completed(self, sizes: "HeadSizes", shapes: Mapping[str, Sequence[int]]) -> "Decoder":
        """Returns the decoder with open sizes filled in.

        Args:
            sizes: What the files beside the model say.
            shapes: Shapes of inputs as the user gives them; one holds for all pairs of its form.

        Raises:
            RequestError: a shape is not that of one sequence.
        """
        given = {p.past: _given(p, shapes[p.past]) for p in self.pairs if p.past in shapes}
        alike = {_form(pair): given[pair.past] for pair in self.pairs if pair.past in given}

        def shape_of(pair: Pair) -> tuple[int | None, ...]:
            shape = _with_heads(pair, sizes)
            known = alike.get(_form(pair), shape)
            return tuple(k if size is None else size for size, k in zip(shape, known, strict=True))

        pairs = tuple(replace(p, shape=given.get(p.past) or shape_of(p)) for p in self.pairs)
        context = min(filter(None, (self.context, sizes.context)), default=None)
        return replace(self, pairs=pairs, context=context)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is generated in a measurement.

    Attributes:
        new_tokens: How many tokens follow each prompt.
    """

    decoder: Decoder
    new_tokens: PositiveWhole


@dataclass(frozen=True, kw_only=True)
class HeadSizes:
    """What ``genai_config.json`` or ``config.json`` beside a model says of its caches."""

    heads: Whole | None = None
    head_size: Whole | None = None
    context: Whole | None = None


def pairs_by_name(inputs: Sequence[Port], outputs: Sequence[Port]) -> dict[str, str]:
    """Returns the names of present outputs by those of past inputs, as exporters name them."""
    stems: dict[str, str] = {}
    for output in outputs:
        stems.setdefault(_PRESENT.sub("", output.name).strip("._"), output.name)
    by_name = {output.name: output for output in outputs}
    pairs: dict[str, str] = {}
    for tensor in inputs:
        stem = _PAST.sub("", tensor.name).strip("._")
        hidden = [f"{tensor.name}{end}" for end in _NEXT]
        is_past = stem != tensor.name and stem in stems
        names = [stems[stem]] if is_past else [name for name in hidden if name in by_name]
        fitting = [name for name in names if fits(tensor, by_name[name])]
        if fitting and fitting[0] not in pairs.values():
            pairs[tensor.name] = fitting[0]
    return pairs


def fits(past: Port, present: Port) -> bool:
    """Returns whether an output can be fed to an input: rank, type and fixed sizes are the same."""
    if past.dtype != present.dtype or len(past.shape) != len(present.shape):
        return False
    differing = [
        axis
        for axis, (a, b) in enumerate(zip(past.shape, present.shape, strict=True))
        if isinstance(a, int) and isinstance(b, int) and a != b
    ]
    return not differing


def decoder_of(
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    pairs: Mapping[str, str],
    *,
    axes: Mapping[str, int] | None = None,
    crosses: Collection[str] = (),
    bounds: Mapping[str, int] | None = None,
    tokens_name: str | None = None,
) -> Decoder | None:
    """Returns how a model with these inputs and outputs generates; None without pairs.

    Args:
        pairs: Names of present outputs by those of past inputs.
        axes: The dimension along which a cache grows, by input, as far as the graph shows it.
        crosses: Inputs that are caches of cross-attention, as far as the graph shows it.
        bounds: How many rows the tables have that inputs index.
        tokens_name: The input of token ids; None finds it by its name or by `bounds`.
    """
    if not pairs:
        return None
    ports = {port.name: port for port in (*inputs, *outputs)}
    made = tuple(
        _pair(ports[past], ports[present], (axes or {}).get(past), past in crosses)
        for past, present in pairs.items()
    )
    free = [port for port in inputs if port.name not in pairs]
    tokens = ports[tokens_name] if tokens_name else _tokens(free, bounds or {})
    logits = _logits([port for port in outputs if port.name not in pairs.values()])
    branch = _named(free, lambda p: p.dtype == "bool" and len(p.shape) <= 1)
    # a mask of what an encoder gives is no mask of the tokens, and has the same at each step
    encoded = {p.shape[1] for p in free if len(p.shape) == 3 and isinstance(p.shape[1], str)}
    positions = _named(
        free,
        lambda p: "position" in p.name.lower() and "int" in p.dtype and len(p.shape) in (1, 2),
    )
    mask = _named(
        free,
        lambda p: (
            "mask" in p.name.lower()
            and "encoder" not in p.name.lower()
            and len(p.shape) == 2
            and p.shape[1] not in encoded
        ),
    )
    roles = {port.name for port in (tokens, mask, positions, branch) if port}
    width = logits.shape[-1] if logits else None
    return Decoder(
        pairs=made,
        tokens=_name(tokens),
        logits=_name(logits),
        mask=_name(mask),
        positions=_name(positions),
        branch=_name(branch),
        others=tuple(port.name for port in free if port.name not in roles),
        vocabulary=width if isinstance(width, int) else None,
        context=(bounds or {}).get(positions.name) if positions else None,
        token_dtype=tokens.dtype if tokens else "int64",
        rates_prompts=tokens is None or logits is None or _has_rows(tokens, logits),
    )


def _pair(past: Port, present: Port, axis: int | None, is_cross: bool) -> Pair:
    is_cross = is_cross or "encoder" in past.name or "cross" in past.name
    if axis is None:
        axis = _growing(past, present)
    kind = CROSS if is_cross else STATE if axis is None else CACHE
    sizes = [size if isinstance(size, int) else None for size in past.shape]
    open_axes = [i for i, size in enumerate(sizes) if size is None]
    if axis is not None and sizes[axis] is None:
        sizes[axis] = 0
    batch = _batch_of(past, open_axes, axis, is_cross=is_cross)
    if batch is not None:
        sizes[batch] = 1
    if kind == CROSS:  # the first step gives it the length of the encoder's output
        lengths = (2,) if len(sizes) == 4 else range(len(sizes))
        sizes = [0 if i in lengths and size is None else size for i, size in enumerate(sizes)]
    return Pair(
        past=past.name,
        present=present.name,
        kind=kind,
        axis=axis,
        batch=batch,
        dtype=past.dtype,
        shape=tuple(sizes),
    )


def _batch_of(
    past: Port, open_axes: Sequence[int], axis: int | None, *, is_cross: bool
) -> int | None:
    """Returns the dimension of the batch: the one named so, or the first open one.

    Of a cache with heads it is the first or none: an open number of heads is no batch.
    """
    named = [i for i in open_axes if "batch" in str(past.shape[i]).lower()]
    has_heads = len(past.shape) == 4 and (is_cross or axis in (1, 2))
    first = [i for i in open_axes if i != axis and not (has_heads and i != _BATCH_AXIS)]
    return next(iter(named or first), None)


def _growing(past: Port, present: Port) -> int | None:
    """Returns the dimension along which an input grows by its names; None where it has one size."""
    pairs = list(zip(past.shape, present.shape, strict=True))
    named = [
        i
        for i, (a, b) in enumerate(pairs)
        if isinstance(a, str) and a != b and i != _BATCH_AXIS and "batch" not in a
    ]
    lengths = [i for i in named if re.search("seq|past|len|total|kv", str(pairs[i][0]))]
    if lengths or named:
        return (lengths or named)[0]
    # [batch, heads, tokens, head size], where the model names nothing
    is_open = len(pairs) == 4 and pairs[2][0] is None
    return 2 if is_open else None


def _form(pair: Pair) -> tuple[str, int | None, int]:
    """Returns what pairs of the same sizes have in common."""
    return pair.kind, pair.axis, len(pair.shape)


def _given(pair: Pair, shape: Sequence[int]) -> tuple[int | None, ...]:
    if len(shape) != len(pair.shape) or (pair.batch is not None and shape[pair.batch] != 1):
        batch = "" if pair.batch is None else f", and 1 for dimension {pair.batch}"
        raise RequestError(
            f"the shape {list(shape)} of '{pair.past}' is not that of one sequence; give "
            f"{len(pair.shape)} sizes{batch}"
        )
    return tuple(0 if i == pair.axis else size for i, size in enumerate(shape))


def _with_heads(pair: Pair, sizes: HeadSizes) -> tuple[int | None, ...]:
    """Returns a cache's shape with the sizes of its heads, where the model leaves them open."""
    shape = list(pair.shape)
    if len(shape) == 4 and pair.axis in (1, 2):
        shape[3] = sizes.head_size if shape[3] is None else shape[3]
        heads = 3 - pair.axis
        shape[heads] = sizes.heads if shape[heads] is None else shape[heads]
    return tuple(shape)


def _tokens(inputs: Sequence[Port], bounds: Mapping[str, int]) -> Port | None:
    """Returns the input of token ids: whole numbers that index a table, or are named like it."""
    whole = [port for port in inputs if port.dtype in ("int64", "int32") and len(port.shape) == 2]
    for name in _TOKENS:
        for port in whole:
            if port.name == name:
                return port
    others = [p for p in whole if "position" not in p.name and "mask" not in p.name]
    indexing = [port for port in others if port.name in bounds]
    return max(indexing, key=lambda port: bounds[port.name], default=None)


def _logits(outputs: Sequence[Port]) -> Port | None:
    """Returns the output of logits: floats over the vocabulary, by name or the only such one."""
    floats = [p for p in outputs if p.dtype in _FLOATS and len(p.shape) in (2, 3)]
    for name in _LOGITS:
        for port in floats:
            if port.name == name:
                return port
    return floats[0] if len(floats) == 1 else None


def _has_rows(tokens: Port, logits: Port) -> bool:
    """Returns whether logits may have a row for each token."""
    has_axis = len(logits.shape) > len(tokens.shape)
    return has_axis and (logits.shape[-2] != 1 or tokens.shape[-1] == 1)


def _named(ports: Sequence[Port], fitting: Callable[[Port], bool]) -> Port | None:
    return next((port for port in ports if fitting(port)), None)


def _name(port: Port | None) -> str | None:
    return None if port is None else port.name
