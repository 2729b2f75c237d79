"""The model of an Olive workflow, with its inference settings."""

import json

from autotune.deploy.config import TunedConfig
from autotune.export.literals import identifier
from autotune.export.rendering import Rendering, Support, changed_options

_LEVELS = {
    "ORT_DISABLE_ALL": 0,
    "ORT_ENABLE_BASIC": 1,
    "ORT_ENABLE_EXTENDED": 2,
    "ORT_ENABLE_LAYOUT": 3,
}
_MODES = {"ORT_PARALLEL": 1}
_OPTIONS = {
    *("intra_op_num_threads", "inter_op_num_threads"),
    *("execution_mode", "graph_optimization_level"),
}


def render(config: TunedConfig, config_name: str, name: str) -> Rendering:
    """Returns the JSON of ``input_model`` in an Olive workflow."""
    session = config.session
    names = [provider for provider, _ in session.providers]
    # Olive hands the names of providers to ONNX Runtime as they are
    support = Support(
        options=_OPTIONS, providers=names, dimensions=False, allocator=False, run_entries=False
    )
    chosen: dict[str, object] = {
        option: {**_LEVELS, **_MODES}.get(str(value), value)
        for option, value in changed_options(session).items()
        if option in _OPTIONS
    }
    if entries := support.entries_of(session):
        chosen["extra_session_config"] = entries
    settings = {
        "execution_provider": names,
        "provider_options": [dict(options) for _, options in session.providers],
        "session_options": chosen,
    }
    model = {
        "type": "OnnxModel",
        "model_path": config.model.file,
        "inference_settings": settings,
    }
    file = f"{identifier(name)}_olive.json"
    return Rendering(
        texts={file: json.dumps({"input_model": model}, indent=2) + "\n"},
        lost=support.lost(session),
        use=f"put input_model of {file} into an Olive workflow, beside {config_name}",
    )
