"""A real labelled task: handwritten digits in int8, calibrated on digits and on noise.

    pip install scikit-learn
    python benchmarks/digits.py

A small network learns 500 of scikit-learn's 1,797 digits, in seconds. The others judge its int8
files by their labels, as a study judges the configuration that it selects. One file took its ranges
from digits, the other one from generated samples, as without --data. No time is measured.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import program
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from autotune.deploy import cpu
from autotune.deploy.options import Value
from autotune.deploy.session import SessionConfig
from autotune.facts.generated import generate
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload
from autotune.graph.prepare import Preparer
from autotune.measure.judging import AllSamples, JudgedConfiguration, Judgement
from autotune.measure.metrics import METRICS

Array = NDArray[np.float32]

_LEARNT = 500
_HIDDEN = 64
_STEPS = 2000
_STATIC: dict[str, Value] = {"precision": "int8_static", "quantized_operators": "products"}


def train(images: Array, labels: NDArray[np.int64], seed: int = 0) -> list[tuple[Array, Array]]:
    """Returns weight and bias of both layers of a network, by gradient descent with momentum."""
    random = np.random.default_rng(seed)
    sizes = [(images.shape[1], _HIDDEN), (_HIDDEN, 10)]
    layers = [(random.normal(0, (2 / n) ** 0.5, (n, m)), np.zeros(m)) for n, m in sizes]
    speeds = [(np.zeros_like(w), np.zeros_like(b)) for w, b in layers]
    truth = np.eye(10)[labels]
    scaled = images / 16
    for _ in range(_STEPS):
        (w, b), (v, c) = layers
        hidden = np.maximum(scaled @ w + b, 0)
        scores = hidden @ v + c
        shares = np.exp(scores - scores.max(1, keepdims=True))
        error = (shares / shares.sum(1, keepdims=True) - truth) / len(images)
        back = (error @ v.T) * (hidden > 0)
        slopes = [(scaled.T @ back, back.sum(0)), (hidden.T @ error, error.sum(0))]
        speeds = [
            (0.9 * p + s + 1e-4 * w, 0.9 * q + t)
            for (p, q), (s, t), (w, _) in zip(speeds, slopes, layers, strict=True)
        ]
        layers = [(w - 0.3 * p, b - 0.3 * q) for (w, b), (p, q) in zip(layers, speeds, strict=True)]
    (w, b), last = layers
    # the network takes pixels from 0 to 16
    return [(m.astype(np.float32), n.astype(np.float32)) for m, n in ((w / 16, b), last)]


def save(layers: list[tuple[Array, Array]], path: Path) -> Path:
    """Writes the network as an ONNX model of images in rows of 64 pixels."""
    (w, b), (v, c) = layers
    graph = helper.make_graph(
        [
            helper.make_node("Gemm", ["image", "w", "b"], ["hidden"], name="first"),
            helper.make_node("Relu", ["hidden"], ["positive"], name="relu"),
            helper.make_node("Gemm", ["positive", "v", "c"], ["scores"], name="last"),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(a, n) for n, a in zip("wbvc", (w, b, v, c), strict=True)],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def digits(folder: Path) -> tuple[Model, Workload]:
    """Returns the trained network and the digits that it has not learnt, with their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images, labels = data.data.astype(np.float32)[order], data.target[order]
    model = describe(save(train(images[:_LEARNT], labels[:_LEARNT]), folder / "digits.onnx"))
    workload = Workload(
        feeds=tuple({"image": image[None]} for image in images[_LEARNT:]),
        source="user",
        notes=(),
        labels=tuple(np.asarray(label) for label in labels[_LEARNT:]),
    )
    return model, workload


def judgements(folder: Path) -> Iterator[Judgement]:
    """Yields what the digits say of int8 with ranges of digits, and with ranges of noise."""
    model, workload = digits(folder)
    samples = AllSamples(
        model=model,
        workload=workload,
        metric=METRICS["top1"],
        max_drop=0.01,
        max_error=float("inf"),
        limit_s=600.0,
    )
    noise = replace(generate(model, {}), source="user")
    for words, calibration in (("ranges of digits", workload), ("ranges of noise", noise)):
        preparer = Preparer(model, folder / words, workload=calibration, signature=words)
        path = preparer.prepare(_STATIC).path
        yield samples.judge(
            JudgedConfiguration(trial=0, words=words, path=path, config=SessionConfig())
        )


def main() -> None:
    """Prints a row for each file."""
    options = program.parser_of(__doc__).parse_args()
    decisions = {}
    print(f"{cpu.cpu_model()}, ONNX Runtime {onnxruntime.__version__}")
    print("limit: a drop of 0.01 in top1\n")
    print(f"{'int8_static':20} {'top1':>7} {'float':>7} {'drop':>7}  {'bounds':16} {'samples':>12}")
    with tempfile.TemporaryDirectory() as folder:
        for item in judgements(Path(folder)):
            assert item.drop is not None
            decisions[item.words] = item.decision
            bounds = f"{item.drop.low:.4f} to {item.drop.high:.4f}"
            used = f"{item.samples} of {item.available}"
            print(
                f"{item.words:20} {item.metric:7.4f} {item.reference_metric:7.4f} "
                f"{item.drop.value:7.4f}  {bounds:16} {used:>12}  {item.decision}"
            )
    program.print_json(options, decisions)


if __name__ == "__main__":
    main()
