"""CUDA's libraries, by a loader and a driver that are made up."""

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.deploy import cuda
from autotune.deploy.providers import PROVIDERS, Provider

_CUDA, _TENSORRT = PROVIDERS["cuda"], PROVIDERS["tensorrt"]


class FakeMachine:
    """The libraries of a machine, and the driver's answer.

    Attributes:
        missing: Names that the loader does not find.
        code: The code with which the driver starts; 0 where it has a device.
        preloaded: The folders that ONNX Runtime was asked to look in.
    """

    def __init__(self) -> None:
        self.missing: set[str] = set()
        self.code = 0
        self.preloaded: list[str | None] = []
        self.opened: list[str] = []

    def open(self, name: str) -> Any:
        if name in self.missing:
            raise OSError(f"{name}: cannot open shared object file: No such file or directory")
        self.opened.append(name)
        return self

    def cuInit(self, _: int) -> int:  # noqa: N802  # the driver's name
        return self.code

    def cuGetErrorString(self, _: int, text: Any) -> None:  # noqa: N802
        text._obj.value = b"no CUDA-capable device is detected"

    def preload_dlls(self, directory: str | None = None) -> None:
        print("Failed to load libcublasLt.so.13")  # noqa: T201  # as ONNX Runtime does
        self.preloaded.append(directory)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    made = FakeMachine()
    runtime = SimpleNamespace(preload_dlls=made.preload_dlls, cuda_version="13.0")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(cuda, "onnxruntime", runtime)
    monkeypatch.setattr(cuda, "_loaded", set())
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(ctypes, "CDLL", made.open)
    return made


def test_a_whole_machine_has_no_problem(machine: FakeMachine) -> None:
    assert cuda.problem(_CUDA) == ""
    assert "libcublasLt.so.13" in machine.opened


@pytest.mark.parametrize(
    ("provider", "name", "command"),
    [
        (_CUDA, "libcublasLt.so.13", 'pip install "onnxruntime-gpu[cuda,cudnn]"'),
        (_TENSORRT, "libnvinfer.so.10", '"tensorrt-cu13<11"'),
    ],
    ids=["cuda", "tensorrt"],
)
def test_a_missing_library_is_named_with_what_brings_it(
    machine: FakeMachine, provider: Provider, name: str, command: str
) -> None:
    machine.missing = {name}
    sentence = cuda.problem(provider)
    assert sentence.startswith(f"{name}: cannot open shared object file")
    assert command in sentence
    assert "driver" not in sentence


def test_a_missing_driver_is_not_mended_by_pip(machine: FakeMachine) -> None:
    machine.missing = {"libcuda.so.1"}
    assert cuda.problem(_CUDA).startswith("no driver of NVIDIA is installed (libcuda.so.1)")
    machine.missing.add("libcublasLt.so.13")
    assert cuda.problem(_CUDA).endswith("also, no driver of NVIDIA is installed (libcuda.so.1)")


def test_a_driver_without_a_device_says_so(machine: FakeMachine) -> None:
    machine.code = 100
    assert "no CUDA-capable device is detected (CUDA error 100)" in cuda.problem(_CUDA)


def test_libraries_are_loaded_once_and_without_a_word(
    machine: FakeMachine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """NVIDIA's packages may lie in another folder than ONNX Runtime's, as beside ``--target``."""
    folder = tmp_path / "nvidia" / "cu13" / "lib"
    folder.mkdir(parents=True)
    sys.path.append(str(tmp_path))
    for _ in range(2):
        cuda.preload(_CUDA)
    assert machine.preloaded == [None, str(folder)]
    assert capsys.readouterr() == ("", "")


def test_an_older_onnxruntime_cannot_preload(
    machine: FakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda, "onnxruntime", SimpleNamespace())
    assert cuda.problem(_CUDA) == ""


def test_providers_without_such_libraries_load_none(machine: FakeMachine) -> None:
    assert cuda.problem(PROVIDERS["openvino"]) == ""
    assert machine.opened == machine.preloaded == []
