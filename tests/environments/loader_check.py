"""Loads configs in an environment that has ONNX Runtime and NumPy alone; see README.md.

    python loader_check.py REPOSITORY SCRATCH

It ends with an AssertionError where the loader does not do what it should. Otherwise it prints the
version and the execution providers of ONNX Runtime.
"""

import importlib.util
import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

REPOSITORY, SCRATCH = Path(sys.argv[1]), Path(sys.argv[2])
DATA = REPOSITORY / "tests" / "data"
FEED = {name: np.ones((1, 1, size), np.float32) for name, size in (("frames", 4), ("state", 8))}
ABSENT = ("CUDAExecutionProvider", "OpenVINOExecutionProvider")
sys.path.insert(0, str(REPOSITORY))


def main() -> None:
    """Runs all checks."""
    import autotune

    heavy = [name for name in ("onnx", "optuna", "typer", "rich", "psutil") if _installed(name)]
    assert not heavy, f"the environment should not have {heavy}"
    autotune.load  # noqa: B018  # brings in onnxruntime, without its telemetry
    import onnxruntime

    expected = _expected(onnxruntime)
    for folder in ("study", "config"):
        _check_answers(autotune.load, DATA / folder / "best.json", expected)
    available = onnxruntime.get_available_providers()
    absent = next(name for name in ABSENT if name not in available)
    config = _requiring(absent)
    _check_fallback(autotune, config, absent, expected)
    if "OpenVINOExecutionProvider" in available:
        _check_provider(autotune.load, _requiring("OpenVINOExecutionProvider"), expected)
    exported = _vendored(config)
    _check_fallback(exported, None, absent, expected)
    sys.stdout.write(f"onnxruntime {onnxruntime.__version__}, {', '.join(available)}: ok\n")


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _expected(onnxruntime: Any) -> list[Any]:
    model = onnxruntime.InferenceSession(
        DATA / "study" / "best.onnx", providers=["CPUExecutionProvider"]
    )
    answers: list[Any] = model.run(None, FEED)
    return answers


def _check_answers(load: Any, config: Path, expected: list[Any], **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this machine did not tune it
        session = load(config, threads=1, **options)
    for answer, right in zip(session.run(None, FEED), expected, strict=True):
        np.testing.assert_allclose(answer, right, rtol=1e-4, atol=1e-5)


def _requiring(provider: str) -> Path:
    """Returns a copy of a frozen config that runs with an execution provider and requires it."""
    folder = SCRATCH / provider
    shutil.copytree(DATA / "config", folder)
    path = folder / "best.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["session"] = {"providers": [[provider, {}], ["CPUExecutionProvider", {}]]}
    data["requires"]["providers"] = [provider, "CPUExecutionProvider"]
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def _check_fallback(loader: Any, config: Path | None, absent: str, expected: list[Any]) -> None:
    """The provider is not there: default options with a warning, or an error.

    Args:
        loader: The package, or the exported file.
        config: The config; None for the exported file, which has one.
        absent: The provider.
        expected: The right answers.
    """
    arguments = [] if config is None else [config]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = loader.load(*arguments)
    assert [item.category for item in caught] == [loader.ConfigWarning], caught
    assert f"lacks the {absent}" in str(caught[0].message), caught[0].message
    assert session.get_providers() == ["CPUExecutionProvider"]
    for answer, right in zip(session.run(None, FEED), expected, strict=True):
        np.testing.assert_allclose(answer, right, rtol=1e-4, atol=1e-5)
    try:
        loader.load(*arguments, strict=True)
    except loader.ConfigError:
        return
    raise AssertionError("strict took a config whose provider is missing")


def _check_provider(load: Any, config: Path, expected: list[Any]) -> None:
    """The provider is there, and runs the model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = load(config)
    assert session.get_providers()[0] == "OpenVINOExecutionProvider"
    for answer, right in zip(session.run(None, FEED), expected, strict=True):
        np.testing.assert_allclose(answer, right, rtol=1e-2, atol=1e-3)


def _vendored(config: Path) -> Any:
    """Returns the module of `autotune export --to python`, imported without autotune."""
    from autotune.export.writing import export

    (path,) = export(config, "python").files
    for name in [name for name in sys.modules if name.split(".")[0] == "autotune"]:
        del sys.modules[name]
    sys.modules["autotune"] = None  # type: ignore[assignment]  # an import of it fails
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
