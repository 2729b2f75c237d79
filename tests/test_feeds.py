"""Samples as they go from one process to another."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import DataError
from autotune.facts.feeds import load_samples, save_samples


def test_samples_come_back(tmp_path: Path) -> None:
    """In their order, with every array; names may hold a colon."""
    samples = [{"a:b": np.full(2, i), "c": np.full((), i)} for i in range(12)]
    save_samples(samples, tmp_path / "samples.npz")
    again = load_samples(tmp_path / "samples.npz")
    assert len(again) == 12
    for before, after in zip(samples, again, strict=True):
        assert before.keys() == after.keys()
        for name, array in before.items():
            np.testing.assert_array_equal(array, after[name])


def test_samples_without_arrays_are_counted(tmp_path: Path) -> None:
    """A model without inputs is run as often as any other."""
    save_samples([{}, {}, {}], tmp_path / "samples.npz")
    assert load_samples(tmp_path / "samples.npz") == [{}, {}, {}]


@pytest.mark.parametrize("key", ["a", "\u0664:a", "-1:a", "1_0:a"], ids=ascii)
def test_an_array_of_no_sample_is_refused(tmp_path: Path, key: str) -> None:
    """The file may come from a child that ran a stranger's model."""
    arrays: dict[str, Any] = {key: np.ones(1)}
    np.savez(tmp_path / "samples.npz", **arrays)
    with pytest.raises(DataError, match="belongs to no sample"):
        load_samples(tmp_path / "samples.npz")
