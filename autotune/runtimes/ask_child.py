"""The child that imports the ONNX Runtime of an environment and says what it is."""

import mmap
from collections.abc import Sequence
from pathlib import Path

from autotune.deploy.telemetry import switch_off
from autotune.process.child_end import Message, serve
from autotune.runtimes.answer import Accepted, RuntimeAnswer

switch_off()


def ask(message: Message) -> RuntimeAnswer:
    """Returns what the runtime is, and which of ``names`` its library does not hold.

    ONNX Runtime ignores session options that it does not know, without a word.
    """
    import onnxruntime

    place = Path(onnxruntime.__file__).parent
    return RuntimeAnswer(
        version=onnxruntime.__version__,
        build=onnxruntime.get_build_info(),
        providers=tuple(onnxruntime.get_available_providers()),
        place=str(place),
        unknown=_absent(message.get("names", []), place / "capi"),
    )


def open_model(message: Message) -> Accepted:
    """Returns whether the runtime opens the file ``model`` with default options."""
    import onnxruntime

    try:
        onnxruntime.InferenceSession(message["model"], providers=["CPUExecutionProvider"])
    except Exception as error:  # noqa: BLE001  # ONNX Runtime's own classes have no common one
        return Accepted(problem=str(error))
    return Accepted(problem="")


def _absent(names: Sequence[str], folder: Path) -> tuple[str, ...]:
    """Returns the names that no library in the folder holds; empty where there is no library."""
    left, libraries = set(names), 0
    for path in sorted(folder.iterdir()):
        if ".so" not in path.name and path.suffix not in {".pyd", ".dll", ".dylib"}:
            continue
        libraries += 1
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            left = {name for name in left if data.find(name.encode()) < 0}
    return tuple(sorted(left)) if libraries else ()


if __name__ == "__main__":
    serve({"ask": ask, "open": open_model})
