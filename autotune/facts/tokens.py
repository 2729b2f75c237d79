"""Text to token ids, by the tokenizer beside a model; the package tokenizers works in a child."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autotune.deploy.records import Whole
from autotune.errors import DataError
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.facts.tokens_child"
_TIME_LIMIT_S = 120.0

LONGEST = 1 << 17
"""The most characters, or tokens, of a line of prompts. What a child replies to so many of them,
four bytes each, is as long as an answer may be."""


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Prompts and held texts as token ids."""

    prompts: tuple[tuple[int, ...], ...]
    held: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """The reply of the child: the ids of each text."""

    ids: tuple[tuple[Whole, ...], ...]


def encode(tokenizer: Path, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Returns the token ids of texts.

    Args:
        tokenizer: The file ``tokenizer.json``.

    Raises:
        DataError: the package is missing, or the file is no tokenizer.
    """
    if find_spec("tokenizers") is None:
        raise DataError(
            "--generate with text needs the package tokenizers: pip install tokenizers; or write "
            "token ids"
        )
    tokens: list[tuple[int, ...]] = []
    end_s = time.monotonic() + _TIME_LIMIT_S
    with Child(_CHILD, memory_limit()) as child:
        for some in _parts(texts):
            request = {"do": "encode", "tokenizer": str(tokenizer.resolve()), "texts": some}
            try:
                reply = child.request(request, max(0.0, end_s - time.monotonic()), Tokens)
            except ChildFailure as failure:
                raise DataError(_refusal(tokenizer, failure)) from None
            if len(reply.ids) != len(some):
                raise DataError(f"--generate: {tokenizer} gave tokens for {len(reply.ids)} texts")
            tokens += reply.ids
    return tuple(tokens)


def _parts(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yields texts together, so many that they are not longer than the longest one."""
    some: list[str] = []
    for text in texts:
        if some and sum(map(len, some)) + len(text) > LONGEST:
            yield some
            some = []
        some.append(text)
    yield some


def _refusal(tokenizer: Path, failure: ChildFailure) -> str:
    """Returns one sentence that says why a tokenizer cannot be used."""
    if failure.kind == "timeout":
        return f"--generate: {tokenizer} took over {_TIME_LIMIT_S:.0f} s; write token ids"
    return f"--generate: {tokenizer} is no tokenizer: {failure.message}"
