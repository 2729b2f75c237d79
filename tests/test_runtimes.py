"""Other ONNX Runtimes: named, added whole or not at all, checked, removed."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import psutil
import pytest
from made_runtimes import files_of, unpack, write_wheel

from autotune.errors import AutotuneError, RequestError, StorageError
from autotune.process.child import ChildFailure
from autotune.process.scratch import write_mark
from autotune.runtimes import environments
from autotune.runtimes.answer import RuntimeAnswer
from autotune.runtimes.environments import RuntimeEnvironment
from autotune.runtimes.names import Release, builds_for, read_release, read_releases

OPENVINO = "onnxruntime-openvino"
_HANGING_UV = """#!{python}
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--target") + 1])
(folder / "half").write_text("made")
time.sleep(60)
"""
_MADE_UP = "Metadata-Version: 2.1\nName: made_up\nVersion: 2.0\n"
_FULL_UV = "#!/bin/sh\necho 'error: No space left on device (os error 28)'; exit 2\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder of the runtimes, which is a cache of this test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return environments.root()


@pytest.fixture
def unpacking(cache: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Installs distributions that pretend, inside this process; returns what was installed."""
    installed = []

    def install(
        requirements: Sequence[str], target: Path, work: Path, *, alone: bool = False
    ) -> None:
        release = read_release(requirements[0])
        installed.append(str(release))
        unpack(files_of(release.name, release.version or "1.40.0"), target)

    def ask(site: Path) -> RuntimeAnswer:
        place = str(site / "onnxruntime")
        return RuntimeAnswer(version="", providers=("CPUExecutionProvider",), place=place)

    monkeypatch.setattr(environments, "install", install)
    monkeypatch.setattr(environments, "ask", ask)
    return installed


def _add(text: str) -> RuntimeEnvironment:
    return environments.add(read_release(text), lambda _: None)


def test_lists_of_releases_are_read() -> None:
    releases = read_releases(["onnxruntime==1.22.1,1.28.0", "onnxruntime_OpenVINO"])
    assert list(map(str, releases)) == ["onnxruntime==1.22.1", "onnxruntime==1.28.0", OPENVINO]
    assert Release("onnxruntime", "1.9.0").numbers < Release("onnxruntime", "1.10.0").numbers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("onnxruntim", "Did you mean 'onnxruntime'"),
        ("onnxruntime==", "is no version"),
        ("onnxruntime==../x", "is no version"),
        ("onnxruntime==1.2;evil", "is no version"),
        ("onnxruntime-ep-openvino", "plugin that runs beside onnxruntime"),
        ("1.28.0", "has no name before it"),
        ("-r file", "there is no runtime"),
    ],
)
def test_what_is_no_release_is_refused(text: str, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        read_releases([text])


def test_a_runtime_is_added_once_found_and_removed(unpacking: list[str], cache: Path) -> None:
    made = _add(OPENVINO)
    assert (made.version, made.size_bytes > 300) == ("1.40.0", True)
    assert _add(f"{OPENVINO}==1.40.0") == made
    _add(f"{OPENVINO}==1.9.0")
    assert unpacking == [OPENVINO, f"{OPENVINO}==1.9.0"]
    assert [each.version for each in environments.added()] == ["1.9.0", "1.40.0"]
    # a name alone is the newest one
    assert environments.find([read_release(OPENVINO)]) == [made]
    site = environments.site_of(str(made.release))
    assert site is not None
    assert (site / "onnxruntime").is_dir()
    assert environments.remove(made.release) > 0
    assert not site.exists()
    with pytest.raises(RequestError, match="was not added"):
        environments.remove(made.release)


def test_all_installs_each_build_that_is_not_here(
    unpacking: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environments, "own_release", lambda: Release("onnxruntime", "1.40.0"))
    builds = ["onnxruntime", OPENVINO, "onnxruntime-directml"]
    monkeypatch.setattr(environments, "builds_for", lambda: builds)
    _add(f"{OPENVINO}==1.9.0")
    assert [r.name for r in environments.missing_builds()] == ["onnxruntime-directml"]
    assert [e.name for e in environments.chosen(["all"])] == [OPENVINO]  # a look installs nothing
    notes: list[str] = []
    chosen = environments.chosen(["all"], notes.append)
    assert [e.name for e in chosen] == ["onnxruntime-directml", OPENVINO]
    assert f"in {cache / 'onnxruntime-directml-1.40.0'}, 0 MiB" in notes[-1]
    assert environments.chosen(["all"], notes.append) == chosen
    assert unpacking == [f"{OPENVINO}==1.9.0", "onnxruntime-directml"]


def test_all_goes_on_without_a_build_that_cannot_be_had(
    unpacking: list[str], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def install(*_: object, **__: object) -> None:
        raise RequestError("cannot install it: no route")

    monkeypatch.setattr(environments, "own_release", lambda: Release("onnxruntime", "1.40.0"))
    monkeypatch.setattr(environments, "builds_for", lambda: [OPENVINO])
    monkeypatch.setattr(environments, "install", install)
    notes: list[str] = []
    assert environments.chosen(["all"], notes.append) == []
    assert "cannot install it: no route. It is left out." in notes


@pytest.mark.parametrize(
    ("system", "machine", "others"),
    [
        ("Linux", "x86_64", [OPENVINO]),
        ("Linux", "aarch64", []),
        ("Darwin", "arm64", []),
        ("Windows", "AMD64", [OPENVINO, "onnxruntime-directml"]),
    ],
)
def test_each_kind_of_machine_has_its_builds(system: str, machine: str, others: list[str]) -> None:
    assert builds_for(system, machine) == ["onnxruntime", *others]


def test_the_users_own_runtime_is_no_other_one(
    unpacking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = environments.own_release()
    assert own is not None
    other = _add(OPENVINO)
    _add(str(own))
    assert environments.chosen(["all"]) == [other]
    assert environments.chosen([f"{own},{OPENVINO}"]) == [other]
    with pytest.raises(RequestError, match=r"type autotune runtimes add onnxruntime==1\.22\.1"):
        environments.chosen(["onnxruntime==1.22.1"])


def test_a_folder_holds_what_it_needs_whatever_the_environment_has(
    unpacking: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another environment, with a version that does not fit, gets a sentence; the folder stays."""
    requires = "numpy>=1.26 protobuf made-up>=2"

    def install(requirements: Sequence[str], target: Path, work: Path, *, alone: bool) -> None:
        release = read_release(requirements[0]) if alone else Release("made-up", "2.0")
        unpacking.append(str(release))
        files = files_of(release.name, release.version or "1.40.0", requires=requires)
        unpack(files if alone else {"made_up-2.0.dist-info/METADATA": _MADE_UP}, target)

    monkeypatch.setattr(environments, "install", install)
    made = _add(OPENVINO)
    assert unpacking == [OPENVINO, "made-up==2.0"]
    assert environments.find([made.release]) == [made]
    own_version = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "1.2" if name == "numpy" else own_version(name)
    )
    for refused in (environments.find, lambda _: _add(str(made.release))):
        with pytest.raises(RequestError, match=r'numpy 1\.2; type pip install "numpy>=1\.26"'):
            refused([made.release])
    monkeypatch.setattr(metadata, "version", own_version)


def test_two_flavours_in_the_users_environment_are_refused(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if name in {"onnxruntime", "onnxruntime-gpu"}:
            return "1.40.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(RequestError, match="pip uninstall -y onnxruntime onnxruntime-gpu"):
        _add(OPENVINO)


def test_what_a_killed_process_left_is_removed(unpacking: list[str], cache: Path) -> None:
    left = cache / ".making-0123456789ab"
    left.mkdir(parents=True)
    write_mark(left)
    of_others = cache / ".making-somebody"
    of_others.mkdir()
    assert environments.added() == []
    _add(OPENVINO)
    assert not left.exists()
    assert of_others.exists()


def test_a_failed_installation_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environments, "install", install)
    with pytest.raises(StorageError, match="XDG_CACHE_HOME"):
        _add(OPENVINO)
    assert [path.name for path in cache.iterdir()] == [".lock"]


@pytest.mark.process
def test_a_process_takes_the_runtime_of_its_folder(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed by the real pip from a folder of wheels, beside the user's own packages."""
    write_wheel(tmp_path, OPENVINO, "1.40.0", ["SomeProvider"])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RequestError, match=r"cannot install .* for Python"):
        _add(OPENVINO)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    made = _add(OPENVINO)
    assert (made.version, made.providers) == ("1.40.0", ("SomeProvider",))
    with pytest.raises(RequestError, match=r"cannot install .*==9\.9"):
        _add(f"{OPENVINO}==9.9")
    assert {path.name for path in cache.iterdir()} == {".lock", f"{OPENVINO}-1.40.0"}
    site = environments.site_of(str(made.release))
    assert site is not None
    shutil.rmtree(site)
    with pytest.raises(ChildFailure, match="there is no ONNX Runtime in"):
        environments.ask(site)


_TOO_OLD = """
class InferenceSession:
    def __init__(self, *_, **__):
        raise RuntimeError("Unsupported model IR version: 13, max supported IR version: 10")
"""


@pytest.mark.process
def test_a_runtime_too_old_for_the_model_is_refused(cache: Path, tmp_path: Path) -> None:
    release = Release("onnxruntime", "1.16.0")
    unpack(files_of(*release, code=_TOO_OLD), cache / "onnxruntime-1.16.0")
    with pytest.raises(RequestError, match=r"1\.16\.0 cannot open new\.onnx, leave it out: .*IR"):
        environments.check_model(release, tmp_path / "new.onnx")


@pytest.mark.process
def test_nothing_half_made_is_left(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    uv.write_text(_FULL_UV, encoding="utf-8")
    uv.chmod(0o755)
    with pytest.raises(AutotuneError, match=r"No space left on device"):
        _add(OPENVINO)
    uv.write_text(_HANGING_UV.format(python=sys.executable), encoding="utf-8")
    command = [sys.executable, "-m", "autotune", "runtimes", "add", OPENVINO]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        half = None
        until_s = time.monotonic() + 60
        while half is None and time.monotonic() < until_s:
            half = next(cache.glob(".making-*/half"), None)
            time.sleep(0.02)
        installer = psutil.Process(process.pid).children()[0]
        process.send_signal(signal.SIGKILL)
    assert environments.added() == []
    with pytest.raises(RequestError, match="was not added"):
        environments.remove(read_release(OPENVINO))
    assert [path.name for path in cache.iterdir()] == [".lock"]
    assert not installer.is_running() or installer.status() == psutil.STATUS_ZOMBIE
