"""What is costly before quantisation, kept for all sets of graph parameters that share it.

Shape inference, smoothed weights, ranges of activations and rankings of nodes are the same for
many sets of graph parameters of one model. They lie in one folder of the study's cache. Children
alone read and write them.
"""

import json
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Intermediates:
    """Files and records by name, each made once.

    Args:
        folder: Where they are kept; None takes a temporary folder that goes with this object.
        of_model: The folder of what is the same after all pre-passes; None for `folder`.
    """

    def __init__(self, folder: Path | None = None, of_model: Path | None = None) -> None:
        self._of_model = of_model and Intermediates(of_model)
        self._folder = folder or Path(tempfile.mkdtemp())
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    @property
    def of_model(self) -> "Intermediates":
        """The files and records that are the same after all pre-passes."""
        return self._of_model or self

    def file(self, name: str, make: Callable[[Path], None]) -> Path:
        """Returns the file of this name, which `make` writes where there is none.

        It is there whole or not at all. Nobody writes to it afterwards.
        """
        path = self._folder / name
        if not path.is_file():
            beside = path.with_name(f".{secrets.token_hex(6)}-{name}")
            try:
                make(beside)
                beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        return path

    def record(self, name: str, make: Callable[[], Any]) -> Any:
        """Returns the JSON value of this name, which `make` returns where there is none."""

        def write(path: Path) -> None:
            path.write_text(json.dumps(make()), encoding="utf-8")

        return json.loads(self.file(f"{name}.json", write).read_text(encoding="utf-8"))
