"""What sets of graph parameters share is made once, and is there whole or not at all."""

from pathlib import Path

import pytest

from autotune.graph.intermediates import Intermediates


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:

    def fail(path: Path) -> None:
        path.write_text("half", encoding="utf-8")
        raise ValueError("it fails")

    with pytest.raises(ValueError, match="it fails"):
        Intermediates(tmp_path).file("model.onnx", fail)
    assert list(tmp_path.iterdir()) == []


def test_without_a_folder_nothing_stays() -> None:
    shared = Intermediates()
    path = shared.file("text", lambda path: path.touch())
    assert path.is_file()
    del shared
    assert not path.exists()
