"""How an application opens a session today, as a config can say it."""

from collections.abc import Mapping, Sequence

from autotune.applications.recording import OpenedSession
from autotune.deploy.options import ATTRIBUTES, SESSION_ENTRIES, Value
from autotune.deploy.passed import Passed, working
from autotune.deploy.providers import CPU
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError


def today_session(opened: OpenedSession, available: Sequence[str]) -> SessionConfig:
    """Returns how a session is opened, on the execution providers that it got.

    Options of the CPU provider are left out, because ONNX Runtime does not read them.

    Args:
        opened: The session.
        available: The execution providers of this ONNX Runtime.

    Raises:
        ConfigError: a config cannot say it, or this ONNX Runtime cannot open it so; the message
            says why.
    """
    passed = opened.passed
    unknown = [
        *passed.foreign,
        *(name for name in passed.options if name not in ATTRIBUTES),
        *(name for name in passed.entries if name not in SESSION_ENTRIES),
    ]
    if unknown:
        raise ConfigError(f"it sets {', '.join(unknown)}, which a config cannot hold")
    used = working(opened.providers)
    if lacking := [name for name in used if name not in available]:
        raise ConfigError(
            f"it runs on {', '.join(lacking)}, which this ONNX Runtime lacks; install autotune "
            "beside the ONNX Runtime of the application and study it there"
        )
    chosen = {item.name: dict(item.options) for item in passed.providers or () if item.name != CPU}
    providers = [[name, chosen.get(name, {})] for name in used]
    return SessionConfig.from_json(
        {
            "providers": providers,
            "options": dict(passed.options),
            "entries": dict(passed.entries),
            "free_dimensions": dict(passed.dimensions),
            "disabled_optimizers": list(passed.disabled_optimizers),
        },
        "the recorded session",
    )


def today_parameters(passed: Passed) -> Mapping[str, Value]:
    """Returns the same in parameters of a search, as far as there are some."""
    values: dict[str, Value] = dict(passed.options)
    if values.pop("enable_cpu_mem_arena", True) is False:
        values["arena"] = "off"
    entries = dict(passed.entries)
    if entries.pop("session.intra_op.allow_spinning", "1") == "0":
        values["spinning"] = "off"
    return {**values, **entries}
