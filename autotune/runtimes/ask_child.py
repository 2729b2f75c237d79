"""The child that imports the ONNX Runtime of an environment and says what it is."""

from pathlib import Path

from autotune.deploy.telemetry import switch_off
from autotune.process.child_end import Message, serve
from autotune.runtimes.answer import RuntimeAnswer
from autotune.runtimes.library import unknown_names

switch_off()


def ask(message: Message) -> RuntimeAnswer:
    """Returns what the runtime is, and which of ``names`` its library does not hold."""
    import onnxruntime

    place = Path(onnxruntime.__file__).parent
    return RuntimeAnswer(
        version=onnxruntime.__version__,
        providers=tuple(onnxruntime.get_available_providers()),
        place=str(place),
        unknown=unknown_names(message.get("names", []), place),
    )


def open_model(message: Message) -> RuntimeAnswer:
    """Opens the file ``model`` with default options; returns what the runtime is."""
    import onnxruntime

    onnxruntime.InferenceSession(message["model"], providers=["CPUExecutionProvider"])
    return ask(message)


if __name__ == "__main__":
    serve({"ask": ask, "open": open_model})
