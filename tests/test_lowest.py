"""The lowest versions that the project allows are those that are tested.

Called as a program, this file prints what ``tests/lowest.txt`` must hold:

    python tests/test_lowest.py > tests/lowest.txt
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOWEST = ROOT / "tests" / "lowest.txt"
# They check the code and do not run it; the flavours of ONNX Runtime exclude each other.
LEFT_OUT = {"mypy", "ruff", "types-psutil"}
EXTRAS = ("cpu", "grpc", "passes", "postgresql", "test")


def lowest_versions() -> list[str]:
    """Returns a constraint for each lower bound in pyproject.toml, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = list(project["dependencies"])
    for extra in EXTRAS:
        requirements += project["optional-dependencies"][extra]
    matches = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?>=([0-9.]+)", text) for text in requirements]
    pairs = {match[1]: match[2] for match in matches if match}
    return sorted(f"{name}=={version}" for name, version in pairs.items() if name not in LEFT_OUT)


def test_the_tested_versions_are_the_lowest() -> None:
    """A bound that changes in pyproject.toml changes what .ci/run installs."""
    assert LOWEST.read_text(encoding="ascii").splitlines() == lowest_versions()


def test_every_dependency_has_a_bound() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    ours = [t for group in groups for t in group if not t.startswith("ort-autotune[")]
    assert [text for text in ours if ">=" not in text] == []


if __name__ == "__main__":
    sys.stdout.write("\n".join(lowest_versions()) + "\n")
