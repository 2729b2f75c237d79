"""Runs loader_check.py in environments with other versions of ONNX Runtime; see README.md."""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SHORT = ("oldest", "newest")


def packages() -> dict[str, list[str]]:
    """Returns what is installed in each environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = project["optional-dependencies"]["cpu"]
    lowest = re.fullmatch(r"onnxruntime>=([0-9.]+)", requirement)
    assert lowest is not None, requirement
    # exports are written there as well, with Jinja2; what they wrote needs NumPy alone
    others = ["jinja2", "numpy"]
    return {
        "oldest": [f"onnxruntime=={lowest[1]}.*", *others],
        "newest": ["onnxruntime", *others],
        "openvino": ["onnxruntime-openvino", *others],
    }


def run(name: str, requirements: list[str], folder: Path) -> bool:
    """Returns whether the checks pass in a new environment, after printing what they say."""
    place = folder / name
    venv.create(place, with_pip=True)
    python = place / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *requirements], check=True)
    scratch = folder / f"{name}.scratch"
    scratch.mkdir()
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(python), str(HERE / "loader_check.py"), str(ROOT), str(scratch)],
        env=environment,
        check=False,
        capture_output=True,
        text=True,
    )
    sys.stdout.write(f"{name}: {done.stdout.strip() or done.stderr.strip()}\n")
    sys.stdout.flush()
    return done.returncode == 0


def main() -> None:
    """Makes the environments and runs the checks in each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help=f"only {', '.join(SHORT)}")
    short = parser.parse_args().short
    with tempfile.TemporaryDirectory() as folder:
        outcomes = [
            run(name, requirements, Path(folder))
            for name, requirements in packages().items()
            if name in SHORT or not short
        ]
    sys.exit(0 if all(outcomes) else 1)


if __name__ == "__main__":
    main()
