"""Text to token ids, by the tokenizer beside a model; the package tokenizers works in a child."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from autotune.deploy.records import Whole
from autotune.errors import DataError
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.facts.tokens_child"
_TIME_LIMIT_S = 120


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
            "--generate with text needs the package tokenizers: pip install "
            "'ort-autotune[generate]', or write token ids"
        )
    with Child(_CHILD, memory_limit()) as child:
        request = {"do": "encode", "tokenizer": str(tokenizer.resolve()), "texts": list(texts)}
        try:
            reply = child.request(request, _TIME_LIMIT_S, Tokens)
        except ChildFailure as failure:
            raise DataError(f"--generate: {tokenizer} is no tokenizer: {failure.message}") from None
    if len(reply.ids) != len(texts):
        raise DataError(f"--generate: {tokenizer} gave tokens for {len(reply.ids)} texts")
    return reply.ids
