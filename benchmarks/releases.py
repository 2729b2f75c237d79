"""Whether `autotune bisect` finds the release that brought a slowdown, and raises no false alarm.

    python benchmarks/releases.py [MODEL.onnx] [--slowdown 0.05] [--release 4] [--alarms 20]

Five releases are made that are the installed ONNX Runtime in another wheel; from one of them on a
run takes longer by a share. Then the first release is compared with itself, many times over.
"""

import argparse
import base64
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

_MODELS = Path(__file__).parent.parent.parent / "shared" / "models"
_RELEASES = 5
_PACKAGE = '''
"""The installed ONNX Runtime, whose runs take longer by a share."""
import importlib, sys, time
from pathlib import Path
_HERE, _SLOWDOWN = Path(__file__).parent, {slowdown}
_paths = sys.path[:]
sys.path[:] = [path for path in sys.path if Path(path or ".").resolve() != _HERE.parent.resolve()]
del sys.modules["onnxruntime"]
importlib.invalidate_caches()
_real = importlib.import_module("onnxruntime")
sys.path[:] = _paths

def _slower(name):
    run = getattr(_real.InferenceSession, name)
    def slower(self, *arguments, **named):
        began = time.perf_counter()
        outputs = run(self, *arguments, **named)
        end = began + (1 + _SLOWDOWN) * (time.perf_counter() - began)
        while time.perf_counter() < end:
            pass
        return outputs
    setattr(_real.InferenceSession, name, slower)

if _SLOWDOWN:
    for _name in ("run", "run_with_ort_values", "run_with_iobinding"):
        _slower(_name)
_real.__file__ = _real.__spec__.origin = __file__
'''


def main() -> None:
    """Prints what bisect finds, and how often it raises an alarm for equal releases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", default=_MODELS / "magika.onnx")
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--release", type=int, default=4)
    parser.add_argument("--alarms", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, _RELEASES + 1):
            write_wheel(Path(folder), number, given.slowdown if number >= given.release else 0.0)
        environment = {
            **os.environ,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": folder,
            "XDG_CACHE_HOME": f"{folder}/cache",
        }
        found = bisect(given.model, 1, _RELEASES, environment)
        print(f"slowdown of {given.slowdown:.0%} since release {given.release}: {found['changes']}")
        alarms = [bisect(given.model, 1, 1, environment)["changes"] for _ in range(given.alarms)]
    raised = sum(map(bool, alarms))
    print(f"alarms for equal releases: {raised} of {given.alarms}")
    if given.json:
        print(json.dumps({"changes": found["changes"], "alarms": raised, "tries": given.alarms}))


def bisect(model: Path, first: int, last: int, environment: dict[str, str]) -> Any:
    """Returns what the command prints as JSON."""
    data = model.with_name(f"{model.stem}_inputs.npz")
    releases = f"onnxruntime==9.0.{first}..9.0.{last}"
    command = [sys.executable, "-m", "autotune", "bisect", str(model), "--runtimes", releases]
    inputs = ["--data", str(data)] if data.is_file() else []
    done = subprocess.run(
        [*command, *inputs, "--json"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


def write_wheel(folder: Path, number: int, slowdown: float) -> None:
    """Writes the wheel of a release."""
    version = f"9.0.{number}"
    info = f"onnxruntime-{version}.dist-info"
    files = {
        "onnxruntime/__init__.py": _PACKAGE.format(slowdown=slowdown),
        "onnxruntime/capi/__init__.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: onnxruntime\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: benchmark\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    rows = [f"{info}/RECORD,,"]
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        rows.append(f"{path},sha256={digest.decode()},{len(text.encode())}")
    with zipfile.ZipFile(folder / f"onnxruntime-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": "\n".join(rows)}.items():
            archive.writestr(path, text)


if __name__ == "__main__":
    main()
