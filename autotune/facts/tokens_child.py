"""The child of :mod:`autotune.facts.tokens`: reads a stranger's tokenizer and encodes texts."""

from functools import cache
from pathlib import Path
from typing import Any

from autotune.deploy.files import read_text
from autotune.facts.tokens import Tokens
from autotune.process.child_end import Message, serve

# Those of large vocabularies have 35 MB.
_LARGEST_BYTES = 1 << 28


def encode(message: Message) -> Tokens:
    """Returns the token ids of ``texts``.

    Raises:
        Exception: whatever the package raises for a file that is no tokenizer.
    """
    encodings = _tokenizer(message["tokenizer"]).encode_batch(
        message["texts"], add_special_tokens=False
    )
    return Tokens(ids=tuple(tuple(encoding.ids) for encoding in encodings))


@cache
def _tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(read_text(Path(path), _LARGEST_BYTES))
    # such files may cut texts, or fill them up, for the batches of a training
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


if __name__ == "__main__":
    serve({"encode": encode})
