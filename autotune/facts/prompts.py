"""The workload of a decoder: prompts, how many tokens follow them, and text that rates answers.

A sample is the feed of a first step: the prompt's tokens beside empty caches. Everything that runs
single samples (inspections, calibration, the ranking of nodes) can use it as it is.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.decoder import Decoder, Plan
from autotune.deploy.files import is_file, parse_json, read_text
from autotune.deploy.records import is_unicode_text
from autotune.errors import DataError, FormatError, RequestError, did_you_mean, shown
from autotune.facts.feeds import Feed
from autotune.facts.model import Model
from autotune.facts.model_facts import in_brackets
from autotune.facts.tokens import LONGEST, Encoded, encode
from autotune.facts.usual_sizes import usual_shapes
from autotune.facts.values import Variant, feed_of
from autotune.facts.workload import Workload, evenly

Ids = NDArray[np.int64]

PROMPT_TOKENS = (64,)
"""Lengths of generated prompts where none are named."""

NEW_TOKENS = 64
"""How many tokens follow a prompt where no number is named."""

TOKENIZER = "tokenizer.json"
"""The tokenizer's file, beside the model or beside the prompts."""

# Each time slice has a step of every length.
_MOST_TIMED = 3
# A window of text is read at once: its logits are in memory, 200 kB a token.
WINDOW = 256
"""The most tokens of a window of held text."""

# So many tokens tell a rise of the perplexity by 2 % from none, at 3 s for a model of 100 million.
_MOST_HELD = 4096
_FEWEST_HELD = 3  # a token, and two that are decoded with its cache
_LARGEST_BYTES = 1 << 24
_MOST_LINES = 100_000
_ALL_SEEN = Variant(mask=1)
_KEYS = ("prompt", "text", "tokens", "held_tokens")


@dataclass(frozen=True)
class _Lines:
    """The lines of a file of prompts: texts or token ids, to be timed and to be held."""

    prompts: tuple[str | tuple[int, ...], ...]
    held: tuple[str | tuple[int, ...], ...]


def workload_of_prompts(
    model: Model,
    prompts: Path | None = None,
    lengths: Sequence[int] = (),
    new_tokens: int | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    constants: Feed | None = None,
) -> Workload:
    """Returns the workload of a decoder.

    Args:
        prompts: A file with a JSON object in each line; None generates prompts of random tokens.
        constants: The inputs that are the same in all steps; made up if there are none.

    Raises:
        RequestError: the model is no decoder, a shape does not fit it, or a prompt is longer than
            its context.
        DataError: the file of prompts, or the tokenizer, cannot be used.
    """
    decoder = _complete(model, shapes or {})
    half = max(1, (decoder.context or LONGEST) // 2)
    new_tokens = new_tokens or min(NEW_TOKENS, half)
    random = np.random.default_rng(seed)
    if prompts is None:
        vocabulary = _vocabulary(model, decoder)
        if vocabulary is None:
            raise RequestError(
                f"{model.path.name} does not say how many tokens there are; bring prompts with "
                "--generate"
            )
        sizes = lengths or [min(size, half) for size in PROMPT_TOKENS]
        _check_context(decoder, sizes, new_tokens)
        timed = [random.integers(0, vocabulary, size) for size in sizes]
        held: list[Ids] = []
        notes = [
            f"the model is a decoder: prompts of {_listed(sizes)} random tokens are timed",
            f"each of them is followed by {new_tokens} tokens; --generate FILE brings your prompts",
            "perplexity is compared on text that the unoptimised model writes itself",
        ]
    else:
        timed, held, notes = _users(model, decoder, prompts, new_tokens)
    others = dict(constants or _others(model, decoder, shapes or {}, random))
    if others and not constants:
        if decoder.changing:
            raise RequestError(
                f"{model.path.name} takes {', '.join(decoder.changing)}, which by the name changes "
                "with each step, and autotune does not know how; name what is fed back with "
                "--set pair=past=present, or bring what is the same in all steps with --data"
            )
        notes.append(
            f"{', '.join(others)}: made up; --data NPZ brings what is the same in all steps"
        )
    return Workload(
        feeds=tuple(first_feed(decoder, ids, others, model) for ids in timed),
        source="user" if held else "generated",
        notes=tuple(notes),
        plan=Plan(decoder=decoder, new_tokens=new_tokens),
        held=tuple(held),
    )


def first_feed(
    decoder: Decoder, ids: Ids, others: Mapping[str, NDArray[Any]], model: Model
) -> Feed:
    """Returns what the first step of a generation feeds: a prompt beside empty caches."""
    dtypes = {tensor.name: tensor.dtype for tensor in model.inputs}
    ranks = {tensor.name: len(tensor.shape) for tensor in model.inputs}
    feed: dict[str, NDArray[Any]] = dict(others)
    feed[str(decoder.tokens)] = ids.astype(decoder.token_dtype).reshape(1, -1)
    if decoder.mask:
        feed[decoder.mask] = np.ones((1, len(ids)), dtypes[decoder.mask])
    if decoder.positions:
        positions = np.arange(len(ids), dtype=dtypes[decoder.positions])
        feed[decoder.positions] = positions if ranks[decoder.positions] == 1 else positions[None]
    if decoder.branch:
        feed[decoder.branch] = np.array([False])
    for pair in decoder.pairs:
        feed[pair.past] = np.zeros([size or 0 for size in pair.shape], pair.dtype)
    return {tensor.name: feed[tensor.name] for tensor in model.inputs}


def _complete(model: Model, shapes: Mapping[str, Sequence[int]]) -> Decoder:
    """Returns the model's decoder with all sizes known.

    Raises:
        RequestError: it is none, a shape does not fit, or a size is open.
    """
    name = model.path.name
    decoder = model.decoder
    if decoder is None:
        raise RequestError(
            f"{name} is no decoder: none of its outputs is an input of the next step; name the "
            "pairs with --set pair=past=present, or leave --generate out"
        )
    if not decoder.generates:
        what = "input of token ids" if decoder.tokens is None else "output of logits"
        raise RequestError(f"{name} generates no tokens: it has no {what}; leave --generate out")
    inputs = {tensor.name: tensor for tensor in model.inputs}
    for own, shape in shapes.items():
        if own not in inputs:
            raise RequestError(
                f"--shape: {name} has no input '{own}'.{did_you_mean(own, inputs)} "
                f"Its inputs are {', '.join(inputs)}."
            )
        if own not in (*decoder.others, *(pair.past for pair in decoder.pairs)):
            raise RequestError(
                f"--shape {own}: the prompts give it its sizes; leave it out, or run single steps "
                f"with --shape {decoder.tokens}=1,16 and without --generate and its options"
            )
        if problem := inputs[own].misfit(shape):
            raise RequestError(f"--shape {own}={','.join(map(str, shape))}: {problem}")
    complete = decoder.completed(model.head_sizes, shapes)
    unknown = complete.open_shape
    if unknown is not None:
        raise RequestError(
            f"{name} leaves sizes of '{unknown.past}' open ({in_brackets(unknown.shape)}), and "
            "neither genai_config.json nor config.json beside it has sizes that can be; give them "
            f"with --shape {unknown.past}=1,3,1,64"
        )
    return complete


def _vocabulary(model: Model, decoder: Decoder) -> int | None:
    """Returns how many tokens there are; None where nothing tells."""
    bounds = [t.index_bound for t in model.inputs if t.name == decoder.tokens and t.index_bound]
    return min([size for size in (decoder.vocabulary, *bounds) if size], default=None)


def _users(
    model: Model, decoder: Decoder, path: Path, new_tokens: int
) -> tuple[list[Ids], list[Ids], list[str]]:
    """Returns the user's prompts that are timed, the held text in windows, and notes."""
    lines = _read(path)
    encoded = _encoded(model, path, lines)
    _check_ids(model, decoder, path, encoded)
    _check_context(decoder, [len(ids) for ids in encoded.prompts], new_tokens)
    prompts = sorted(encoded.prompts, key=len)
    one_of_each = list({len(ids): ids for ids in prompts}.values())
    timed = [np.asarray(ids) for ids in evenly(one_of_each, _MOST_TIMED)]
    own = bool(encoded.held)
    size = min(WINDOW, decoder.context or WINDOW)
    held = _windows(encoded.held if own else encoded.prompts, size)
    tokens = sum(len(ids) - 1 for ids in held)
    lengths = _listed(sorted(map(len, timed)))
    notes = [
        f"prompts: {len(prompts)} from {path}; those of {lengths} tokens are timed",
        f"each of them is followed by {new_tokens} tokens",
        f"perplexity is compared on {tokens} tokens of {'held text' if own else 'the prompts'}"
        if tokens
        else "perplexity is compared on text that the model writes",
    ]
    return timed, held, notes


def _windows(texts: Sequence[Sequence[int]], size: int) -> list[Ids]:
    """Returns texts cut into windows, at most as many as are compared, spread over all."""
    windows = [
        np.asarray(ids[start : start + size])
        for ids in texts
        for start in range(0, len(ids), size)
        if len(ids[start : start + size]) >= _FEWEST_HELD
    ]
    total = sum(map(len, windows))
    if total <= _MOST_HELD:
        return windows
    return list(evenly(windows, max(1, math.floor(len(windows) * _MOST_HELD / total))))


def _read(path: Path) -> _Lines:
    """Returns the lines of a file of prompts.

    Raises:
        DataError: it cannot be read, holds no prompt, or a line is none.
    """
    try:
        text = read_text(path, _LARGEST_BYTES)
    except FormatError as error:
        raise DataError(f"--generate: cannot read {path}: {error}") from None
    prompts: list[str | tuple[int, ...]] = []
    held: list[str | tuple[int, ...]] = []
    # other separators of lines, which `splitlines` knows, may be in the text of a prompt
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        if number > _MOST_LINES:
            raise DataError(f"--generate: {path} has more than {_MOST_LINES} lines")
        key, value = _line(path, number, line)
        (held if key in ("text", "held_tokens") else prompts).append(value)
    if not prompts:
        raise DataError(
            f"--generate: {path} holds no prompt; write a JSON object in each line, such as "
            '{"prompt": "Once upon a time"} or {"tokens": [1, 15, 27]}'
        )
    return _Lines(tuple(prompts), tuple(held))


def _line(path: Path, number: int, line: str) -> tuple[str, str | tuple[int, ...]]:
    """Returns the key and the value of a line."""
    try:
        data = parse_json(line)
    except FormatError as error:
        raise DataError(f"--generate: {path}, line {number}: {error}") from None
    if isinstance(data, str):
        data = {"prompt": data}
    if not isinstance(data, dict) or len(data) != 1 or next(iter(data)) not in _KEYS:
        raise DataError(
            f"--generate: {path}, line {number}: {shown(data)} is no prompt; write one of "
            f"{', '.join(_KEYS)} with its value"
        )
    key, value = next(iter(data.items()))
    if isinstance(value, str | list) and len(value) > LONGEST:
        raise DataError(
            f"--generate: {path}, line {number}: '{key}' is longer than {LONGEST} characters or "
            "tokens; make several lines of it"
        )
    if isinstance(value, str) and not is_unicode_text(value):
        raise DataError(
            f"--generate: {path}, line {number}: '{key}' holds half of a pair of surrogates, "
            "which is no text; write the whole character"
        )
    if key in ("prompt", "text") and isinstance(value, str) and value:
        return key, value
    is_ids = isinstance(value, list) and all(type(i) is int and 0 <= i < 1 << 31 for i in value)
    if key in ("tokens", "held_tokens") and is_ids and value:
        return key, tuple(value)
    raise DataError(
        f"--generate: {path}, line {number}: '{key}' holds {shown(value)}; 'prompt' and 'text' "
        "hold text, 'tokens' and 'held_tokens' a list of token ids"
    )


def _encoded(model: Model, path: Path, lines: _Lines) -> Encoded:
    """Returns all lines as token ids."""
    everything = (*lines.prompts, *lines.held)
    texts = [value for value in everything if isinstance(value, str)]
    ids = iter(encode(_tokenizer(model, path), texts) if texts else ())
    tokens = [tuple(next(ids)) if isinstance(v, str) else v for v in everything]
    if not all(tokens[: len(lines.prompts)]):
        raise DataError(f"--generate: a prompt in {path} has no tokens")
    return Encoded(
        prompts=tuple(tokens[: len(lines.prompts)]), held=tuple(tokens[len(lines.prompts) :])
    )


def _tokenizer(model: Model, path: Path) -> Path:
    """Returns the tokenizer's file.

    Raises:
        DataError: there is none.
    """
    places = [model.path.parent / TOKENIZER, path.parent / TOKENIZER]
    for place in places:
        if is_file(place):
            return place
    raise DataError(
        f"--generate: {path} holds text, and there is no {TOKENIZER} in {places[0].parent} or "
        f"{places[1].parent}; put it there, or write token ids: {json.dumps({'tokens': [1, 15]})}"
    )


def _check_ids(model: Model, decoder: Decoder, path: Path, encoded: Encoded) -> None:
    """Refuses tokens that the model does not have."""
    vocabulary = _vocabulary(model, decoder)
    largest = max(max(ids) for ids in (*encoded.prompts, *encoded.held) if ids)
    if vocabulary is not None and largest >= vocabulary:
        raise DataError(
            f"--generate: {path} gives the token {largest}, and {model.path.name} has {vocabulary} "
            "tokens: the tokenizer or the ids are another model's"
        )


def _check_context(decoder: Decoder, lengths: Sequence[int], new_tokens: int) -> None:
    """Refuses prompts that leave no room in the context."""
    longest = max(lengths)
    if decoder.context and longest + new_tokens > decoder.context:
        raise RequestError(
            f"a prompt of {longest} tokens and {new_tokens} new ones are more than the model's "
            f"context of {decoder.context}; shorten it, or name fewer new_tokens"
        )


def _others(
    model: Model,
    decoder: Decoder,
    shapes: Mapping[str, Sequence[int]],
    random: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """Returns made-up values of the inputs that are the same in all steps."""
    usual = next(usual_shapes(model.inputs, shapes))
    tensors = [tensor for tensor in model.inputs if tensor.name in decoder.others]
    made = dict(feed_of(tensors, usual, random, variant=_ALL_SEEN))
    for name in made:
        if "logits_to_keep" in name:  # 0 keeps those of all tokens
            made[name] = np.zeros_like(made[name])
    return made


def _listed(sizes: Sequence[int]) -> str:
    return re.sub(r", ([0-9]+)$", r" and \1", ", ".join(map(str, sizes)))
