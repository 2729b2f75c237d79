"""A real decoder, tuned: tokens per second, memory, perplexity beside the default, GenAI's int4.

    python benchmarks/decoder.py FOLDER [--trials 60] [--llama MODEL.gguf]

FOLDER holds what ONNX Runtime GenAI's builder wrote of one model: ``fp32`` and ``int4`` with
``model.onnx``, and ``tokenizer.json`` in either of them or in FOLDER. The prompts and 10,000 tokens
of held text come from the documentation strings of Python's standard library. Where
onnxruntime-genai is installed its loop is measured as well, and the exported folder must give the
same greedy tokens. ``--llama`` adds llama.cpp, out of the package llama-cpp-python, with the
weights of MODEL.gguf rounded to eight and to four bits by its own tool.
"""

import argparse
import ctypes
import importlib
import inspect
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import psutil
from numpy.typing import NDArray

_MODULES = (
    "argparse asyncio collections decimal email fractions http.client json logging pathlib "
    "random socket statistics subprocess threading unittest"
).split()
_PROMPT, _NEW, _HELD, _WINDOW = 64, 64, 10_000, 256
_ROUNDS = 5


def texts() -> list[str]:
    """Returns documentation strings of the standard library."""
    found: dict[str, None] = {}
    for name in _MODULES:
        for _, item in sorted(vars(importlib.import_module(name)).items()):
            text = inspect.getdoc(item) if callable(item) else None
            if text and len(text) > 400:
                found[text] = None
    return list(found)


class Plain:
    """Generation with onnxruntime alone: dictionaries of arrays go in and out of each step."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self.session = session
        self.pasts = [i for i in session.get_inputs() if i.name.startswith("past")]
        self.names = [output.name for output in session.get_outputs()]
        self.caches: dict[str, Any] = {}
        self.length = 0

    def start(self, ids: Sequence[int], head_size: int = 64) -> NDArray[Any]:
        """Returns the logits of a prompt."""
        self.length = 0
        self.caches = {
            i.name: np.zeros((1, i.shape[1], 0, head_size), np.float32) for i in self.pasts
        }
        return self.step(ids)

    def step(self, ids: Sequence[int]) -> NDArray[Any]:
        """Returns the logits of further tokens."""
        self.length += len(ids)
        feed = {
            "input_ids": np.array([ids], np.int64),
            "attention_mask": np.ones((1, self.length), np.int64),
            **self.caches,
        }
        outputs = dict(zip(self.names, self.session.run(None, feed), strict=True))
        self.caches = {
            i.name: outputs[i.name.replace("past_key_values", "present")] for i in self.pasts
        }
        return np.asarray(outputs["logits"][0])


class Llama:
    """Generation by llama.cpp, with as many threads as the machine has cores."""

    def __init__(self, path: str) -> None:
        """Opens a GGUF file, and keeps the logits of all tokens."""
        import llama_cpp  # type: ignore[import-not-found]

        threads = psutil.cpu_count(logical=False) or 1
        self.model = llama_cpp.Llama(
            path,
            n_ctx=2 * _WINDOW,
            n_threads=threads,
            n_threads_batch=threads,
            logits_all=True,
            verbose=False,
        )

    def start(self, ids: Sequence[int]) -> NDArray[Any]:
        """Returns the logits of a prompt."""
        self.model.reset()
        return self.step(ids)

    def step(self, ids: Sequence[int]) -> NDArray[Any]:
        """Returns the logits of further tokens."""
        begin = self.model.n_tokens
        self.model.eval(list(ids))
        return np.asarray(self.model.scores[begin : begin + len(ids)])


def perplexity(plain: Plain | Llama, windows: Sequence[Sequence[int]]) -> tuple[float, list[int]]:
    """Returns the perplexity of text, and the likeliest token after each one of it."""
    total, count, chosen = 0.0, 0, []
    for window in windows:
        logits = plain.start(window)[:-1].astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        right = logits[np.arange(len(logits)), list(window[1:])]
        total += float((np.log(np.exp(logits).sum(-1)) - right).sum())
        count += len(logits)
        chosen += logits.argmax(-1).tolist()
    return float(np.exp(total / count)), chosen


def measure(opened: Any, prompt: Sequence[int]) -> tuple[float, float]:
    """Returns the time to the first token in ms, and tokens per second."""
    began = time.perf_counter()
    token = int(opened.start(prompt)[-1].argmax())
    first = time.perf_counter()
    for _ in range(_NEW):
        token = int(opened.step([token])[-1].argmax())
    return (first - began) * 1e3, _NEW / (time.perf_counter() - first)


class Bound:
    """The same with autotune's loop, which copies no cache."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        from autotune.deploy.generation import generation

        shapes = {
            i.name: (1, i.shape[1], 0, 64)
            for i in session.get_inputs()
            if i.name.startswith("past")
        }
        self.made = generation(session, shapes=shapes)

    def start(self, ids: Sequence[int]) -> Any:
        """Returns the logits of a prompt."""
        return self.made.start(ids, len(ids) + _NEW + 1)

    def step(self, ids: Sequence[int]) -> Any:
        """Returns the logits of a token."""
        return self.made.step(ids[0])[None]


def genai_tokens_per_s(folder: Path, prompt: Sequence[int]) -> tuple[float, list[int]]:
    """Returns the speed of GenAI's own loop, and its greedy tokens."""
    import onnxruntime_genai as genai  # type: ignore[import-not-found]

    model = genai.Model(str(folder))
    options = genai.GeneratorParams(model)
    options.set_search_options(max_length=len(prompt) + _NEW + 1, do_sample=False)
    generator = genai.Generator(model, options)
    generator.append_tokens(np.array(prompt, np.int32))
    generator.generate_next_token()
    began, count = time.perf_counter(), 0
    while not generator.is_done() and count < _NEW:
        generator.generate_next_token()
        count += 1
    speed = count / (time.perf_counter() - began)
    return speed, list(generator.get_sequence(0))[len(prompt) :]


def most_mib() -> float:
    """Returns the most memory that this process has had (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def peak_mib(path: str) -> float:
    """Returns the most memory that a session adds, with a generation, in a fresh process."""
    script = (
        "import sys; sys.path[:0] = [sys.argv[2]]\n"
        "import decoder, onnxruntime, autotune\n"
        "base = decoder.most_mib(); path = sys.argv[1]\n"
        "is_config = path.endswith('json')\n"
        "session = autotune.load(path) if is_config else onnxruntime.InferenceSession(path)\n"
        "decoder.measure(decoder.Bound(session), list(range(1, 65)))\n"
        "print(decoder.most_mib() - base)"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", script, path, here], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def windows_of(encode: Any) -> tuple[list[int], list[list[int]]]:
    """Returns a prompt, and windows of held text."""
    ids = [encode(text) for text in texts()]
    prompt, held = ids[0][:_PROMPT], []
    for text in ids[1:]:
        held += [text[i : i + _WINDOW] for i in range(0, len(text) - 1, _WINDOW)]
        if sum(map(len, held)) >= _HELD:
            break
    return prompt, [window for window in held if len(window) > 1]


def tuned(folder: Path, prompt: Sequence[int], held: Sequence[Sequence[int]], trials: int) -> Path:
    """Returns the config of a study."""
    import autotune

    out = Path(tempfile.mkdtemp())
    with (out / "prompts.jsonl").open("w") as file:
        file.write(json.dumps({"tokens": list(prompt)}) + "\n")
        file.writelines(json.dumps({"held_tokens": list(window)}) + "\n" for window in held)
    result = autotune.tune(
        folder / "fp32" / "model.onnx",
        trials=trials,
        generate=out / "prompts.jsonl",
        new_tokens=_NEW,
        out=out / "study",
    )
    print(f"configuration: {result.best.words}", flush=True)
    return out / "study" / "best.json"


def rows(sessions: dict[str, str], prompt: Sequence[int]) -> Iterator[tuple[str, float, float]]:
    """Yields the name of each session with its time to first token and speed, medians of rounds."""
    import autotune

    opened = {
        name: Bound(
            autotune.load(path) if path.endswith("json") else onnxruntime.InferenceSession(path)
        )
        for name, path in sessions.items()
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in opened}
    for _ in range(_ROUNDS):
        for name, loop in opened.items():
            times[name].append(measure(loop, prompt))
    for name, pairs in times.items():
        ttft, speed = np.median(np.array(pairs), axis=0)
        yield name, float(ttft), float(speed)


def llama_files(source: str) -> dict[str, str]:
    """Returns GGUF files with the same weights in eight and in four bits, by llama.cpp's tool."""
    import llama_cpp

    out, files = Path(tempfile.mkdtemp()), {}
    kinds = {"Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0}
    for name, kind in kinds.items():
        options = llama_cpp.llama_model_quantize_default_params()
        options.ftype, options.allow_requantize, options.nthread = kind, True, 2
        files[name] = str(out / f"{name}.gguf")
        llama_cpp.llama_model_quantize(source.encode(), files[name].encode(), ctypes.byref(options))
    return files


def llama_row(name: str, path: str, texts_path: str) -> None:
    """Prints the row of a GGUF file; this process does nothing else, for the peak of its memory."""
    import llama_cpp  # noqa: F401 - its code is no part of what the model adds

    prompt, held = json.loads(Path(texts_path).read_text(encoding="utf-8"))
    base = most_mib()
    opened = Llama(path)
    times = [measure(opened, prompt) for _ in range(_ROUNDS)]
    peak = most_mib() - base
    ttft, speed = np.median(np.array(times), axis=0)
    value, _ = perplexity(opened, held)
    print(
        f"{name:8} {ttft:6.1f} ms to the first token, {speed:6.1f} tokens/s, "
        f"peak {peak:5.0f} MiB, perplexity {value:.3f} in llama.cpp"
    )


def compare_llama(source: str, prompt: Sequence[int], held: Sequence[Sequence[int]]) -> None:
    """Prints a row for llama.cpp with each rounding of the same weights."""
    files = llama_files(source)
    texts_path = Path(files["Q8_0"]).with_name("texts.json")
    texts_path.write_text(json.dumps([prompt, held]), encoding="utf-8")
    script = (
        "import sys; sys.path[:0] = [sys.argv[1]]; import decoder; decoder.llama_row(*sys.argv[2:])"
    )
    for name, path in files.items():
        here = str(Path(__file__).parent)
        command = [sys.executable, "-c", script, here, name, path, str(texts_path)]
        subprocess.run(command, check=True)


def main() -> None:
    """Prints one row for each way of running the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--config", type=Path, help="a config that was tuned before")
    parser.add_argument("--llama", help="a GGUF file of the same model")
    given = parser.parse_args()
    from tokenizers import Tokenizer

    places = [given.folder, given.folder / "fp32", given.folder / "hf"]
    file = next(p / "tokenizer.json" for p in places if (p / "tokenizer.json").is_file())
    tokenizer = Tokenizer.from_file(str(file))
    prompt, held = windows_of(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
    sessions = {name: str(given.folder / name / "model.onnx") for name in ("fp32", "int4")}
    began = time.monotonic()
    config = given.config or tuned(given.folder, prompt, held, given.trials)
    sessions["tuned"] = str(config)
    print(f"study: {time.monotonic() - began:.0f} s")
    reference = right = None
    for name, ttft, speed in rows(sessions, prompt):
        import autotune

        path = sessions[name]
        session = (
            autotune.load(path) if path.endswith("json") else onnxruntime.InferenceSession(path)
        )
        value, chosen = perplexity(Plain(session), held)
        reference, right = reference or value, right or chosen
        agreement = float(np.mean(np.array(chosen) == np.array(right)))
        print(
            f"{name:8} {ttft:6.1f} ms to the first token, {speed:6.1f} tokens/s, "
            f"peak {peak_mib(path):5.0f} MiB, perplexity {value:.3f} "
            f"({value / reference - 1:+.2%}), "
            f"agreement {agreement:.3f}",
            flush=True,
        )
    if find_spec("onnxruntime_genai"):
        compare_genai(given.folder, sessions, prompt)
    if given.llama:
        compare_llama(given.llama, prompt, held)
    print(f"load of the machine: {psutil.getloadavg()[0]:.1f}")


def compare_genai(folder: Path, sessions: dict[str, str], prompt: Sequence[int]) -> None:
    """Prints the speed of GenAI's loop, and whether the exported folder gives the same tokens."""
    import autotune

    for name in ("fp32", "int4"):
        speeds = [genai_tokens_per_s(folder / name, prompt)[0] for _ in range(_ROUNDS)]
        print(f"{name:8} in GenAI's loop: {np.median(speeds):6.1f} tokens/s")
    out = Path(tempfile.mkdtemp())
    command = ["export", sessions["tuned"], "--to", "genai", "-o", str(out), "--accept-processor"]
    subprocess.run([sys.executable, "-m", "autotune", *command], check=True, capture_output=True)
    exported = next(out.glob("*.genai"))
    speed, tokens = genai_tokens_per_s(exported, prompt)
    own = Bound(autotune.load(sessions["tuned"])).made.generate(prompt, len(tokens))
    same = "the same" if own == tokens[: len(own)] else "OTHER"
    print(f"tuned    in GenAI's loop: {speed:6.1f} tokens/s, {same} tokens")


if __name__ == "__main__":
    main()
