"""Whether the peak memory that a trial reports is what an independent script sees.

    python benchmarks/memory.py [FOLDER] [--repeats 3] [--quick] [--json]

For each model (those in FOLDER, else samples made here) under six configurations: the peak of a
trial, and that of a script of a few lines that opens the same file with plain onnxruntime in a
fresh process and reads the kernel's high-water mark. Every trial is compared with every run of the
script; the table shows the range of each.

glibc's allocator serves large blocks from the heap once it has seen one freed, and how much of the
heap then stays behind depends on where the kernel put it and on what the process did before: the
same script under the same options differs from itself by a third, and a trial from the script as
much. An application has a history of its own again. So both sides are compared with that rule
switched off (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_: large blocks go back
when they are freed), which autotune hands on to its processes. What both show without it stands
beside it, under "as it is", and in as_is_worst_relative: the allocator, and not what is measured.

A study reports the largest peak of a few processes whose heaps have different histories, and the
range in which another process lies with 95 %. Here each repeat is a round of a final comparison,
and the last column is that range with the share of the script's runs that lie within it, as it is;
held is the share over all rows.

A pair within 2 MiB agrees: that is what differs between two starts of the same program.
worst_relative is the largest relative difference among the others, 0 where there are none;
worst_mib the largest difference of all.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import program
from inputs import workload_of

from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.facts.model import describe
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Failure, Measurement
from autotune.results.score import HeapLuck

_AGREE_MIB = 2.0
_SHORT = Effort(time_cap_s=0.01, patience_s=0.01, half_width=1.0)
_STEADY = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
_NO_PREPACKING = {"session.disable_prepacking": "1"}
_CONFIGS = {
    "default": SessionConfig(),
    "arena off": SessionConfig(options={"enable_cpu_mem_arena": False}),
    "no pre-packing": SessionConfig(entries=_NO_PREPACKING),
    "one thread": SessionConfig(options={"intra_op_num_threads": 1}),
    "no NCHWc": SessionConfig(disabled_optimizers=("NchwcTransformer",)),
    "external data": SessionConfig(entries=_NO_PREPACKING),
}

_SCRIPT = """
import json, re, sys
import numpy, onnxruntime

def memory(name):
    with open("/proc/self/status") as status:
        return int(re.search(name + r":\\s+(\\d+) kB", status.read())[1]) / 1024

given = json.loads(sys.argv[1])
feeds = {}
with numpy.load(given["samples"]) as archive:
    for key in archive.files:
        index, name = key.split(":", 1)
        feeds.setdefault(index, {})[name] = archive[key]
settings = onnxruntime.SessionOptions()
for name, value in given["options"].items():
    setattr(settings, name, value)
for name, value in given["entries"].items():
    settings.add_session_config_entry(name, value)
before = memory("VmRSS")
with open("/proc/self/clear_refs", "w") as mark:
    mark.write("5")
session = onnxruntime.InferenceSession(
    given["model"],
    settings,
    providers=["CPUExecutionProvider"],
    disabled_optimizers=given["disabled_optimizers"] or None,
)
for _ in range(given["rounds"]):
    for feed in feeds.values():
        session.run(None, feed)
print(memory("VmHWM") - before)
"""


def main() -> None:
    """Prints a row for each model and configuration."""
    parser = program.parser_of(__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--repeats", type=int, default=4, help="of each side")
    parser.add_argument("--quick", action="store_true", help="2 repeats")
    parser.add_argument("--configs", type=int, default=len(_CONFIGS), help="how many of the six")
    given = parser.parse_args()
    repeats = 2 if given.quick else given.repeats
    rows = []
    print(
        f"{'MiB':40} {'trial':>15} {'script':>15}   {'as it is: trial':>15} {'script':>15} "
        f"{'reported':>15} {'held':>5}"
    )
    with tempfile.TemporaryDirectory() as scratch:
        models = _made(Path(scratch)) if given.folder is None else given.folder.glob("*.onnx")
        for path in sorted(models):
            for row in check(path, Path(scratch), list(_CONFIGS)[-given.configs :], repeats):
                rows.append(row)
                columns = [_range(row[side]) for side in ("trial", "script")]
                plain = [_range(row[side]) for side in ("trial_as_is", "script_as_is")]
                name = f"{row['model']}, {row['config']}"
                print(
                    f"{name:40} {columns[0]:>15} {columns[1]:>15}   {plain[0]:>15} {plain[1]:>15} "
                    f"{_range(row['reported']):>15} {row['held']:>5.0%}",
                    flush=True,
                )
    pairs = [pair for row in rows for pair in product(row["trial"], row["script"])]
    worst_mib = max(abs(trial - script) for trial, script in pairs)
    worst_relative = max(map(_disagreement, pairs))
    plain_pairs = [p for row in rows for p in product(row["trial_as_is"], row["script_as_is"])]
    plain_relative = max(map(_disagreement, plain_pairs))
    luck = max(max(row["script_as_is"]) / min(row["script_as_is"]) - 1 for row in rows)
    held = sum(row["held"] for row in rows) / len(rows)
    print(f"largest difference {worst_mib:.2f} MiB; among those above {_AGREE_MIB:g} MiB ", end="")
    print(f"{worst_relative:.1%}")
    print(
        f"as it is: among those above {_AGREE_MIB:g} MiB {plain_relative:.0%}, and the script "
        f"differs from itself by up to {luck:.0%}"
    )
    print(f"the reported range holds {held:.0%} of what the script sees")
    if given.json:
        summary = {"worst_relative": worst_relative, "worst_mib": worst_mib}
        as_is = {
            "as_is_worst_relative": plain_relative,
            "script_as_is_spread": luck,
            "held": held,
        }
        print(json.dumps({**summary, **as_is, "rows": rows}))


def check(
    path: Path, scratch: Path, configs: Sequence[str], repeats: int
) -> Iterator[dict[str, Any]]:
    """Yields what both sides see of one model, a row for each configuration."""
    model = describe(path)
    workload = workload_of(path, model)
    samples = enumerate(workload.timing)
    arrays: Any = {f"{i}:{name}": a for i, sample in samples for name, a in sample.items()}
    np.savez(scratch / "samples.npz", **arrays)
    # twenty runs as a trial's, all samples included
    rounds = -(-20 // len(workload.timing))
    external = _with_external_data(path, scratch)
    measurer = DuetMeasurer(model, workload, max_error=0.05)
    try:
        files = {n: external if n == "external data" else path.resolve() for n in configs}
        requests = {
            name: json.dumps(
                {
                    "model": str(file),
                    "samples": str(scratch / "samples.npz"),
                    "rounds": rounds,
                    "options": dict(_CONFIGS[name].options),
                    "entries": dict(_CONFIGS[name].entries),
                    "disabled_optimizers": list(_CONFIGS[name].disabled_optimizers),
                }
            )
            for name, file in files.items()
        }
        steady, as_is = (
            _rounds(measurer, files, requests, repeats, variables) for variables in (_STEADY, {})
        )
        luck = HeapLuck.of(as_is.trials.values())
        for name in configs:
            expected = luck.expected(as_is.trials[name])
            reported = [] if expected is None else [expected.low, expected.high]
            seen = as_is.scripts[name]
            yield {
                "model": path.stem,
                "config": name,
                "trial": [m.peak_memory_mib for m in steady.trials[name]],
                "script": steady.scripts[name],
                "trial_as_is": [m.peak_memory_mib for m in as_is.trials[name]],
                "script_as_is": seen,
                "reported": reported,
                "held": sum(min(reported) <= mib <= max(reported) for mib in seen) / len(seen)
                if reported
                else 0.0,
            }
    finally:
        measurer.close()


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What both sides see, by configuration."""

    trials: dict[str, list[Measurement]]
    scripts: dict[str, list[float]]


def _rounds(
    measurer: DuetMeasurer,
    files: Mapping[str, Path],
    requests: Mapping[str, str],
    repeats: int,
    variables: dict[str, str],
) -> _Seen:
    """Returns what both sides see in rounds with these variables of the environment."""
    seen = _Seen(trials={name: [] for name in files}, scripts={name: [] for name in files})
    with _environment(variables):
        for _ in range(repeats):
            measurer.renew()
            for name, file in files.items():
                seen.trials[name].append(_trial(measurer, file, _CONFIGS[name]))
                seen.scripts[name].append(_independent(requests[name]))
    return seen


def _trial(measurer: DuetMeasurer, file: Path, config: SessionConfig) -> Measurement:
    outcome = measurer.measure_session(file, config, _SHORT)
    if isinstance(outcome, Failure):
        raise SystemExit(f"{file.name} cannot be measured: {outcome.message}")
    assert isinstance(outcome, Measurement)
    return outcome


def _independent(request: str) -> float:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-c", _SCRIPT, request]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


@contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


def _with_external_data(path: Path, scratch: Path) -> Path:
    folder = Path(tempfile.mkdtemp(dir=scratch))
    file = folder / path.name
    onnx.save(
        onnx.load(path), file, save_as_external_data=True, location="weights", size_threshold=1024
    )
    # pages that are not written back yet count otherwise
    os.sync()
    return file


def _made(folder: Path) -> list[Path]:
    models = {
        "cnn-small": sample_models.separable_cnn(),
        "cnn-large": sample_models.separable_cnn(channels=256, size=112, blocks=24),
        "transformer-small": sample_models.transformer(),
        "transformer-large": sample_models.transformer(width=512, heads=8, layers=6, words=8000),
        "lstm-large": sample_models.lstm(features=256, width=768),
    }
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    return [folder / f"{name}.onnx" for name in models]


def _disagreement(pair: tuple[float, float]) -> float:
    trial, script = pair
    return 0.0 if abs(trial - script) <= _AGREE_MIB else abs(trial - script) / script


def _range(values: list[float]) -> str:
    return f"{min(values):.1f} to {max(values):.1f}" if values else "unknown"


if __name__ == "__main__":
    main()
