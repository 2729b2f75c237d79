"""Raw run times on disk."""

from pathlib import Path

import numpy as np
import pytest

from autotune.errors import StorageError
from autotune.measure.duet import Duet, TimeSlice
from autotune.measure.raw_samples import keep_raw


def _slice(*run_ns: int) -> TimeSlice:
    return TimeSlice(run_ns=run_ns, cpu_ns=2 * sum(run_ns), stolen=False)


_DUET = Duet(
    reference=(_slice(10, 11), _slice(12)),
    configuration=(_slice(20, 21, 22),),
    before=(0,),
    undisturbed_ms=1.5,
    spent_s={},
)


def test_every_run_is_kept(tmp_path: Path) -> None:
    name = keep_raw(_DUET, tmp_path / "samples", "abc")
    with np.load(tmp_path / "samples" / name) as archive:
        arrays = {key: archive[key].tolist() for key in archive.files}
    assert arrays == {
        "reference_ns": [10, 11, 12],
        "reference_runs": [2, 1],
        "configuration_ns": [20, 21, 22],
        "configuration_runs": [3],
        "configuration_cpu_ns": [126],
        "before": [0],
        "undisturbed_ms": 1.5,
    }


def test_an_earlier_file_is_not_overwritten(tmp_path: Path) -> None:
    names = [keep_raw(_DUET, tmp_path, "abc") for _ in range(3)]
    assert names == ["abc-1.npz", "abc-2.npz", "abc-3.npz"]


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("a file in its place", encoding="ascii")
    with pytest.raises(StorageError, match=r"cannot write raw run times to .*samples.*make room"):
        keep_raw(_DUET, tmp_path / "samples", "abc")


def test_run_times_are_not_written_through_a_link(tmp_path: Path) -> None:
    """A folder of a stranger must not lead to a file elsewhere."""
    (tmp_path / "abc-1.npz").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="it is a link"):
        keep_raw(_DUET, tmp_path, "abc")
    assert not (tmp_path / "elsewhere").exists()
