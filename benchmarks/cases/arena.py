"""A model of dynamic shapes whose arena holds gigabytes between runs.

    python benchmarks/cases/arena.py [--batch N] [--size S] [--trials N] [--json]

A segmentation network for images of any size: 16 convolutions whose outputs are all alive until the
last one, as skip connections keep them. Prints what a session holds between runs with the arena and
without, what `autotune inspect` says, and what `--space memory --prefer memory` makes of it. The
defaults are an input of 8 x 100 x 100 x 1; `--batch 32 --size 200` is 16 times as large and needs
12 GiB of free memory.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from autotune.inspection.inspect import inspect_model
from autotune.study.options import StudyOptions
from autotune.study.tune import tune

_CHANNELS = 16
_LAYERS = 16


def main() -> None:
    """Prints the memory before and after."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=100, help="height and width of the image")
    parser.add_argument("--trials", type=int, default=12, help="of the study; 0 leaves it out")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = check(Path(folder), (given.batch, given.size, given.size, 1), given.trials)
    print(
        f"input {' x '.join(map(str, figures['shape']))}\n"
        f"held between runs: {figures['held_mib']:.0f} MiB with the arena, "
        f"{figures['held_without_mib']:.0f} MiB without\n"
        f"peak: {figures['peak_mib']:.0f} MiB with the arena, "
        f"{figures['peak_without_mib']:.0f} MiB without\n"
        f"inspect: {figures['severity']}: {figures['evidence']}"
    )
    if "chosen" in figures:
        print(
            f"study: {figures['chosen_peak_mib']:.0f} MiB at the peak instead of "
            f"{figures['default_peak_mib']:.0f} MiB, with {figures['chosen']}"
        )
    if given.json:
        print(json.dumps(figures))


def check(folder: Path, shape: tuple[int, ...], trials: int) -> dict[str, Any]:
    """Returns the figures.

    Args:
        folder: Where model and study are written.
        shape: Shape of the input.
        trials: Trials of the study; 0 leaves it out.
    """
    path = folder / "arena.onnx"
    onnx.save(model(), path)
    inspection = inspect_model(path, shapes={"image": shape})
    finding = next((f for f in inspection.findings if f.name == "arena"), None)
    if finding is None or finding.effect is None:
        raise SystemExit(inspection.failure or "inspect finds nothing about the arena")
    effect = finding.effect
    figures = {
        "shape": shape,
        "held_mib": effect.default_held_mib,
        "held_without_mib": effect.held_mib,
        "peak_mib": effect.default_memory_mib,
        "peak_without_mib": effect.default_memory_mib * effect.memory,
        "severity": finding.severity,
        "evidence": finding.evidence,
    }
    if not trials:
        return figures
    result = tune(
        StudyOptions.of(
            path, trials=trials, space="memory", prefer="memory", shapes={"image": shape}
        )
    )
    return {
        **figures,
        "chosen": result.best.words,
        "chosen_peak_mib": result.best.evidence.peak_memory_mib,
        "default_peak_mib": result.baseline.evidence.peak_memory_mib,
    }


def model() -> onnx.ModelProto:
    """Returns the network; its input is [batch, height, width, 1]."""
    random = np.random.default_rng(0)
    nodes = [helper.make_node("Transpose", ["image"], ["y_0"], perm=[0, 3, 1, 2])]
    weights = []

    def convolve(before: str, after: str, outputs: int, inputs: int, kernel: int) -> None:
        spread = 1 / np.sqrt(inputs * kernel**2)
        weight = random.normal(0, spread, (outputs, inputs, kernel, kernel)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"weight_{after}"))
        pads = [kernel // 2] * 4
        nodes.append(helper.make_node("Conv", [before, f"weight_{after}"], [after], pads=pads))

    for layer in range(_LAYERS):
        inputs = 1 if layer == 0 else _CHANNELS
        convolve(f"y_{layer}", f"y_{layer + 1}", _CHANNELS, inputs, 1 if layer else 3)
    skipped = [f"y_{layer + 1}" for layer in range(_LAYERS)]
    nodes.append(helper.make_node("Concat", skipped, ["all"], axis=1))
    convolve("all", "map", 1, _LAYERS * _CHANNELS, 1)
    nodes.append(helper.make_node("Transpose", ["map"], ["mask"], perm=[0, 2, 3, 1]))
    open_shape: list[str | int | None] = ["batch", "height", "width", 1]
    graph = helper.make_graph(
        nodes,
        "arena",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, open_shape)],
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, open_shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


if __name__ == "__main__":
    main()
