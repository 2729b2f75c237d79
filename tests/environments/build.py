"""Builds environments with other execution providers than the CPU's, for the tests beside it.

    python tests/environments/build.py FOLDER [openvino|ggml|plugins ...]
    AUTOTUNE_ENVIRONMENTS=FOLDER python -m pytest -m environment

The flavours of ONNX Runtime exclude each other, so that each has an environment of its own, which
NAME.txt describes. Without a name all of them are built; one that is there is brought up to date.
"""

import argparse
import os
import subprocess
import venv
from pathlib import Path

_HERE = Path(__file__).parent
_NAMES = sorted(file.stem for file in _HERE.glob("*.txt"))


def main() -> None:
    """Builds the environments that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the folder of all environments")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_NAMES)}")
    given = parser.parse_args()
    for name in given.names or _NAMES:
        if name not in _NAMES:
            parser.error(f"there is no environment {name}; choose from {', '.join(_NAMES)}")
        build(given.folder / name, _HERE / f"{name}.txt")
        print(f"{given.folder / name} is built")  # noqa: T201  # the output of a script


def build(folder: Path, requirements: Path) -> None:
    """Makes an environment with these packages, autotune of this checkout and all it needs."""
    venv.create(folder, with_pip=True)
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    # only what is used is compiled, when it is imported
    quick = ["--quiet", "--disable-pip-version-check", "--no-compile"]
    packages = ["-r", str(requirements), "-e", str(_HERE.parent.parent)]
    subprocess.run([str(python), "-m", "pip", "install", *quick, *packages], check=True)


if __name__ == "__main__":
    main()
