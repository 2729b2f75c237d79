"""A copy of the model that carries its session options in its metadata.

ONNX Runtime reads them only where the environment has ``ORT_LOAD_CONFIG_FROM_MODEL=1``, and then
they take the place of the caller's own.
"""

import json
import mmap
from pathlib import Path, PurePath

from autotune.deploy.config import TunedConfig
from autotune.deploy.files import open_file
from autotune.errors import RequestError
from autotune.export.rendering import Copy, Rendering, Target, processor_needs

KEY = "ort_config"
"""The metadata key that ONNX Runtime looks for."""

OPTIONS = (
    *("intra_op_num_threads", "inter_op_num_threads"),
    *("execution_mode", "graph_optimization_level"),
)
"""The options that ONNX Runtime reads."""

NUMBERS = {
    "ORT_PARALLEL": 1,
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
}
"""Their values as numbers: ONNX Runtime refuses texts, and ignores other keys."""

_TARGET = Target(
    options={name: name for name in OPTIONS},
    values=NUMBERS,
    entries=(),
    dimensions=False,
    allocator=False,
    run_entries=False,
)
# Numbers of the fields in onnx.proto: ModelProto.metadata_props, StringStringEntryProto.
_METADATA_PROPS, _ENTRY_KEY, _ENTRY_VALUE = 14, 1, 2


def render(config: TunedConfig, _config_name: str, _model_name: str) -> Rendering:
    """Returns a copy of the model beside the config, with one more entry in its metadata.

    A field that follows a message of protocol buffers is merged into it, so the model is not
    parsed.
    """
    text = json.dumps({"session_options": _TARGET.options_of(config.session)})
    entry = _field(_ENTRY_KEY, KEY.encode()) + _field(_ENTRY_VALUE, text.encode())
    path = PurePath(config.model.file)
    copy = f"{path.stem}.ort_config{path.suffix}"
    lost = tuple(_TARGET.lost(config.session))
    return Rendering(
        texts={},
        copies={copy: Copy(source=path.name, appended=_field(_METADATA_PROPS, entry))},
        lost=lost,
        needs=processor_needs(config, lost),
        use=f"open {copy} with ORT_LOAD_CONFIG_FROM_MODEL=1 in the environment",
    )


def check_model(model: Path) -> None:
    """Refuses a model that has such an entry already: ONNX Runtime takes the first one.

    Raises:
        RequestError: it has one.
    """
    key = _field(_ENTRY_KEY, KEY.encode())
    with open_file(model) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data.find(key) >= 0:
            raise RequestError(
                f"{model} carries {KEY} in its metadata already, and ONNX Runtime takes the first; "
                "remove that entry from the model and run `autotune study` on it, or export the "
                "config to python"
            )


def _field(number: int, data: bytes) -> bytes:
    """Returns a length-delimited field of protocol buffers."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*groups, value])
