"""Archives of arrays: what they would unpack to is known before anything is unpacked."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.errors import DataError
from autotune.facts import arrays
from autotune.facts.arrays import read_arrays


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _header(shape: str, dtype: str = "<f4", body: bytes = b"") -> bytes:
    """Returns an array whose header is any text."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + body


def _archive(path: Path, *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return path


def test_sound_arrays_come_back(tmp_path: Path) -> None:
    sound: dict[str, Any] = {
        "x": np.arange(6.0).reshape(2, 3),
        "k": np.int64(3),
        "t": np.array(["a", "bc"]),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **sound)
        read = read_arrays(tmp_path / "a.npz")
        assert read.keys() == sound.keys()
        for name, array in sound.items():
            np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize(
    "member",
    [
        _header("(1000000000000000000,)"),
        _header("(1099511627776, 1099511627776)"),
        _header("(-1, -4)", body=bytes(16)),
        _header("(1000000000000000000,)", "<U0"),
        _header("(4,)", body=bytes(15)),
        _header("(4,)", body=bytes(17)),
        _header("(True,)", body=bytes(4)),
    ],
    ids=["long", "product", "negative", "no size", "short", "rest", "flag"],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, member: bytes) -> None:
    with pytest.raises(DataError, match=r"a\.npz.*'x'"):
        read_arrays(_archive(tmp_path / "a.npz", ("x.npy", member)))


def test_names_are_checked_before_anything_is_unpacked(tmp_path: Path) -> None:
    """An archive for another model is not unpacked: its damage is not even seen."""
    path = _archive(tmp_path / "a.npz", ("other.npy", b"damaged"))

    def refuse(names: Sequence[str]) -> None:
        raise DataError(f"unknown {list(names)}")

    with pytest.raises(DataError, match=r"unknown \['other'\]"):
        read_arrays(path, refuse)


def test_an_archive_that_unpacks_to_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, x=np.zeros(1 << 20, np.float32))
    with pytest.raises(DataError, match=r"at most 0\.000977 GiB are read; save fewer samples"):
        read_arrays(path, largest_bytes=1 << 20)
    assert read_arrays(path)["x"].shape == (1 << 20,)
    monkeypatch.setattr(arrays, "_SMALL_BYTES", 1 << 20)
    with pytest.raises(DataError, match=r"more than 100 times its size.*without compression"):
        read_arrays(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_ways_to_pack_are_refused(tmp_path: Path, method: int) -> None:
    """Numpy does not write them, and their readers may ask for gigabytes."""
    path = _archive(tmp_path / "a.npz", ("x.npy", _npy(np.ones(3))), method=method)
    with pytest.raises(DataError, match="numpy does not write"):
        read_arrays(path)


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    with pytest.warns(UserWarning, match="Duplicate name"):
        _archive(path, ("x.npy", _npy(np.ones(3))), ("x.npy", _npy(np.zeros(3))))
    with pytest.raises(DataError, match="two arrays of one name"):
        read_arrays(path)


@pytest.mark.parametrize(
    ("member", "reason"),
    [
        (("x.txt", b"text"), "is no array"),
        (("x.npy", b"\x93NUMPY\x03\x00" + bytes(100)), "no plain array"),
        (("x.npy", b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 65535), "no readable"),
        (("x.npy", b""), "no readable"),
    ],
    ids=["text", "structured", "nested", "empty"],
)
def test_other_members_are_refused(tmp_path: Path, member: tuple[str, bytes], reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        read_arrays(_archive(tmp_path / "a.npz", member))


def test_pickled_objects_are_not_run(tmp_path: Path) -> None:

    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "trapped",))

    np.savez(tmp_path / "a.npz", x=np.array([Trap()], object))
    with pytest.raises(DataError, match="Python objects"):
        read_arrays(tmp_path / "a.npz")
    assert not (tmp_path / "trapped").exists()


def test_a_name_that_ends_like_a_file_hides_no_other(tmp_path: Path) -> None:
    """numpy.savez writes inputs named ``x`` and ``x.npy`` as two members, and both are read."""
    arrays: dict[str, Any] = {"x": np.ones(2), "x.npy": np.zeros(3)}
    np.savez(tmp_path / "a.npz", **arrays)
    read = read_arrays(tmp_path / "a.npz")
    assert {name: array.tolist() for name, array in read.items()} == {
        "x": [1, 1],
        "x.npy": [0, 0, 0],
    }
