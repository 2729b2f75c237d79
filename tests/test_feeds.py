"""Feeds in files: what is written is what is read, whatever the names."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import DataError
from autotune.facts.feeds import load_samples, native, save_samples


@pytest.mark.parametrize(
    "names",
    [("x", "x.npy"), ("a\0b", "a\0c"), ("", "names"), ("a/b", "a:b"), ("0:1", "é" * 70_000)],
)
def test_samples_of_any_names_are_read_as_written(tmp_path: Path, names: tuple[str, str]) -> None:
    samples = [{names[0]: np.asarray(1.0), names[1]: np.asarray([2, i])} for i in range(2)]
    save_samples(samples, tmp_path / "samples.npz")
    loaded = load_samples(tmp_path / "samples.npz")
    assert [{name: a.tolist() for name, a in feed.items()} for feed in loaded] == [
        {names[0]: 1.0, names[1]: [2, i]} for i in range(2)
    ]


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("dtype", [">f4", ">i8", ">U4", "<f4", "bool"])
def test_arrays_become_native(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape[::-1]).astype(dtype).T
    converted = native(array)
    assert converted.dtype.isnative
    assert converted.flags.c_contiguous
    assert converted.shape == shape
    assert converted.tolist() == array.tolist()


def test_samples_without_arrays_are_counted(tmp_path: Path) -> None:
    save_samples([{}, {}, {}], tmp_path / "samples.npz")
    assert load_samples(tmp_path / "samples.npz") == [{}, {}, {}]


@pytest.mark.parametrize("names", [None, b"[", b'[["x", "y"]]', b"[" * 100_000], ids=range(4))
def test_names_that_do_not_match_are_refused(tmp_path: Path, names: bytes | None) -> None:
    """The file may come from a child that ran a stranger's model."""
    arrays: dict[str, Any] = {"0:0": np.ones(1)}
    if names is not None:
        arrays["names"] = np.frombuffer(names, np.uint8)
    np.savez(tmp_path / "samples.npz", **arrays)
    with pytest.raises(DataError, match="do not match"):
        load_samples(tmp_path / "samples.npz")
