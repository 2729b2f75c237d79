"""Distributions of ONNX Runtime for tests: tiny ones that pretend, installed without a network."""

import base64
import hashlib
import zipfile
from pathlib import Path

PRETENDED = '''
"""It pretends to be ONNX Runtime."""
__version__ = {version!r}
def get_available_providers(): return {providers!r}
'''


def files_of(
    name: str,
    version: str,
    providers: list[str] | None = None,
    code: str | None = None,
    requires: str = "",
) -> dict[str, str]:
    """Returns the files of a distribution with the package ``onnxruntime``, by path."""
    folder = f"{name.replace('-', '_')}-{version}.dist-info"
    providers = providers or ["CPUExecutionProvider"]
    files = {
        "onnxruntime/__init__.py": code or PRETENDED.format(version=version, providers=providers),
        "onnxruntime/capi/__init__.py": "",
        "bin/onnxruntime_test": "a script, as uv lists it among the files",
        f"{folder}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {each}\n" for each in requires.split()),
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text.encode())}\n")
    return {**files, f"{folder}/RECORD": "".join([*rows, f"{folder}/RECORD,,\n"])}


def unpack(files: dict[str, str], target: Path) -> None:
    """Writes the files of a distribution to a folder, as an installer does."""
    for path, text in files.items():
        place = target / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")


def write_wheel(
    folder: Path,
    name: str,
    version: str,
    providers: list[str] | None = None,
    code: str | None = None,
) -> Path:
    """Writes the wheel of a distribution; returns its path."""
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in files_of(name, version, providers, code).items():
            archive.writestr(file, text)
    return path
