"""The cache of transformed models: bounded in size, whole or not there."""

import contextlib
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from autotune.graph.cache import Cache
from autotune.process.scratch import write_mark


def _entry(cache: Cache, key: str, size: int, folder: Path, age_s: float) -> Path:
    made = folder / f"made-{key}"
    made.mkdir()
    (made / "best.onnx").write_bytes(b"x" * size)
    entry = cache.keep(key, made, {"operators": 1})
    then = time.time() - age_s
    os.utime(entry, (then, then))
    return entry


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit_bytes=3000)
    old = _entry(cache, "old", 1000, tmp_path, 5000)
    used = _entry(cache, "used", 1000, tmp_path, 9000)
    assert cache.find("used") is not None
    new = _entry(cache, "new", 1500, tmp_path, 0)
    assert not old.exists()
    assert used.exists()
    assert new.exists()
    assert cache.used_bytes() < 3000
    assert json.loads((new / "facts.json").read_text(encoding="utf-8"))["operators"] == 1


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    (tmp_path / "cache" / "key").mkdir(parents=True)
    (tmp_path / "cache" / "key" / "best.onnx").write_bytes(b"half")
    entry = _entry(cache, "key", 10, tmp_path, 0)
    assert (entry / "best.onnx").read_bytes() == b"x" * 10
    (entry / "best.onnx").unlink()
    assert cache.find("key") is None


def test_one_too_large_is_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", limit_bytes=10)
    assert _entry(cache, "large", 1000, tmp_path, 0).exists()


def test_what_is_half_there_is_not_found(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "key").mkdir()
    assert cache.find("key") is None
    (tmp_path / "key" / "facts.json").write_text("[", encoding="utf-8")
    assert cache.find("key") is None


def test_only_what_the_cache_made_is_cleaned_up(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    names = {
        ".making-0123456789ab": True,
        ".removing-0123456789ab": True,
        ".making-ba9876543210": False,
        ".making-films": True,
        ".painting-2019": True,
    }
    for name, marked in names.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
        if marked:
            write_mark(tmp_path / name)
        os.utime(tmp_path / name, (0, 0))
    _entry(cache, "key", 10, tmp_path, 0)
    left = {path.name for path in tmp_path.iterdir() if path.name in names}
    assert left == {".making-ba9876543210", ".making-films", ".painting-2019"}


def test_a_link_in_the_place_of_an_entry_loses_nothing(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    cache = Cache(tmp_path / "cache")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "key").symlink_to(precious)
    assert (_entry(cache, "key", 10, tmp_path, 0) / "best.onnx").exists()
    assert [path.name for path in precious.iterdir()] == ["file"]


def test_threads_may_make_one_entry_at_once(tmp_path: Path) -> None:
    nobody_has_it = threading.Barrier(4)

    class Late(Cache):
        def find(self, key: str) -> tuple[Path, dict[str, Any]] | None:
            entry = super().find(key)
            with contextlib.suppress(threading.BrokenBarrierError):
                nobody_has_it.wait(timeout=0.2)
            return entry

    def make(number: int) -> Path:
        made = tmp_path / str(number)
        made.mkdir()
        (made / "model.onnx").write_bytes(b"model")
        return Late(tmp_path / "cache").keep("key", made, {})

    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(make, range(4))) == {tmp_path / "cache" / "key"}
    assert Cache(tmp_path / "cache").find("key") is not None
    folders = [entry.name for entry in (tmp_path / "cache").iterdir() if entry.is_dir()]
    assert folders == ["key"]
