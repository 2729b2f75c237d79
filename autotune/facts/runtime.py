"""Which ONNX Runtime is installed, and what it can use."""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The installed ONNX Runtime.

    Attributes:
        version: Such as ``1.31.1``.
        build: The text of ``onnxruntime.get_build_info()``.
        providers: The execution providers of this build, in its own order.
    """

    version: str
    build: str
    providers: tuple[str, ...]


@cache
def runtime() -> Runtime:
    """Returns the installed ONNX Runtime.

    Raises:
        MissingPackageError: no flavour of it is installed.
    """
    from autotune.deploy.runtime import onnxruntime

    return Runtime(
        version=onnxruntime.__version__,
        build=onnxruntime.get_build_info(),
        providers=tuple(onnxruntime.get_available_providers()),
    )
