"""The libraries of CUDA and TensorRT: loaded before the first session, named where one is missing.

ONNX Runtime from pip does not find the libraries of NVIDIA's pip packages by itself, and where one
is missing it says so in its log alone and runs the model on the CPU. Linux alone; elsewhere ONNX
Runtime's own search has to do. Needs the standard library and onnxruntime.
"""

import contextlib
import ctypes
import io
import sys
import threading
from pathlib import Path

from autotune.deploy.providers import Provider
from autotune.deploy.runtime import onnxruntime

_DRIVER = "libcuda.so.1"
_NO_DRIVER = f"no driver of NVIDIA is installed ({_DRIVER})"
_SEE_DEVICE = "nvidia-smi must list a GPU, and CUDA_VISIBLE_DEVICES must not hide it"

_loading = threading.Lock()
_loaded: set[str] = set()


def preload(provider: Provider) -> None:
    """Loads the libraries that `provider` needs into this process, as far as they are installed.

    ONNX Runtime looks for NVIDIA's packages beside itself alone, so those of other folders of
    ``sys.path`` are named to it. What it prints is left out: :func:`problem` says it in a sentence.
    """
    if not provider.libraries or sys.platform != "linux":
        return
    with _loading:
        if provider.name in _loaded:
            return
        _loaded.add(provider.name)
        if hasattr(onnxruntime, "preload_dlls"):
            with contextlib.redirect_stdout(io.StringIO()):
                onnxruntime.preload_dlls()
                for folder in _package_folders("nvidia/*/lib"):
                    onnxruntime.preload_dlls(directory=str(folder))
        for folder in _package_folders("tensorrt_libs"):
            for name in _names(provider):
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(folder / name))


def problem(provider: Provider) -> str:
    """Returns why `provider` cannot compute here, with what mends it; empty if nothing is known."""
    if not provider.libraries or sys.platform != "linux":
        return ""
    preload(provider)
    for name in _names(provider):
        try:
            ctypes.CDLL(name)
        except OSError as error:
            also = f"; also, {_NO_DRIVER}" if _driver() is None else ""
            return f"{error}; type {provider.remedy}{also}"
    driver = _driver()
    if driver is None:
        return f"{_NO_DRIVER}; install it, and {_SEE_DEVICE}"
    if code := driver.cuInit(0):
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        said = (text.value or b"the driver fails").decode(errors="replace")
        return f"{said} (CUDA error {code}); {_SEE_DEVICE}"
    return ""


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError:
        return None


def _names(provider: Provider) -> list[str]:
    """Returns the names of the provider's libraries for the CUDA of this ONNX Runtime."""
    version = str(getattr(onnxruntime, "cuda_version", "") or "")
    major = version.partition(".")[0]
    return [name.format(cuda=major) for name in provider.libraries if major or "{" not in name]


def _package_folders(pattern: str) -> list[Path]:
    """Returns the folders of that name in all places from which Python imports."""
    return [folder for place in sys.path if place for folder in sorted(Path(place).glob(pattern))]
