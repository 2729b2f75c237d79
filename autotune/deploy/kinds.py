"""What a path names where a command wants something else, and what to type for it.

Standard library only, because the loader reads configs.
"""

import itertools
from collections.abc import Mapping
from pathlib import Path

from autotune.deploy.files import is_file, is_folder
from autotune.errors import did_you_mean, shown, system_fault, typed

MODEL, CONFIG, STUDY = "an ONNX model", "a tuned config", "the folder of a study"
RECORDING, APPLICATION = "a recording", "a tuned application"
"""What commands take."""

_FOLDER = "a folder"
_MODEL_END = ".onnx"
_CONFIG_NAME = "best.json"
# A folder of more files than that is not searched for a name like the one that was typed.
_MOST_NAMES = 1000

# What is not ONNX, by its ending: what it is, and what makes ONNX of it. {path} is quoted for a
# shell, and {onnx} is the same name with the ending of a model.
_TORCH = (
    "a file of PyTorch",
    "export it in Python: torch.onnx.export(model, args, '{onnx}')",
)
_WEIGHTS = (
    "a file of weights without a graph",
    "export the model that they belong to: optimum-cli export onnx --model NAME|DIR OUT",
)
_KERAS = ("a model of Keras", "export it in Python: model.export('{onnx}', format='onnx')")
_PICKLE = ("a pickle", "export a model of scikit-learn in Python: skl2onnx.to_onnx(model, x[:1])")
_BUILT = ("a model in the form of one runtime", "name the .onnx file from which it was made")
_OTHERS: Mapping[str, tuple[str, str]] = {
    ".pt": _TORCH,
    ".pth": _TORCH,
    ".ckpt": _TORCH,
    ".pt2": _TORCH,
    ".safetensors": _WEIGHTS,
    ".gguf": _WEIGHTS,
    ".tflite": (
        "a model of TensorFlow Lite",
        "export it: python -m tf2onnx.convert --tflite {path} --output {onnx}",
    ),
    ".pb": (
        "a graph of TensorFlow",
        "export its SavedModel: python -m tf2onnx.convert --saved-model DIR --output {onnx}",
    ),
    ".h5": _KERAS,
    ".keras": _KERAS,
    ".pkl": _PICKLE,
    ".joblib": _PICKLE,
    ".ort": _BUILT,
    ".engine": _BUILT,
    ".plan": _BUILT,
    ".xml": _BUILT,
}

_HUGGING_FACE = (
    "a model of Hugging Face",
    "export it: optimum-cli export onnx --model {path} OUT",
)
# What a folder is, by a file in it.
_FOLDERS: Mapping[str, tuple[str, str]] = {
    "recording.json": (RECORDING, "`autotune study {path}` tunes it"),
    "application.json": (APPLICATION, "`autotune run {path} -- COMMAND` runs it"),
    "front.json": (STUDY, "`autotune show {path}` shows its result"),
    "study.db": (STUDY, "`autotune study {path}` continues it"),
    "best.json": ("a config without its study", "`autotune check {path}` looks at it"),
    "saved_model.pb": (
        "a SavedModel of TensorFlow",
        "export it: python -m tf2onnx.convert --saved-model {path} --output {onnx}",
    ),
    "model.safetensors": _HUGGING_FACE,
    "pytorch_model.bin": _HUGGING_FACE,
}

# Files of ours in such a folder, each of which stands for it.
_PARTS = ("recording.json", "application.json", "front.json", "study.db")


def mistaken(path: Path, wanted: str) -> str:
    """Returns what a path is instead of what a command wants, and what to type for it.

    Args:
        wanted: What the command takes, such as :data:`CONFIG`.

    Returns:
        A sentence without its mark; empty where the path may be what is wanted, or nothing is known
        of it.
    """
    try:
        path.stat()
    except (FileNotFoundError, ValueError):  # ValueError: a null character
        return _absent(path, wanted)
    except OSError as fault:
        return str(system_fault(fault) or fault)
    kind, remedy = _kind(path)
    if kind in ("", wanted) or (kind == _FOLDER and wanted in (STUDY, APPLICATION)):
        return ""
    return f"{_shown(path)} is {kind}, not {wanted}; {remedy}"


def is_folder_of(kind: str, path: str | Path) -> bool:
    """Returns whether a path is a folder of a kind, by the files in it."""
    return _kind_of_folder(Path(path))[0] == kind


def _absent(path: Path, wanted: str) -> str:
    """Returns that there is no such path, and what may be meant."""
    kind, remedy = _kind_of_folder(path.parent) if path.name == _CONFIG_NAME else ("", "")
    if kind not in ("", STUDY):
        return f"{_shown(path.parent)} is {kind}, not {wanted}; {remedy}"
    if kind == STUDY:
        has_ended = is_file(path.parent / "front.json")
        rest = "`autotune pick {path}` writes it" if has_ended else "`autotune study {path}` does"
        return f"{_shown(path.parent)} holds no {path.name} yet; {_typed(rest, path.parent)}"
    return f"there is no file or folder {_shown(path)}.{_meant(path)}".removesuffix(".")


def _meant(path: Path) -> str:
    """Returns a question for the file or folder whose name is like that of `path`."""
    try:
        names = [each.name for each in itertools.islice(path.parent.iterdir(), _MOST_NAMES)]
    except (OSError, ValueError):
        return ""
    for name in (f"{path.name}{_MODEL_END}", f"{path.name}.autotune"):
        if name in names:
            return f" Did you mean '{name}'?"
    # the ending alone makes no name alike
    alike = [name for name in names if did_you_mean(path.stem, [Path(name).stem])]
    return did_you_mean(path.name, alike)


def _kind(path: Path) -> tuple[str, str]:
    """Returns what is at a path, and what to type for it; empty where nothing is known of it."""
    if is_folder(path):
        known = _kind_of_folder(path)
        if known[0]:
            return known
        if models := sorted(path.glob(f"*{_MODEL_END}")):
            return "a folder of models", f"name one of them: {typed(models[0])}"
        return _FOLDER, "name a file"
    if path.suffix == _MODEL_END:
        return MODEL, _typed("`autotune study {path}` tunes it and writes its config", path)
    if path.name in _PARTS:
        return f"a file in {_FOLDERS[path.name][0]}", f"name the folder, {_shown(path.parent)}"
    if path.name == _CONFIG_NAME:
        return CONFIG, f"name the model, or the folder of its study, {_shown(path.parent)}"
    kind, remedy = _OTHERS.get(path.suffix.lower(), ("", ""))
    return kind, _typed(remedy, path)


def _kind_of_folder(folder: Path) -> tuple[str, str]:
    """Returns what a folder is by the files in it, and what to type for it; or empty texts."""
    for name, (kind, remedy) in _FOLDERS.items():
        if is_file(folder / name):
            return kind, _typed(remedy, folder)
    return "", ""


def _typed(remedy: str, path: Path) -> str:
    """Returns a remedy with the names that a user types."""
    return remedy.format(path=typed(path), onnx=f"{path.stem}{_MODEL_END}")


def _shown(path: Path) -> str:
    """Returns a path as a message names it: in quotes where it is empty or not printable."""
    text = str(path)
    return text if text.isprintable() and text == text.strip() else shown(text)
