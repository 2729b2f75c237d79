"""What exporters write beside a decoder: the sizes of its heads, and its context."""

from pathlib import Path
from typing import Any

from autotune.deploy.decoder import HeadSizes
from autotune.deploy.files import is_file, read_json
from autotune.errors import FormatError

GENAI_CONFIG = "genai_config.json"
"""The file of ONNX Runtime GenAI."""

CONFIG = "config.json"
"""The file of Transformers and Optimum."""

_LARGEST_BYTES = 1 << 20
_LARGEST_SIZE = 1 << 24
# Heads, or values of one, in sixteen times the largest models; more would be petabytes.
_LARGEST_HEAD = 1 << 12


def head_sizes(folder: Path) -> HeadSizes:
    """Returns what the files in a model's folder say; what they lack, or cannot say, is None."""
    genai, config = _read(folder / GENAI_CONFIG), _read(folder / CONFIG)
    model = _object(genai.get("model"))
    decoder = _object(model.get("decoder"))
    hidden, heads = (
        _size(config, "hidden_size", "n_embd", "d_model"),
        _size(config, "num_attention_heads", "n_head", "decoder_attention_heads"),
    )
    each = hidden // heads if hidden and heads and hidden % heads == 0 else None
    key_heads = (
        _size(decoder, "num_key_value_heads") or _size(config, "num_key_value_heads") or heads
    )
    return HeadSizes(
        heads=_of_head(key_heads),
        head_size=_of_head(_size(decoder, "head_size") or _size(config, "head_dim") or each),
        context=_size(model, "context_length")
        or _size(config, "max_position_embeddings", "n_positions", "max_target_positions"),
    )


def _read(path: Path) -> dict[str, Any]:
    """Returns the object in a file; an empty one where there is none that can be read."""
    if not is_file(path):
        return {}
    try:
        return _object(read_json(path, _LARGEST_BYTES))
    except FormatError:
        return {}


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _of_head(size: int | None) -> int | None:
    """Returns the size, or None where no model has it."""
    return size if size is not None and size <= _LARGEST_HEAD else None


def _size(data: dict[str, Any], *names: str) -> int | None:
    """Returns the first of these that is a size."""
    for name in names:
        value = data.get(name)
        if type(value) is int and 0 < value <= _LARGEST_SIZE:
            return value
    return None
