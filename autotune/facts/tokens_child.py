"""The child of :mod:`autotune.facts.tokens`: reads a stranger's tokenizer and encodes texts."""

from pathlib import Path

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
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(read_text(Path(message["tokenizer"]), _LARGEST_BYTES))
    encodings = tokenizer.encode_batch(message["texts"], add_special_tokens=False)
    return Tokens(ids=tuple(tuple(encoding.ids) for encoding in encodings))


if __name__ == "__main__":
    serve({"encode": encode})
