"""Ways to make a sound file hostile: other bytes, other values, and things that are no files."""

import copy
import io
import json
import os
import random
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Random = random.Random

_DEEP: Any = []
for _ in range(300):
    _DEEP = [_DEEP]

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 2**31, 2**63, -(2**63), 10**400, 1.5, -0.0, 1e-320, 1e308),
    *(float("nan"), float("inf"), float("-inf")),
    *("", " ", "0", "1", "-1", "²", "٣", "1_0", "nan", "on", "\x1b[2J", "\u202e", "a" * 70_000),
    *("\ud800", "\x00", "../x", "/dev/zero", "a/b", "C:\\x", "x" * 300, "__class__", "{0}", "[/a]"),
    *([], {}, [[]], [1, "a"], {"a": 1}, {"": None}, [None] * 50, {"driver": []}, _DEEP),
]
"""Values that a reader of JSON may not expect in any place."""

WORDS: list[bytes] = [
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"NaN", b"1e999", b"-", b"[", b"{", b'"', b"9" * 5000),
    *(b"\\ud800", "²".encode(), b"0x" + b"f" * 5000, b"[" * 5000, b"\n", b"=", b"#", b"'''", b","),
]
"""Bytes that a parser may not expect."""


def changed_bytes(sound: bytes, choose: Random) -> bytes:
    data = bytearray(sound)
    for _ in range(choose.choice((0, 1, 1, 1, 2, 4))):
        place = choose.randrange(len(data) + 1)
        end = min(len(data), place + choose.choice((1, 2, 4, 40)))
        kind = choose.randrange(6)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << choose.randrange(8)
        elif kind == 1:
            data[place:end] = choose.randbytes(end - place)
        elif kind == 2:
            del data[place:end]
        elif kind == 3:
            data[place:place] = choose.choice(WORDS)
        elif kind == 4:
            data[place:end] = data[place:end] * choose.choice((2, 50))
        elif choose.random() < 0.3:
            del data[place:]
    return bytes(data)


def _places(data: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each container with each of its keys, the inner ones included."""
    items: Any = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


def changed_values(sound: Any, choose: Random) -> Any:
    """Returns a JSON value with up to three changes: other values, keys, and orders."""
    data = copy.deepcopy(sound)
    for _ in range(choose.choice((0, 1, 1, 1, 1, 2, 3))):
        places = list(_places(data))
        if not places:
            break
        holder, key = choose.choice(places)
        kind = choose.randrange(8)
        if kind < 5:
            holder[key] = copy.deepcopy(choose.choice(VALUES))
        elif kind == 5:
            del holder[key]
        elif isinstance(holder, dict):
            name = choose.choice((f"{key}s", "", "x" * 1000, "__proto__", "\ud800"))
            holder[name] = holder.pop(key) if kind == 6 else copy.deepcopy(choose.choice(VALUES))
        else:
            holder.insert(0, copy.deepcopy(choose.choice(VALUES)))
    return data


def changed_json(sound: Any, choose: Random) -> bytes:
    """Returns JSON of a changed value, with changed bytes, or with a key that is there twice."""
    kind = choose.randrange(10)
    if kind == 0:
        return changed_bytes(json.dumps(sound).encode(), choose)
    text = json.dumps(changed_values(sound, choose))
    if kind == 1 and (keys := [key for holder, key in _places(sound) if isinstance(holder, dict)]):
        key = json.dumps(choose.choice(keys))
        text = text.replace(f"{key}: ", f"{key}: 1, {key}: ", 1)
    return text.encode()


def changed_npz(sound: Mapping[str, Any], choose: Random) -> bytes:
    """Returns an archive of arrays with changed bytes, headers, names, sizes or ways of packing."""
    buffer = io.BytesIO()
    if choose.random() < 0.4:
        np.savez(buffer, **sound)
        return changed_bytes(buffer.getvalue(), choose)
    name, array = choose.choice(list(sound.items()))
    headers = [
        *(((10**18,), "<f4"), ((2**40, 2**40), "<f4"), ((-1, -4), "<f4"), ((4,), "O")),
        *(((10**18, 0), "<f4"), ((10**15,), "<U0"), ((True,), "<f4"), (array.shape, "<f8")),
        *(((), "<f4"), ((1,) * 60, "<f4"), (array.shape, ">f4"), (array.shape, "V4")),
    ]
    shape, dtype = choose.choice(headers)
    order = choose.choice((False, True))
    header = {"descr": dtype, "fortran_order": order, "shape": shape}
    body = choose.choice((array.tobytes(), b"", bytes(1 << 20), choose.randbytes(50)))
    member = _npy(header, body, choose.choice(((1, 0), (2, 0), (3, 0), (9, 9))))
    names = [f"{name}.npy", f"{name}.npy", f"{name}x.npy", name, "../x.npy", ".npy", "\x1b.npy"]
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2)
    with zipfile.ZipFile(buffer, "w", choose.choice(methods)) as archive:
        others = [other for other in sound if other != name or choose.random() < 0.1]
        for other in others[: choose.randrange(len(others) + 1)] if others else []:
            plain = io.BytesIO()
            np.save(plain, sound[other])
            archive.writestr(f"{other}.npy", plain.getvalue())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name that is there twice
            archive.writestr(choose.choice(names), member)
    return buffer.getvalue()


def _npy(header: dict[str, Any], body: bytes, version: tuple[int, int]) -> bytes:
    text = f"{header!r}\n".encode("latin-1")
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + text + body


def no_files() -> list[Callable[[Path], None]]:
    """Returns functions that make something at a path which is no file, or no readable one."""
    kinds: list[Callable[[Path], None]] = [
        lambda path: path.mkdir(),
        lambda path: path.symlink_to("/nonexistent/file"),
        lambda path: path.symlink_to(path),
        lambda path: path.touch(),
        _huge,
    ]
    if os.name == "posix":
        kinds += [
            os.mkfifo,
            lambda path: path.symlink_to("/dev/zero"),
            lambda path: path.symlink_to("/dev/tty"),
            lambda path: path.symlink_to("/proc/self/mem"),
        ]
    return kinds


def _huge(path: Path) -> None:
    """Makes a file of 8 GiB that takes no room on the disk."""
    with path.open("wb") as file:
        file.truncate(8 << 30)
