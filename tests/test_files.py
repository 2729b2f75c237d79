"""Files of strangers: regular ones of bounded size are read, and links lead nowhere."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.deploy.files import (
    create,
    is_file,
    is_folder,
    open_file,
    parse_json,
    read_bytes,
    read_json,
    read_text,
)
from autotune.errors import FormatError

posix = pytest.mark.skipif(os.name != "posix", reason="pipes and devices are POSIX")


@posix
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (os.mkfifo, "a device or a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "a device or a pipe"),
        (Path.mkdir, "a folder"),
        (lambda path: path.symlink_to(path), "symbolic links"),
        (lambda _: None, "No such file"),
    ],
    ids=["pipe", "device", "folder", "circle", "missing"],
)
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, make: Callable[[Path], None], reason: str
) -> None:
    """Reading a pipe or a device would not end."""
    make(tmp_path / "file")
    with pytest.raises(FormatError, match=reason):
        read_bytes(tmp_path / "file", 10)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "\ud800"])
def test_names_that_no_file_can_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(FormatError):
        open_file(tmp_path / name)
    assert not is_file(tmp_path / name)
    assert not is_folder(tmp_path / name)


def test_a_large_file_is_refused_with_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1024))
    assert len(read_bytes(path, 1024)) == 1024
    path.write_bytes(bytes(1025))
    with pytest.raises(FormatError, match="larger than 1 KiB"):
        read_bytes(path, 1024)


def test_text_is_decoded_strictly(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"ab\xff")
    with pytest.raises(FormatError, match="no UTF-8 text: byte 2"):
        read_text(tmp_path / "file", 10)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "'a' is there twice"),
        ('[{"b": {"c": 1, "c": 1}}]', "'c' is there twice"),
        ('{"a": NaN}', "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 10_000, "no JSON"),
        ("{", "no JSON"),
    ],
)
def test_json_that_readers_understand_differently_is_refused(text: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_json(text)


@given(text=st.text())
def test_any_text_is_json_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        parse_json(text)


def test_sound_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_text('{"a": [1, 2.5, null]}')
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert read_json(tmp_path / "link", 100) == {"a": [1, 2.5, None]}


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="the system follows links")
def test_links_in_our_own_places_are_not_followed(tmp_path: Path) -> None:
    real, link, dangling = tmp_path / "real", tmp_path / "link", tmp_path / "dangling"
    real.write_text("mine")
    link.symlink_to(real)
    dangling.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FormatError, match="it is a link"):
        read_bytes(link, 100, links=False)
    for path in (link, dangling):
        with pytest.raises(FormatError, match="it is a link"):
            create(path)
    assert real.read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()


def test_a_new_file_replaces_none(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with create(path) as file:
        file.write(b"a")
    with pytest.raises(FormatError, match="File exists"):
        create(path)
