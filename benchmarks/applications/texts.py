"""A text encoder over texts of 4 to 512 tokens: batches by the batcher of a study of its traffic.

    python benchmarks/applications/texts.py [--texts 5000] [--trials 40] [--rounds 3]

The encoder has random weights, and answers the vector of the first position. Today's application
pads batches of 64 texts, in the order in which they come, to the longest, under ONNX Runtime's
default. The tuned one loads the config of `autotune study --traffic` and groups the texts by
`autotune.batcher`. Both are plain processes in turns; each says its texts per second and what it
holds at the end, above what it held before its session. Then fresh processes run the tuned one:
none may hold more than --max-held.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from autotune.deploy.batcher import Batcher, Batches
from autotune.facts import sample_models

_BATCH = 64
_VOCABULARY = 1000


def lengths_of(texts: int) -> list[int]:
    """Returns the numbers of tokens: most texts are short, a few have 512."""
    chance = random.Random(1)
    return [min(512, max(4, round(chance.lognormvariate(4.0, 1.0)))) for _ in range(texts)]


def write_encoder(path: Path) -> None:
    """Writes an encoder whose padding is harmless: it answers the vector of the first position."""
    model = sample_models.transformer(width=128, heads=4, layers=4, words=_VOCABULARY)
    last = model.graph.node.pop()
    model.graph.initializer.append(numpy_helper.from_array(np.array(0), "first"))
    first = helper.make_node("Gather", [last.input[0], "first"], ["embedding"], axis=1)
    model.graph.node.append(first)
    onnx.save(model, path)


def held_mib() -> float:
    """Returns what this process holds."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.findall(r"VmRSS:\s+(\d+)", status)[0]) / 1024


def run(way: str, model: Path, texts: int) -> None:
    """Runs all texts in this process and prints its texts per second and held memory."""
    import onnxruntime

    import autotune
    import autotune.deploy.loader  # imported before the memory is looked at

    chance = np.random.default_rng(0)
    samples = [
        {
            "input_ids": chance.integers(0, _VOCABULARY, length),
            "attention_mask": np.ones(length, np.int64),
        }
        for length in lengths_of(texts)
    ]
    base_mib = held_mib()
    if way == "today":
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    else:
        session = autotune.load(model)
    began = time.perf_counter()
    if way == "today":
        for first in range(0, texts, _BATCH):
            part = samples[first : first + _BATCH]
            longest = max(len(sample["input_ids"]) for sample in part)
            padded = {
                name: np.stack([np.pad(s[name], (0, longest - len(s[name]))) for s in part])
                for name in part[0]
            }
            session.run(None, padded)
    else:
        autotune.batcher(model).run(session, samples)
    seconds = time.perf_counter() - began
    print(json.dumps({"texts_per_s": texts / seconds, "held_mib": held_mib() - base_mib}))


def in_a_process(way: str, model: Path, texts: int) -> dict[str, float]:
    """Returns what a fresh process says."""
    command = [sys.executable, __file__, "--run", way, str(model), "--texts", str(texts)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return said


def batches_of(texts: int) -> list[dict[str, object]]:
    """Returns the shapes that the batcher makes of the texts: what the tuned application runs."""
    lengths = lengths_of(texts)
    by_longest = Batches.for_longest({"input_ids": 1}, max(lengths))
    samples = [{"input_ids": np.empty(length, np.int64)} for length in lengths]
    shapes = Counter(feed["input_ids"].shape for _, feed in Batcher(by_longest).batches(samples))
    return [
        {"dimensions": {"batch": batch, "sequence": sequence}, "share": count}
        for (batch, sequence), count in sorted(shapes.items())
    ]


def tuned(model: Path, texts: int, options: argparse.Namespace) -> Path:
    """Returns the config of a study of the batches."""
    traffic, out = options.folder / "traffic.json", options.folder / "texts.autotune"
    traffic.write_text(json.dumps(batches_of(texts)))
    command = [sys.executable, "-m", "autotune", "study", str(model), "--out", str(out)]
    command += ["--traffic", str(traffic), "--trials", str(options.trials), "--wait", "--quiet"]
    command += ["--objective", "latency", "--objective", "held_memory"]
    command += ["--max-held-memory", f"{options.max_held}MiB"]
    subprocess.run(command, check=True)
    config: Path = out / "best.json"
    return config


def figures(runs: Sequence[dict[str, float]]) -> tuple[float, float]:
    """Returns the median texts per second, and the most that a process held."""
    rates, held = ([said[name] for said in runs] for name in ("texts_per_s", "held_mib"))
    return statistics.median(rates), max(held)


def main() -> None:
    """Builds the encoder, tunes it and prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=5000)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=20, help="fresh ones for the limit")
    parser.add_argument("--max-held", type=float, default=100.0, help="limit of held memory, MiB")
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--run", nargs=2, metavar=("WAY", "MODEL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run is not None:
        run(options.run[0], Path(options.run[1]), options.texts)
        return
    with tempfile.TemporaryDirectory() as temporary:
        options.folder = options.folder or Path(temporary)
        options.folder.mkdir(parents=True, exist_ok=True)
        model = options.folder / "texts.onnx"
        write_encoder(model)
        config = tuned(model, options.texts, options)
        ways = {"today": model, "tuned": config}
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for turn in range(options.rounds):
            for way in sorted(ways, reverse=turn % 2 == 1):
                runs[way].append(in_a_process(way, ways[way], options.texts))
        (rate, held), (tuned_rate, tuned_held) = figures(runs["today"]), figures(runs["tuned"])
        print(f"batches of {_BATCH} padded to the longest: {rate:.0f} texts/s, {held:.0f} MiB held")
        print(f"tuned, by the batcher: {tuned_rate:.0f} texts/s, {tuned_held:.0f} MiB held")
        print(f"{tuned_rate / rate:.2f} times the texts per second (target 1.8), ", end="")
        print(f"{tuned_held / held:.2f} of the held memory (target 0.45)")
        fresh = [in_a_process("tuned", config, options.texts) for _ in range(options.processes)]
        kept = sum(said["held_mib"] <= options.max_held for said in fresh)
        print(f"limit of {options.max_held:g} MiB: kept by {kept} of {options.processes} processes")


if __name__ == "__main__":
    main()
