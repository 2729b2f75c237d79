"""One way to run a model of ``gpu.py``, in a process of its own; prints its numbers as JSON.

    python benchmarks/gpu_contenders.py WAY NAME FOLDER cuda|cpu [--small]

FOLDER holds NAME.onnx, its inputs, and ``out/best.json`` of a study. The outputs go to
``WAY.npz`` there. Times are those of runs that have ended: the device is synchronised after each.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import gpu_models
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from autotune.measure.device_memory import DeviceMemory

Array = NDArray[Any]

REFERENCE = "reference"
ARRAYS, BOUND = "default CUDA session", "default, bound by a script"
TUNED_ARRAYS, TUNED = "autotune's config", "autotune's config, bound"
EAGER, COMPILED = "PyTorch fp16 eager", "PyTorch fp16 compiled"
_SECONDS, _WARM_UP, _FEWEST = 0.5, 10, 20
_CPU = "CPUExecutionProvider"
_PROVIDERS = {"cuda": ["CUDAExecutionProvider", _CPU], "cpu": [_CPU]}


class Way(Protocol):
    """A way to run a model on inputs that are there."""

    def bind(self, feed: Mapping[str, Array]) -> tuple[Callable[[], object], Callable[[], Any]]:
        """Returns what runs the model, and what returns the outputs of the last run."""


class Arrays:
    """``session.run`` on arrays."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.outputs: Any = None

    def bind(self, feed: Mapping[str, Array]) -> tuple[Callable[[], object], Callable[[], Any]]:
        def run() -> None:
            self.outputs = self.session.run(None, feed)

        return run, lambda: self.outputs


class Bound:
    """``run_with_iobinding`` with all tensors on the device; each feed has buffers of its own."""

    def __init__(self, session: Any, device: str) -> None:
        self.session, self.device = session, device
        self.count = 0

    def bind(self, feed: Mapping[str, Array]) -> tuple[Callable[[], object], Callable[[], Any]]:
        binding = self.session.io_binding()
        for name, array in feed.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, self.device, 0)
            binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            binding.bind_output(output.name, self.device, 0)
        options = onnxruntime.RunOptions()
        self.count += 1
        # a captured graph belongs to buffers; sessions without one ignore the number
        options.add_run_config_entry("gpu_graph_id", str(self.count))

        def run() -> None:
            self.session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()

        return run, binding.copy_outputs_to_cpu


class Torch:
    """A module of PyTorch with its tensors on the device."""

    def __init__(self, module: Any, device: str) -> None:
        import torch

        self.module, self.device, self.torch = module, device, torch
        self.outputs: Any = None

    def bind(self, feed: Mapping[str, Array]) -> tuple[Callable[[], object], Callable[[], Any]]:
        torch = self.torch
        tensors = [torch.from_numpy(array).to(self.device) for array in feed.values()]
        tensors = [t.half() if t.is_floating_point() else t for t in tensors]
        if tensors[0].ndim == 4:
            tensors[0] = tensors[0].to(memory_format=torch.channels_last)

        def run() -> None:
            with torch.inference_mode():
                self.outputs = self.module(*tensors)
            if self.device == "cuda":
                torch.cuda.synchronize()

        return run, lambda: [self.outputs.float().cpu().numpy()]


class Steps(Protocol):
    """A decoder that is given tokens and returns the logits of the next one."""

    def start(self, ids: Array) -> Array:
        """Begins with a prompt."""

    def step(self, token: int) -> Array:
        """Goes on with a token."""


class SessionSteps:
    """A decoder's session as a script drives it.

    Args:
        device: Where the caches stay; None passes them through arrays.
    """

    def __init__(self, session: Any, device: str | None) -> None:
        self.session, self.device = session, device
        self.pasts = [i for i in session.get_inputs() if i.name.startswith("past")]
        self.values: list[Any] = []
        self.length = 0

    def start(self, ids: Array) -> Array:
        self.length = 0
        kinds = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
        self.values = [
            np.zeros((1, item.shape[1], 0, item.shape[3]), kinds[item.type]) for item in self.pasts
        ]
        if self.device is not None:
            make = onnxruntime.OrtValue.ortvalue_from_numpy
            self.values = [make(value, self.device, 0) for value in self.values]
        return self._run(ids)

    def step(self, token: int) -> Array:
        return self._run(np.array([[token]], np.int64))

    def _run(self, ids: Array) -> Array:
        begin, self.length = self.length, self.length + ids.shape[1]
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones((1, self.length), np.int64),
            "position_ids": np.arange(begin, self.length, dtype=np.int64)[None],
        }
        named = dict(zip((item.name for item in self.pasts), self.values, strict=True))
        if self.device is None:
            logits, *self.values = self.session.run(None, {**feed, **named})
            return np.asarray(logits[0, -1])
        binding = self.session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for name, value in named.items():
            binding.bind_ortvalue_input(name, value)
        for output in self.session.get_outputs():
            where = "cpu" if output.name == "logits" else self.device
            binding.bind_output(output.name, where, 0)
        self.session.run_with_iobinding(binding)
        logits, *self.values = binding.get_outputs()
        return np.asarray(logits.numpy()[0, -1])


class TunedSteps:
    """A tuned decoder by :func:`autotune.generation`."""

    def __init__(self, session: Any, capacity: int) -> None:
        import autotune

        self.generation, self.capacity = autotune.generation(session), capacity

    def start(self, ids: Array) -> Array:
        return np.asarray(self.generation.start(ids, self.capacity)[-1])

    def step(self, token: int) -> Array:
        return np.asarray(self.generation.step(token))


class TorchSteps:
    """A decoder of PyTorch; prompts run eagerly, because they are of many lengths."""

    def __init__(self, module: Any, compiled: Any, device: str) -> None:
        import torch

        self.module, self.compiled, self.device, self.torch = module, compiled, device, torch
        self.length = 0

    def start(self, ids: Array) -> Array:
        self.length = 0
        return self._run(self.module, ids)

    def step(self, token: int) -> Array:
        return self._run(self.compiled, np.array([[token]], np.int64))

    def _run(self, module: Any, ids: Array) -> Array:
        torch = self.torch
        places = torch.arange(self.length, self.length + ids.shape[1])[None]
        self.length += ids.shape[1]
        with torch.inference_mode():
            logits = module(torch.from_numpy(ids).to(self.device), places.to(self.device))
            return np.asarray(logits[0].float().cpu().numpy())


def opened(way: str, name: str, folder: Path, device: str, sizes: gpu_models.Sizes) -> Any:
    """Returns a :class:`Way`, or the :class:`Steps` of a decoder."""
    model, is_decoder = folder / f"{name}.onnx", name == gpu_models.DECODER
    if way in (EAGER, COMPILED):
        import gpu_torch
        import torch

        module = gpu_torch.module(name, model, sizes, device)
        made = torch.compile(module, mode="reduce-overhead") if way == COMPILED else module
        return TorchSteps(module, made, device) if is_decoder else Torch(made, device)
    if way in (TUNED, TUNED_ARRAYS):
        import autotune

        session = autotune.load(folder / "out" / "best.json")
        if is_decoder:
            return TunedSteps(session, sizes.prompt + sizes.new)
        place = device if session.get_providers()[0] == _PROVIDERS[device][0] else "cpu"
        return Bound(session, place) if way == TUNED else Arrays(session)
    settings = onnxruntime.SessionOptions()
    if way == REFERENCE:
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        device = "cpu"
    elif device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
        _preload()
    session = onnxruntime.InferenceSession(
        str(model), settings, providers=_PROVIDERS[device], enable_fallback=0
    )
    if session.get_providers() != _PROVIDERS[device]:
        sys.exit(f"ONNX Runtime did not use {_PROVIDERS[device][0]}")
    if is_decoder:
        return SessionSteps(session, device if way == BOUND else None)
    return Bound(session, device) if way == BOUND else Arrays(session)


def _preload() -> None:
    """Loads CUDA's libraries as autotune does: NVIDIA's packages may lie in another folder."""
    from autotune.deploy.cuda import preload
    from autotune.deploy.providers import PROVIDERS

    preload(PROVIDERS["cuda"])


def measured(way: Way, feeds: Sequence[Mapping[str, Array]], *, brief: bool) -> dict[str, Any]:
    """Returns the time of a run, the mean over the inputs of the median of each, and outputs."""
    outputs: dict[str, Array] = {}
    medians = []
    for number, feed in enumerate(feeds):
        run, last = way.bind(feed)
        run()
        outputs |= {f"{number}_{i}": np.asarray(value) for i, value in enumerate(last())}
        if brief:
            continue
        for _ in range(_WARM_UP):
            run()
        medians.append(_median_ms(run))
    return {"ms": float(np.mean(medians)) if medians else None, "outputs": outputs}


def _median_ms(run: Callable[[], object]) -> float:
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < _FEWEST or time.perf_counter() < end:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return float(np.median(times)) * 1e3


def generated(steps: Steps, sizes: gpu_models.Sizes, ids: Array, *, brief: bool) -> dict[str, Any]:
    """Returns the time of a step after a prompt, that of the prompt, and the logits.

    The tokens are the same for everyone, so that the logits can be compared.
    """
    tokens = np.random.default_rng(3).integers(1, sizes.words, sizes.new).tolist()
    logits: list[Array] = []
    step_ms: list[float] = []
    prompt_ms = []
    for turn in range(1 if brief else 6):
        began = time.perf_counter()
        rows = [steps.start(ids)]
        ends = [time.perf_counter()]
        for token in tokens:
            rows.append(steps.step(token))
            ends.append(time.perf_counter())
        logits = [np.array(row, np.float32) for row in rows]
        if turn:  # the first one warms up
            prompt_ms.append((ends[0] - began) * 1e3)
            step_ms += list(np.diff(ends) * 1e3)
    return {
        "ms": float(np.median(step_ms)) if step_ms else None,
        "prompt_ms": float(np.median(prompt_ms)) if prompt_ms else None,
        "outputs": {"logits": np.stack(logits)},
    }


def main() -> None:
    """Prints the numbers of one way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way")
    parser.add_argument("name", choices=gpu_models.NAMES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("device", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    sizes = gpu_models.SMALL if given.small else gpu_models.Sizes()
    memory = DeviceMemory.start() if given.device == "cuda" else None
    way = opened(given.way, given.name, given.folder, given.device, sizes)
    brief = given.way == REFERENCE
    feeds = gpu_models.feeds(given.name, sizes)
    if given.name == gpu_models.DECODER:
        numbers = generated(way, sizes, feeds[0]["input_ids"], brief=brief)
    else:
        numbers = measured(way, feeds, brief=brief)
    np.savez(given.folder / f"{given.way}.npz", **numbers.pop("outputs"))
    usage = None if memory is None else memory.usage()
    numbers["device_mib"] = None if usage is None else usage.mib
    numbers["by_difference"] = usage is not None and usage.by_difference
    print(json.dumps(numbers))


if __name__ == "__main__":
    main()
