"""A folder that ONNX Runtime GenAI opens: the tuned model, and the user's own files beside it.

GenAI's ``genai_config.json`` says how the caches are named and when a text ends. The one beside the
original model is kept; its model file and its session options are replaced.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.deploy.config import TunedConfig
from autotune.deploy.files import is_file, read_json
from autotune.errors import FormatError, RequestError, shown
from autotune.export.rendering import Copy, Rendering, Target, identifier, processor_needs

CONFIG = "genai_config.json"
"""The file that GenAI reads first."""

_RESULT = "front.json"  # of a study; it names the model
_LARGEST_CONFIG_BYTES = 1 << 20
_LARGEST_RESULT_BYTES = 1 << 26
# What GenAI reads beside its config, as its builder writes it.
_BESIDE = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja"),
    *("processor_config.json", "preprocessor_config.json"),
)
_OPTIONS = (
    *("intra_op_num_threads", "inter_op_num_threads", "graph_optimization_level"),
    *("enable_mem_pattern", "enable_cpu_mem_arena"),
)
_LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT")

_TARGET = Target(
    options={name: name for name in _OPTIONS},
    values={level: level for level in _LEVELS},
    dimensions=False,
    allocator=False,
    run_entries=False,
)


def render(config: TunedConfig, _config_name: str, model_name: str) -> Rendering:
    """Returns the part of GenAI's config that a tuned config decides, and the model's files.

    :func:`complete` adds the user's part.
    """
    session = config.session
    folder = f"{identifier(model_name)}.genai"
    options = {**_TARGET.options_of(session), **_TARGET.entries_of(session)}
    lost = tuple(_TARGET.lost(session))
    decoder = {"filename": config.model.file, "session_options": options}
    return Rendering(
        texts={f"{folder}/{CONFIG}": _text({"model": {"decoder": decoder}})},
        copies={f"{folder}/{name}": Copy(source=name) for name in config.model.names},
        lost=lost,
        needs=processor_needs(config, lost),
        use=f'onnxruntime_genai.Model("{folder}")',
    )


def complete(rendering: Rendering, config_path: Path) -> Rendering:
    """Returns a rendering with what lies beside the model that was tuned.

    Args:
        config_path: The config; the result of its study beside it says where the model is.

    Raises:
        RequestError: there is no config of GenAI's beside the model.
    """
    source = _source(config_path.parent)
    (name, text) = next(iter(rendering.texts.items()))
    try:
        own = read_json(source / CONFIG, _LARGEST_CONFIG_BYTES)
        decoder = own["model"]["decoder"]
        chosen = json.loads(text)["model"]["decoder"]
        _check_alone(own["model"])
        kept = {
            key: value
            for key, value in decoder.get("session_options", {}).items()
            # the execution provider is part of what was tuned
            if key not in (*_OPTIONS, "provider_options") and not key.startswith("session.")
        }
        decoder.update(chosen, session_options={**kept, **chosen["session_options"]})
    except (FormatError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(
            f"--to genai needs {CONFIG} beside the model in {source}, and it cannot be used "
            f"({error}); ONNX Runtime GenAI's builder writes it"
        ) from None
    folder = name.rpartition("/")[0]
    beside = {
        f"{folder}/{file}": Copy(source=str((source / file).resolve()))
        for file in _BESIDE
        if is_file(source / file)
    }
    return replace(rendering, texts={name: _text(own)}, copies={**rendering.copies, **beside})


def _check_alone(model: Mapping[str, Any]) -> None:
    """Refuses a model of several files: the decoder alone would be in the folder."""
    others = [name for name, part in model.items() if name != "decoder" and _names_a_file(part)]
    if others:
        raise RequestError(
            f"--to genai writes the folder of a decoder alone, and {CONFIG} beside the model names "
            f"files for {', '.join(map(shown, others))} too. Copy that folder, put best.onnx and "
            "its data in the place of the decoder, and name it in the config"
        )


def _names_a_file(part: object) -> bool:
    return isinstance(part, Mapping) and "filename" in part


def _source(folder: Path) -> Path:
    """Returns the folder of the model that was tuned; the config's own where nothing says it."""
    try:
        result: Any = read_json(folder / _RESULT, _LARGEST_RESULT_BYTES)
        model = Path(result["model"])
    except (FormatError, KeyError, TypeError):
        return folder
    return model.parent if (model.parent / CONFIG).is_file() else folder


def _text(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=4) + "\n"
