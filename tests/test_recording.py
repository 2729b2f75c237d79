"""Recorded tables, and the measurer that answers from them."""

from pathlib import Path

import pytest
from recording import read

TABLES = sorted(Path(__file__).parent.parent.glob("benchmarks/dev/tables/**/*.jsonl.gz"))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_table_is_one_of_its_whole_space(path: Path) -> None:
    """Its parameters are those of today, so that `search.py` can search it."""
    recording = read(path)
    assert recording.space.configurations is not None
    assert len(recording) == len(recording.space.configurations)
