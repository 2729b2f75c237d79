"""What sets of graph parameters share is made once, and is there whole or not at all."""

from pathlib import Path

import pytest

from autotune.graph.intermediates import Intermediates


def test_a_record_is_made_once(tmp_path: Path) -> None:
    made = []

    def make() -> dict[str, float]:
        made.append(1)
        return {"a": 0.1}

    for shared in (Intermediates(tmp_path), Intermediates(tmp_path)):
        assert shared.record("figures", make) == {"a": 0.1}
    assert len(made) == 1


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
