"""The figures of a page as files."""

import builtins
import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import MissingPackageError
from autotune.report.page.export import write_figures

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not any(map(shutil.which, BROWSERS)), reason="Kaleido needs a browser")
@pytest.mark.parametrize(("kind", "begin"), [("svg", b"<svg "), ("png", b"\x89PNG")])
def test_figures_are_files(frozen_study: Path, tmp_path: Path, kind: str, begin: bytes) -> None:
    paths = write_figures(frozen_study, tmp_path / "into", kind)
    assert {path.name for path in paths} >= {f"front.{kind}", f"search.{kind}"}
    assert all(path.read_bytes().startswith(begin) for path in paths)


def test_a_missing_package_is_named(frozen_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "kaleido":
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return load(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPackageError, match="figures need the package kaleido: pip install"):
        write_figures(frozen_study, frozen_study / "into")
    assert not (frozen_study / "into").exists()


def test_a_missing_browser_is_named(frozen_study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kaleido draws with a browser; without one the user learns how to get it."""
    kaleido = pytest.importorskip("kaleido")
    errors = pytest.importorskip("kaleido.errors")

    def draw(*_: object, **__: object) -> None:
        raise errors.ChromeNotFoundError

    monkeypatch.setattr(kaleido, "write_fig_from_object_sync", draw)
    with pytest.raises(MissingPackageError, match="install Chrome or Chromium"):
        write_figures(frozen_study, frozen_study / "into")
