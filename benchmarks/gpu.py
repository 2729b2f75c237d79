"""What a study gives on a CUDA device: beside the default session, a script, and PyTorch.

    python benchmarks/gpu.py [--minutes 7.5] [--models cnn,encoder,decoder] [--to FILE]
                              [--folder DIR] [--rehearse] [--json]

It makes three models with fixed seeds: a convolution network on batches of 8 images, a transformer
encoder on batches of texts with their true lengths, and a decoder. Every way to run them is timed
in a process of its own: the default CUDA session on arrays; the same session with all tensors on
the device, as a script binds them; PyTorch in half precision, eager and compiled, where it is
installed; and the config of a study with ``--space cuda``, called both ways. The table goes to
FILE too, a row at a time. It needs no network: onnxruntime-gpu, autotune's own needs, and PyTorch
if it is to be compared. The error is the largest relative L2 error of an output, beside the CPU's
in float without optimisations. ``--rehearse`` runs small models on the CPU, to see that the script
works; its numbers mean nothing.
"""

import contextlib
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import gpu_models
import numpy as np
import onnxruntime
import program
from gpu_contenders import ARRAYS, BOUND, COMPILED, EAGER, REFERENCE, TUNED, TUNED_ARRAYS

import autotune
from autotune.facts.providers import READY, provider_states

_HERE = Path(__file__).parent
_OTHERS, _OURS = (ARRAYS, BOUND, EAGER, COMPILED), (TUNED_ARRAYS, TUNED)
_LONGEST_WAY_S = 100.0
# What timing a config takes at most, and what a study may take beyond its limit.
_RESERVE_S, _ENDING_S = 20.0, 20.0
# How the time is shared out: a decoder's measurements are of prompts, steps and text.
_WEIGHTS = {gpu_models.CNN: 1.0, gpu_models.ENCODER: 1.0, gpu_models.DECODER: 1.4}
_HEAD = f"{'':29}{'ms':>10}{'of default':>12}{'device MiB':>12}{'error':>10}"


def main() -> None:
    """Prints a row for each way, as soon as it is measured."""
    parser = program.parser_of(__doc__)
    parser.add_argument("--minutes", type=float, default=7.5, help="for everything")
    parser.add_argument("--models", metavar="NAME,NAME", default=",".join(gpu_models.NAMES))
    parser.add_argument("--to", type=Path, help="a file for the table")
    parser.add_argument("--folder", type=Path, help="keeps models and studies")
    parser.add_argument("--rehearse", action="store_true", help="small models on the CPU")
    given = parser.parse_args()
    end = time.monotonic() + given.minutes * 60
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)
        if given.to is not None:
            given.to.write_text("\n".join(lines) + "\n", "utf-8")

    device = "cpu" if given.rehearse else "cuda"
    if device == "cuda" and (reason := why_not()):
        sys.exit(f"CUDA cannot be used here: {reason}")
    for line in machine_lines(device):
        say(line)
    with tempfile.TemporaryDirectory() as scratch:
        root = given.folder or Path(scratch)
        rows: dict[str, dict[str, Any]] = {}
        names = given.models.split(",")
        for number, name in enumerate(names):
            whole = sum(_WEIGHTS[other] for other in names[number:])
            left_s = (end - time.monotonic()) * _WEIGHTS[name] / whole
            rows[name] = run_model(name, root / name, device, left_s, say)
    program.print_json(given, {"models": rows})


def why_not() -> str:
    """Returns why CUDA cannot be used here; empty if it can."""
    state = next(state for state in provider_states() if state.word == "cuda")
    return "" if state.state == READY else state.reason


def machine_lines(device: str) -> Iterator[str]:
    """Yields the device, its driver and the versions of what runs."""
    if device == "cpu":
        yield "a rehearsal: small models on the CPU; the numbers mean nothing"
    else:
        yield _device_line()
    versions = [f"Python {sys.version.split()[0]}", f"autotune {autotune.__version__}"]
    versions.append(f"ONNX Runtime {onnxruntime.__version__}")
    with contextlib.suppress(metadata.PackageNotFoundError):
        versions.append(f"PyTorch {metadata.version('torch')}")
    yield ", ".join(versions)


def _device_line() -> str:
    try:
        import pynvml
    except ImportError:
        return "a CUDA device; nvidia-ml-py, which would name it, is not installed"
    pynvml.nvmlInit()
    first = pynvml.nvmlDeviceGetHandleByIndex(0)
    total_gib = pynvml.nvmlDeviceGetMemoryInfo(first).total / 2**30
    driver = pynvml.nvmlSystemGetDriverVersion()
    return f"{pynvml.nvmlDeviceGetName(first)}, {total_gib:.0f} GiB, driver {driver}"


def run_model(
    name: str, folder: Path, device: str, left_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """Times the other ways to run one model, studies it, and times its config; returns the rows."""
    end = time.monotonic() + left_s
    sizes = gpu_models.SMALL if device == "cpu" else gpu_models.Sizes()
    gpu_models.write(name, sizes, folder)
    say("")
    say(f"{name}: {_meaning(name, sizes)}")
    say(_HEAD)
    reference = contend(REFERENCE, name, folder, device, _LONGEST_WAY_S)
    if isinstance(reference, str):
        say(f"the reference fails: {reference}")
        return {}
    rows: dict[str, Any] = {}
    studied = ""
    for way in (*_OTHERS, *_OURS):
        if way in (EAGER, COMPILED) and importlib.util.find_spec("torch") is None:
            say(f"{way:29} PyTorch is not installed")
            continue
        if way == TUNED_ARRAYS and name == gpu_models.DECODER:
            continue  # autotune.generation binds by itself
        if way in _OURS and not studied:
            studied = study(name, folder, device, sizes, end - time.monotonic() - _RESERVE_S)
        limit_s = min(_LONGEST_WAY_S, end - time.monotonic())
        numbers = contend(way, name, folder, device, limit_s)
        if isinstance(numbers, str):
            say(f"{way:29} {numbers}")
            continue
        rows[way] = numbers
        say(row(way, numbers, rows.get(ARRAYS, {}).get("ms"), folder))
    say(studied)
    return rows


def _meaning(name: str, sizes: gpu_models.Sizes) -> str:
    if name == gpu_models.CNN:
        return f"a run takes {sizes.images} images of {sizes.image} x {sizes.image}"
    if name == gpu_models.ENCODER:
        lengths = [feed["input_ids"].shape[1] for feed in gpu_models.feeds(name, sizes)]
        padded = ", ".join(map(str, lengths))
        return f"the mean of batches of {sizes.texts} texts, padded to {padded} tokens"
    return f"a step after {sizes.prompt} tokens, {sizes.new} of them in a row"


def study(name: str, folder: Path, device: str, sizes: gpu_models.Sizes, left_s: float) -> str:
    """Studies a model; returns what it selected and confirmed, or why it failed."""
    limit_s = max(_ENDING_S + 10.0, left_s)
    command = [sys.executable, "-m", "autotune", "study", f"{name}.onnx", "--out", "out"]
    command += ["--timeout", f"{limit_s - _ENDING_S:.0f}s"]
    command += ["--space", "cuda"] if device == "cuda" else ["--trials", "3"]
    if name == gpu_models.DECODER:
        command += ["--prompt-tokens", str(sizes.prompt), "--set", f"new_tokens={sizes.new}"]
    else:
        command += ["--data", "inputs"]
    began = time.monotonic()
    log = folder / "study.txt"
    remark = ""
    with log.open("w") as output:
        child = subprocess.Popen(command, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
        try:
            child.wait(limit_s)
        except subprocess.TimeoutExpired:
            remark = "; ended before its final comparison was"
            child.send_signal(signal.SIGINT)
            try:
                child.wait(_ENDING_S)
            except subprocess.TimeoutExpired:
                child.kill()
    try:
        best = json.loads((folder / "out" / "best.json").read_text("utf-8"))
        front = json.loads((folder / "out" / "front.json").read_text("utf-8"))
    except FileNotFoundError:
        return f"the study fails: {log.read_text('utf-8').strip()[-500:]}"
    words = ", ".join(f"{key}={value}" for key, value in best["configuration"].items())
    trials, spent_s = front["trials"], time.monotonic() - began
    lines = log.read_text("utf-8").splitlines()
    verdict = next((line for line in lines if line.startswith(f"{name}.onnx: ")), "no verdict")
    return (
        f"the study: {trials} trials, {spent_s:.0f} s{remark}; selected: {words or 'the default'}\n"
        f"it says: {verdict}"
    )


def contend(way: str, name: str, folder: Path, device: str, limit_s: float) -> Any:
    """Returns the numbers of a way, or why there are none."""
    if limit_s < 5:
        return "not measured: no time was left"
    command = [sys.executable, str(_HERE / "gpu_contenders.py"), way, name, str(folder), device]
    command += ["--small"] if device == "cpu" else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return f"not ended within {limit_s:.0f} s"
    if done.returncode:
        (folder / f"{way}.err").write_text(done.stderr, "utf-8")
        return f"fails: {done.stderr.strip().splitlines()[-1][:300] if done.stderr else 'no word'}"
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(way: str, numbers: dict[str, Any], default_ms: float | None, folder: Path) -> str:
    """Returns the row of a way."""
    share = f"{numbers['ms'] / default_ms:.2f}" if default_ms else ""
    memory = "unknown" if numbers["device_mib"] is None else f"{numbers['device_mib']:.0f}"
    line = f"{way:29}{numbers['ms']:10.3f}{share:>12}{memory:>12}{error(way, folder):10.1e}"
    return line + (f"   prompt {numbers['prompt_ms']:.2f} ms" if numbers.get("prompt_ms") else "")


def error(way: str, folder: Path) -> float:
    """Returns the largest relative L2 error of an output beside the reference."""
    with np.load(folder / f"{REFERENCE}.npz") as right, np.load(folder / f"{way}.npz") as other:
        names = set(right) & set(other)
        return max(
            float(np.linalg.norm(right[n] - other[n]) / np.linalg.norm(right[n])) for n in names
        )


if __name__ == "__main__":
    main()
