"""What outputs that are allocated once save on the CPU: `run` and I/O binding in turns.

    python benchmarks/dev/binding.py [MODEL.onnx ...] [--seconds S] [--quick] [--json]

Without a MODEL, three are built whose outputs are large beside their work: a segmentation that
enlarges 21 classes to the size of the image, an autoencoder, and one that only enlarges an image.
Calls of `run` take turns with those of `run_with_iobinding`, which has inputs and outputs in
buffers that are bound once, and with the same when the outputs are copied out of the buffers too,
as an application does that keeps them. Times are those of the processor, with one thread, because
neighbours disturb them least; a ratio below 1 is faster than `run`, by quartiles and medians.
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


def compare(path: Path, seconds: float) -> dict[str, Any]:
    """Returns the size of the outputs, the time of `run` and the ratios of the binding."""
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    feed = dict(workload_of(path, describe(path)).feeds[0])
    outputs = session.run(None, feed)
    buffers = [np.empty_like(array) for array in outputs]
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for item, array in zip(session.get_outputs(), buffers, strict=True):
        binding.bind_output(item.name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def copied() -> list[Any]:
        session.run_with_iobinding(binding)
        return [array.copy() for array in buffers]

    ways: Mapping[str, Callable[[], object]] = {
        "run": lambda: session.run(None, feed),
        "bound": lambda: session.run_with_iobinding(binding),
        "bound and copied": copied,
    }
    for expected, found in zip(outputs, copied(), strict=True):
        np.testing.assert_array_equal(found, expected)
    times: dict[str, list[float]] = {name: [] for name in ways}
    end = time.monotonic() + seconds
    while time.monotonic() < end or not times["run"]:
        for name, way in ways.items():
            began = time.thread_time()
            way()
            times[name].append((time.thread_time() - began) * 1000)
    found = {name: np.percentile(values, [25, 50]) for name, values in times.items()}
    return {
        "outputs_mib": sum(array.nbytes for array in buffers) / 2**20,
        "run_ms": found["run"][1],
        **{name: (found[name] / found["run"]).round(3).tolist() for name in [*ways][1:]},
    }


def main() -> None:
    """Prints a row for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", metavar="MODEL.onnx", nargs="*", type=Path)
    parser.add_argument("--seconds", type=float, default=15, help="for each model")
    parser.add_argument("--quick", action="store_true", help="small images and a moment")
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
            found[file.stem] = row = compare(file, 0 if given.quick else given.seconds)
            if not given.json:
                print(
                    f"{file.stem:16} outputs {row['outputs_mib']:5.1f} MiB, "
                    f"run {row['run_ms']:.2f} ms, "
                    f"bound {row['bound']}, bound and copied {row['bound and copied']}",
                    flush=True,
                )
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
