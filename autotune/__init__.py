"""autotune finds how ONNX Runtime runs a model fastest and leanest, with the same answers.

    session = autotune.load("model.autotune/best.json")   # an onnxruntime.InferenceSession
    result = autotune.tune("model.onnx", trials=100)       # the job of `autotune study`

Importing this package imports neither onnxruntime, onnx nor optuna: each name brings in what it
needs when it is first used, so that an application pays for the loader alone. It switches the
telemetry of ONNX Runtime off, which is decided when that is imported.
"""

from autotune.deploy.telemetry import switch_off as _switch_off

# a type checker takes this name for true; importing typing would take longer than all of this file
TYPE_CHECKING = False
if TYPE_CHECKING:
    from autotune.applications.start import record
    from autotune.deploy.applying import apply
    from autotune.deploy.generation import generation
    from autotune.deploy.loader import ConfigWarning, load, run_options, session_options
    from autotune.errors import AutotuneError, ConfigError
    from autotune.results.result import StudyResult
    from autotune.study.tune import tune

_switch_off()

__version__ = "0.1.0"

__all__ = [
    "AutotuneError",
    "ConfigError",
    "ConfigWarning",
    "StudyResult",
    "__version__",
    "apply",
    "generation",
    "load",
    "record",
    "run_options",
    "session_options",
    "tune",
]

_HOMES = {
    "AutotuneError": "autotune.errors",
    "ConfigError": "autotune.errors",
    "ConfigWarning": "autotune.deploy.loader",
    "StudyResult": "autotune.results.result",
    "apply": "autotune.deploy.applying",
    "generation": "autotune.deploy.generation",
    "load": "autotune.deploy.loader",
    "record": "autotune.applications.start",
    "run_options": "autotune.deploy.loader",
    "session_options": "autotune.deploy.loader",
    "tune": "autotune.study.tune",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'autotune' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
