"""What outputs that are allocated once save on the CPU: `run` and I/O binding in turns.

    python benchmarks/dev/binding.py [MODEL.onnx ...] [--rounds N] [--quick] [--json]

Without a MODEL, three are built whose outputs are large beside their work: a segmentation that
enlarges 21 classes to the size of the image, an autoencoder, and one that only enlarges an image.
In each round `run` takes turns with `run_with_iobinding`, which has inputs and outputs in buffers
that are bound once; a turn is as many calls as take a tenth of a second. In the last column the
outputs are also copied out of the buffer, as an application does that keeps them. Times are medians
of the rounds, and so are the ratios to `run`, with their quartiles: below 1 the binding is faster.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from common import workload_of
from exporter_models import Graph

from autotune.deploy.telemetry import switch_off
from autotune.facts.model import describe

_TURN_S = 0.1


def segmentation(size: int) -> onnx.ModelProto:
    """Returns a classifier of pixels that works at an eighth of the size."""
    graph, x = Graph(), "x"
    for narrow, wide in ((3, 16), (16, 32), (32, 64)):
        x = graph.add("Relu", graph.convolution(x, narrow, wide, 3, stride=2))
    x = graph.convolution(x, 64, 21, 1)
    scales = graph.constant([1, 1, 8, 8])
    return graph.model(graph.add("Resize", x, "", scales, mode="linear"), {"x": [1, 3, size, size]})


def autoencoder(size: int) -> onnx.ModelProto:
    """Returns two convolutions and two transposed ones: as many pixels as it takes."""
    graph, x = Graph(), "x"
    for narrow, wide in ((3, 16), (16, 32)):
        x = graph.add("Relu", graph.convolution(x, narrow, wide, 3, stride=2))
    for narrow, wide in ((32, 16), (16, 3)):
        x = graph.add("ConvTranspose", x, graph.weight(narrow, wide, 2, 2), strides=[2, 2])
    return graph.model(graph.add("Sigmoid", x), {"x": [1, 3, size, size]})


def enlarged(size: int) -> onnx.ModelProto:
    """Returns an image of four times the size, which hardly any computation makes."""
    graph = Graph()
    x = graph.add("DepthToSpace", graph.convolution("x", 3, 48, 1), blocksize=4)
    return graph.model(x, {"x": [1, 3, size, size]})


def compare(path: Path, rounds: int) -> dict[str, Any]:
    """Returns the size of the outputs, the times of `run` and the ratios of the binding."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = dict(workload_of(path, describe(path)).feeds[0])
    names = [item.name for item in session.get_outputs()]
    outputs = session.run(None, feed)
    buffers = [np.empty_like(array) for array in outputs]
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name, array in zip(names, buffers, strict=True):
        binding.bind_output(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def copied() -> None:
        session.run_with_iobinding(binding)
        for array in buffers:
            array.copy()

    ways: Mapping[str, Callable[[], object]] = {
        "run": lambda: session.run(None, feed),
        "bound": lambda: session.run_with_iobinding(binding),
        "bound and copied": copied,
    }
    ways["bound"]()
    for expected, found in zip(outputs, buffers, strict=True):
        np.testing.assert_array_equal(found, expected)
    began = time.perf_counter()
    ways["run"]()
    calls = max(1, int(_TURN_S / (time.perf_counter() - began)))
    times = np.array([[_timed(way, calls) for way in ways.values()] for _ in range(rounds)])
    ratios = np.percentile(times / times[:, :1], [50, 25, 75], axis=0)
    return {
        "outputs_mib": sum(array.nbytes for array in buffers) / 2**20,
        "run_ms": dict(zip(("wall", "cpu"), np.median(times[:, 0], axis=0).tolist(), strict=True)),
        **{
            name: {
                clock: ratios[:, place, column].round(3).tolist()
                for column, clock in enumerate(("wall", "cpu"))
            }
            for place, name in enumerate(ways)
            if place
        },
    }


def _timed(way: Callable[[], object], calls: int) -> tuple[float, float]:
    """Returns the wall time and the process's time of a call, in ms."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        way()
    parts = time.perf_counter() - wall, time.process_time() - cpu
    return parts[0] * 1000 / calls, parts[1] * 1000 / calls


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", metavar="MODEL.onnx", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--quick", action="store_true", help="small images and two rounds")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    switch_off()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        files = list(given.models)
        for build in () if files else (segmentation, autoencoder, enlarged):
            files.append(Path(folder) / f"{build.__name__}.onnx")
            onnx.save(build(64 if given.quick else 512), files[-1])
        for file in files:
            found[file.stem] = row = compare(file, 2 if given.quick else given.rounds)
            if not given.json:
                print(f"{file.stem:16} {row['outputs_mib']:6.1f} MiB  run {row['run_ms']}")
                for name in ("bound", "bound and copied"):
                    print(f"    {name:18} {row[name]}", flush=True)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
