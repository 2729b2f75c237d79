"""Raw run times on disk."""

from pathlib import Path

import numpy as np
import pytest

from autotune.errors import StorageError
from autotune.measure.duet import Duet
from autotune.measure.raw_samples import keep_raw
from autotune.measure.reference import Turn


def _turn(*run_ns: int) -> Turn:
    return Turn(run_ns=run_ns, cpu_ns=2 * sum(run_ns), stolen=False)


_DUET = Duet(
    reference=(_turn(10, 11), _turn(12)),
    candidate=(_turn(20, 21, 22),),
    before=(0,),
    quiet_ms=1.5,
    spent_s={},
)


def test_every_run_is_kept(tmp_path: Path) -> None:
    """The runs of both sides, the runs of each turn, CPU times and the order are in the file."""
    name = keep_raw(_DUET, tmp_path / "samples", "abc")
    with np.load(tmp_path / "samples" / name) as archive:
        arrays = {key: archive[key].tolist() for key in archive.files}
    assert arrays == {
        "reference_ns": [10, 11, 12],
        "reference_runs": [2, 1],
        "candidate_ns": [20, 21, 22],
        "candidate_runs": [3],
        "candidate_cpu_ns": [126],
        "before": [0],
        "quiet_ms": 1.5,
    }


def test_an_earlier_file_is_not_overwritten(tmp_path: Path) -> None:
    """A second measurement of a candidate has a file of its own."""
    names = [keep_raw(_DUET, tmp_path, "abc") for _ in range(3)]
    assert names == ["abc-1.npz", "abc-2.npz", "abc-3.npz"]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    """Where the disk refuses, the message names the folder and the cure."""
    (tmp_path / "samples").write_text("a file in its place", encoding="ascii")
    with pytest.raises(StorageError, match=r"cannot write raw run times to .*samples.*make room"):
        keep_raw(_DUET, tmp_path / "samples", "abc")


def test_run_times_are_not_written_through_a_link(tmp_path: Path) -> None:
    """A folder of a stranger must not lead to a file elsewhere."""
    (tmp_path / "abc-1.npz").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="it is a link"):
        keep_raw(_DUET, tmp_path, "abc")
    assert not (tmp_path / "elsewhere").exists()
