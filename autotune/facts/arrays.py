"""The arrays in an .npz file, which may come from a stranger: checked before they are unpacked.

A few kilobytes of zip can unpack to gigabytes, the header of an array can claim any shape, and a
pickled object runs its author's code. So names and sizes are read from the archive's directory
first, then the header of each array, and its numbers only where its size is what the header says.
"""

import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from autotune.deploy.files import open_file
from autotune.errors import DataError, FormatError, shown

LARGEST_BYTES = 4 << 30
"""The most that the arrays of one file, or of one folder, may have together."""

_MOST_ARRAYS = 100_000
# Deflate shrinks zeros a thousandfold; measured inputs shrink tenfold.
_LARGEST_RATIO = 100
_SMALL_BYTES = 256 << 20
_ENDING = ".npy"
# The ways to pack that numpy writes; others may ask for gigabytes to unpack a few bytes.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# The errors of numpy and zipfile for a file that is no archive, or a damaged or encrypted one.
_DAMAGED = (
    *(OSError, ValueError, EOFError, KeyError, IndexError, TypeError, RuntimeError),
    *(NotImplementedError, RecursionError, zipfile.BadZipFile, zlib.error, struct.error),
)


def read_arrays(
    path: Path,
    check_names: Callable[[Sequence[str]], None] = lambda _: None,
    largest_bytes: int = LARGEST_BYTES,
) -> dict[str, NDArray[np.generic]]:
    """Returns the arrays of an .npz file by name.

    Args:
        check_names: Called with the names before anything is unpacked; raises what it likes.
        largest_bytes: The most that the arrays may have together.

    Raises:
        DataError: it is no .npz file, is damaged, or is larger than that; the message says why.
    """
    try:
        with open_file(path) as file:
            if file.read(6) == npy.MAGIC_PREFIX:
                raise FormatError("it is a single array; save it with numpy.savez(file, name=..)")
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, largest_bytes)
                check_names(list(members))
                return {name: _array(archive, name, member) for name, member in members.items()}
    except FormatError as error:
        raise DataError(f"cannot read {path}: {error}") from None
    except MemoryError:
        raise DataError(
            f"{path} needs more memory to unpack than this machine has free; save fewer samples"
        ) from None
    except _DAMAGED as error:
        raise DataError(
            f"{path} is no readable .npz file ({error}); write it with numpy.savez"
        ) from None


def _members(archive: zipfile.ZipFile, largest_bytes: int) -> dict[str, zipfile.ZipInfo]:
    """Returns the archive's members by the name of their array, if they can be unpacked safely."""
    infos = archive.infolist()
    if len(infos) > _MOST_ARRAYS:
        raise FormatError(f"it holds {len(infos)} arrays; at most {_MOST_ARRAYS} are read")
    members = {info.filename.removesuffix(_ENDING): info for info in infos}
    if len(members) < len(infos):
        raise FormatError("it holds two arrays of one name; write it anew with numpy.savez")
    for name, info in members.items():
        if not info.filename.endswith(_ENDING):
            raise FormatError(f"{shown(name)} in it is no array; write it with numpy.savez")
        if info.compress_type not in _METHODS:
            raise FormatError(
                f"{shown(name)} is packed in a way that numpy does not write; use numpy.savez"
            )
    unpacked = sum(info.file_size for info in infos)
    if unpacked > largest_bytes:
        raise FormatError(
            f"its arrays have {unpacked / 2**30:.1f} GiB, and at most {largest_bytes / 2**30:.3g} "
            "GiB are read; save fewer samples"
        )
    packed = sum(info.compress_size for info in infos)
    if unpacked > _SMALL_BYTES and unpacked > _LARGEST_RATIO * packed:
        raise FormatError(
            f"it unpacks to more than {_LARGEST_RATIO} times its size; save it without compression "
            "(numpy.savez)"
        )
    return members


def _array(archive: zipfile.ZipFile, name: str, member: zipfile.ZipInfo) -> NDArray[np.generic]:
    with archive.open(member) as stream:
        _check_header(name, member.file_size, stream)  # type: ignore[arg-type]  # it reads bytes
    with archive.open(member) as stream:
        array: NDArray[np.generic] = npy.read_array(stream, allow_pickle=False)
    return array


def _check_header(name: str, size_bytes: int, stream: BinaryIO) -> None:
    """Refuses an array whose header asks for more, or for less, than the archive holds."""
    version = npy.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy.read_array_header_1_0(stream)
    elif version == (2, 0):
        shape, _, dtype = npy.read_array_header_2_0(stream)
    else:
        raise FormatError(f"{shown(name)} is no plain array; save it with numpy.savez")
    if dtype.hasobject:
        raise FormatError(
            f"{shown(name)} is an array of Python objects; save text as numpy strings (dtype 'U')"
        )
    whole = all(type(size) is int and size >= 0 for size in shape)
    expected = math.prod(shape) * dtype.itemsize if whole else -1
    if dtype.itemsize == 0 or expected != size_bytes - stream.tell():
        raise FormatError(
            f"{shown(name)} is damaged: its header says {dtype} {shown(shape)}, and the archive "
            "holds another number of bytes; write it with numpy.savez"
        )
