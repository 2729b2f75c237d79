"""What a runtime is called: a distribution of ONNX Runtime and its version."""

import platform
import re
from collections.abc import Sequence
from typing import NamedTuple

from autotune.deploy.providers import DISTRIBUTIONS, PROVIDERS
from autotune.errors import RequestError, did_you_mean

ALL = "all"
"""The word for every build that this kind of machine has, and every runtime that was added."""

_PLUGINS = frozenset(p.plugin.package for p in PROVIDERS.values() if p.plugin is not None)
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,40}")


class Release(NamedTuple):
    """A distribution of ONNX Runtime in one version.

    Attributes:
        name: The distribution's name for pip.
        version: Its version; empty where any will do.
    """

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name}=={self.version}" if self.version else self.name

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the version, to order releases by."""
        return tuple(map(int, re.findall("[0-9]+", self.version)))


def read_release(text: str) -> Release:
    """Returns the release that ``NAME`` or ``NAME==VERSION`` names.

    Raises:
        RequestError: there is no such distribution, or the version is none.
    """
    name, _, version = text.strip().partition("==")
    name = re.sub("[-_.]+", "-", name).lower()
    if name in _PLUGINS:
        raise RequestError(
            f"{name} is a plugin that runs beside onnxruntime: `pip install {name}` is all that it "
            "needs, and a study then searches its provider"
        )
    if name not in DISTRIBUTIONS:
        raise RequestError(
            f"there is no runtime '{name}'; name one of {', '.join(DISTRIBUTIONS)}."
            f"{did_you_mean(name, DISTRIBUTIONS)}"
        )
    if "==" in text and not _VERSION.fullmatch(version):
        raise RequestError(f"'{version}' is no version; write {name}==1.28.0, or {name} alone")
    return Release(name, version)


def read_releases(texts: Sequence[str]) -> list[Release]:
    """Returns the releases in lists such as ``onnxruntime==1.22.1,1.28.0``, each once.

    A version without a name belongs to the name before it.

    Raises:
        RequestError: one of them is none.
    """
    releases: list[Release] = []
    for part in (part.strip() for text in texts for part in text.split(",")):
        is_version = bool(_VERSION.fullmatch(part))
        if is_version and not releases:
            raise RequestError(f"'{part}' has no name before it; write onnxruntime=={part}")
        full = f"{releases[-1].name}=={part}" if is_version else part
        releases.append(read_release(full))
    return list(dict.fromkeys(releases))


def builds_for(system: str = platform.system(), machine: str = platform.machine()) -> list[str]:
    """Returns the distributions that the package index has for a kind of machine.

    Those for GPUs are left out: such a GPU's libraries would have to be in the user's environment.
    """
    builds = ["onnxruntime"]
    if system in ("Linux", "Windows") and machine.lower() in ("x86_64", "amd64"):
        builds.append("onnxruntime-openvino")
    if system == "Windows":
        builds.append("onnxruntime-directml")
    return builds
