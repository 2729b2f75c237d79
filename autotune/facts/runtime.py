"""Which ONNX Runtime is installed, and what it can use."""

import contextlib
import re
from dataclasses import dataclass
from functools import cache
from importlib import metadata

from autotune.deploy.providers import PROVIDERS

# "/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(..) const ": the
# place and the function come before the message. Its arguments may hold parentheses of their own.
_PLACE = re.compile(
    r"(?<!\S)\S+\.(?:cc|h):[0-9]+ [^()]*\((?:[^()]|\([^()]*\))*\)"
    r"(?: const)?(?:::<lambda\([^()]*\)>)?(?: \[with [^\]]*\])? "
)
_CODE = re.compile(r"^\s*\[ONNXRuntimeError\] : [0-9]+ : \w+ : ")


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The installed ONNX Runtime.

    Attributes:
        version: Such as ``1.31.1``.
        build: The text of ``onnxruntime.get_build_info()``.
        providers: The execution providers of this build, in its own order.
        plugins: Name and version of each package that brings another one as a library.
    """

    version: str
    build: str
    providers: tuple[str, ...]
    plugins: tuple[str, ...] = ()


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
        plugins=_plugins(),
    )


def _plugins() -> tuple[str, ...]:
    """Returns name and version of the installed packages with a library of a provider."""
    installed = []
    for provider in PROVIDERS.values():
        if provider.plugin is not None:
            with contextlib.suppress(metadata.PackageNotFoundError):
                package = provider.plugin.package
                installed.append(f"{package} {metadata.version(package)}")
    return tuple(installed)


def without_places(message: str) -> str:
    """Returns a message of ONNX Runtime without its error code and places in its source code."""
    # the log has the place before the code, exceptions after it
    return _CODE.sub("", _PLACE.sub("", _CODE.sub("", message)))
