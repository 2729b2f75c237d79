"""The child that opens an emitted config as an application does, and writes its answers."""

from pathlib import Path

import onnxruntime

from autotune.deploy.loader import load
from autotune.measure.flatten import save_outputs
from autotune.measure.replies import Loaded, Written
from autotune.process.child_end import Handler, Message, serve


class Application:
    """The state of the child: the session of one config."""

    def __init__(self) -> None:
        self._session: onnxruntime.InferenceSession | None = None

    def handlers(self) -> dict[str, Handler]:
        """Returns the methods that answer each message."""
        return {"load": self.load, "answers": self.answers}

    def load(self, message: Message) -> Loaded:
        """Loads the config, strictly: another file or another machine is refused."""
        self._session = load(message["config"], strict=True)
        return Loaded()

    def answers(self, message: Message) -> Written:
        """Runs the samples and writes the outputs to a file, for the parent to compare."""
        save_outputs(self._session, Path(message["samples"]), Path(message["to"]))
        return Written()


if __name__ == "__main__":
    serve(Application().handlers())
