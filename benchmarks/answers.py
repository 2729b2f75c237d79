"""What the judge of answers finds and lets pass: planted faults, and changes that harm nothing.

    python benchmarks/answers.py [MODEL.onnx ...] [--data FOLDER] [--json]

Faults are planted into answers of made detectors, classifiers and hidden states. Beside the judge
stands the rule that it replaced: one relative L2 distance over each output. Of each model the
answers under all optimisations, which sum in another order, and those of some forms of int8 that a
study tries are judged; a form that a model has not is a row with the reason. FOLDER may hold
MODEL.npz or MODEL_inputs.npz with real inputs. An error above 0.05 is refused. No
time is measured. A model of pictures without inputs sees pages with text over soft colours
(`pip install pillow`).
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import program
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail as OnnxFault

from autotune.facts.inputs import workload_for
from autotune.facts.model import Model, describe
from autotune.facts.output_parts import UNKNOWN, Origins, Producer
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.answers import OutputMismatchError, Outputs, compare
from autotune.measure.flatten import flatten
from autotune.measure.producers import numbers_of_elements

Array = NDArray[np.float64]
Row = dict[str, Any]
LIMIT = 0.05
SAMPLES = 8
_STATIC: dict[str, Any] = {"precision": "int8_static", "quantized_operators": "products"}
# without VNNI products of eight bits saturate
_SEVEN_BITS = {**_STATIC, "per_channel": True, "reduce_range": True}
FORMS: dict[str, dict[str, Any]] = {
    "int8": _STATIC,
    "int8, 7 bits per channel": _SEVEN_BITS,
    "int8, 7 bits, 16 kept in float": {**_SEVEN_BITS, "kept_in_float": 16},
    "int8, dynamic": {"precision": "int8_dynamic", "per_channel": True},
}


def old_error(references: Sequence[Outputs], outputs: Sequence[Outputs]) -> float:
    """Returns the error by the old rule; infinite where NaN is in another place."""
    errors: dict[str, list[float]] = {}
    for right, given in zip(references, outputs, strict=True):
        for name, r in right.items():
            own = errors.setdefault(name, [])
            if r.shape != given[name].shape or r.dtype.kind not in "fc":
                own.append(float(not np.array_equal(r, given[name])))
                continue
            finite = np.isfinite(r)
            if not np.array_equal(finite, np.isfinite(given[name])):
                return float("inf")
            size = float(np.linalg.norm(r[finite].astype(float)))
            gap = float(np.linalg.norm(r[finite].astype(float) - given[name][finite]))
            own.append(gap / size if size else gap)
    return max(float(np.mean(own)) for own in errors.values())


def judged(
    kind: str, fault: str, right: Sequence[Outputs], given: Sequence[Outputs], origins: Origins
) -> Row:
    """Returns a row of the table."""
    try:
        fidelity = compare(right, given, origins)
        error, where = fidelity.error, fidelity.worst_part
    except OutputMismatchError as mismatch:
        error, where = float("inf"), str(mismatch)
    return {"model": kind, "change": fault, "old": old_error(right, given), "new": error} | {
        "where": where
    }


def _detector() -> tuple[Array, Origins]:
    """Returns rows of a detector for each sample: four of boxes, and scores of twenty classes."""
    draw = np.random.default_rng(0)
    boxes = draw.uniform(10, 600, (SAMPLES, 1, 4, 400))
    scores = 1e-5 * draw.uniform(0.5, 2, (SAMPLES, 1, 20, 400))
    for sample in scores:
        for label in range(19):  # the last class is absent
            sample[0, label, draw.choice(400, 3)] = draw.uniform(0.4, 0.9, 3)
    producers = (
        Producer(number=1, tensor="boxes", operator="Mul"),
        Producer(number=2, tensor="scores", operator="Sigmoid"),
    )
    numbers = np.repeat([1, 2], [4, 20]).astype(np.int32)[None, :, None] * np.ones(
        (1, 1, 400), np.int32
    )
    joined = np.concatenate([boxes, scores], axis=2)
    return joined, Origins({"y": producers}, {("y", numbers.shape): numbers})


def _changed(values: Array, change: Callable[[Array], object]) -> Array:
    copy = values.copy()
    change(copy)
    return copy


def _put(place: tuple[Any, ...], value: float) -> Callable[[Array], object]:
    def change(array: Array) -> None:
        array[place] = value

    return change


def _swap(array: Array) -> None:
    array[:, :, [4, 5]] = array[:, :, [5, 4]]


def faults() -> Iterator[Row]:
    """Yields a row for each planted fault, and for changes of made answers that harm nothing."""
    draw, every = np.random.default_rng(1), slice(None)
    detector, origins = _detector()
    planted: dict[str, tuple[Array, Array, Origins]] = {
        "all scores are 0": (
            detector,
            _changed(detector, _put((every, 0, slice(4, None)), 0)),
            origins,
        ),
        "two classes swapped": (detector, _changed(detector, _swap), origins),
        "one class lost": (detector, _changed(detector, _put((every, 0, 9), 0)), origins),
        "last rows dropped": (
            detector,
            _changed(detector, _put((every, 0, every, slice(390, None)), 0)),
            origins,
        ),
        "one NaN": (detector, _changed(detector, _put((0, 0, 4, 0), np.nan)), origins),
        "harmless: absent class 0": (
            detector,
            _changed(detector, _put((every, 0, 23), 0)),
            origins,
        ),
        "harmless: logits off by 0.05": (
            detector,
            _changed(detector, lambda a: np.multiply(a[:, :, 4:], 1.01, out=a[:, :, 4:])),
            origins,
        ),
    }
    states = draw.standard_normal((SAMPLES, 1, 16, 768)) * np.where(np.arange(768) < 2, 3000, 1)
    cache = np.cumsum(draw.standard_normal((SAMPLES, 1, 4, 32, 16)), axis=3)
    columns = draw.standard_normal((SAMPLES, 16, 4)) * [1e3, 1e3, 1, 1e-2]
    planted |= {
        "766 of 768 channels are 0": (states, states * (np.arange(768) < 2), UNKNOWN),
        "cache off by one": (cache, np.roll(cache, 1, axis=3), UNKNOWN),
        "a column of small unit is 0": (columns, columns * [1, 1, 1, 0], UNKNOWN),
        "harmless: rounding": (states, states.astype(np.float32).astype(float), UNKNOWN),
    }
    for name, (right, given, own) in planted.items():
        pair = [{"y": a} for a in right], [{"y": a} for a in given]
        yield judged("made", name, *pair, own)


def outputs_of(path: Path, workload: Workload, level: str) -> list[Outputs]:
    """Returns the answers of a file to the validation samples."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [flatten(names, session.run(None, dict(f))) for f in workload.validation[:SAMPLES]]


def harmless(path: Path, data: Path | None) -> Iterator[Row]:
    """Yields a row for sums in another order, and one for each form of int8."""
    model, name = describe(path), path.stem
    workload = workload_of(model, data)
    right = outputs_of(model.path, workload, "ORT_DISABLE_ALL")
    producers, numbers = numbers_of_elements(model.path, workload.validation[:1])
    origins = Origins.of(producers, numbers)
    optimised = outputs_of(model.path, workload, "ORT_ENABLE_ALL")
    yield judged(name, "harmless: fp32, optimised", right, optimised, origins)
    with tempfile.TemporaryDirectory() as cache:
        preparer = Preparer(model, Path(cache), workload=workload, signature="benchmark")
        for words, values in FORMS.items():
            try:
                file = preparer.prepare(values)
                given = outputs_of(file.path, workload, "ORT_ENABLE_ALL")
            except (PreparationError, OnnxFault) as fault:
                reason = str(fault).splitlines()[0]
                yield {"model": name, "change": words, "old": None, "new": None, "where": reason}
                continue
            yield judged(name, words, right, given, origins)


def pages(model: Model, size: int) -> dict[str, Any]:
    """Returns pictures with text, for the one input of a model of pictures."""
    from PIL import Image, ImageDraw

    (tensor,) = model.inputs
    drawn, pictures = np.random.default_rng(3), []
    for number in range(2 * SAMPLES):
        colours = drawn.integers(90, 256, (4, 4, 3)).astype(np.uint8)
        page = Image.fromarray(colours).resize((size, size), Image.Resampling.BICUBIC)
        pen = ImageDraw.Draw(page)
        for row in range(2 + number % 4):
            where = (int(drawn.integers(0, size // 3)), (10 + 40 * row) % size)
            pen.text(
                where, f"page {number} row {row}", fill=(0, 0, 0), font_size=max(8, size // 12)
            )
        values = np.asarray(page, np.float32) / 127.5 - 1
        pictures.append(values if tensor.shape[-1] == 3 else values.transpose(2, 0, 1))
    return {tensor.name: np.stack(pictures)[:, None]}


def workload_of(model: Model, data: Path | None) -> Workload:
    """Returns the inputs of a model: the file of its name, pages, or generated ones."""
    for end in (".npz", "_inputs.npz"):
        if data and (file := data / f"{model.path.stem}{end}").exists():
            return workload_for(model, file, {})
    sizes = [size for size in model.inputs[0].shape[1:] if isinstance(size, int) and size != 3]
    if len(model.inputs) > 1 or len(model.inputs[0].shape) != 4:
        return workload_for(model, None, {})
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "pages.npz"
        np.savez(made, **pages(model, sizes[0] if sizes else 320))
        return workload_for(model, made, {})


def verdict(error: float | None) -> str:
    """Returns an error, and whether it is admitted."""
    return "-" if error is None else f"{error:.2g} {'no' if error > LIMIT else 'ok'}"


def main() -> None:
    """Prints the table, and one JSON object with ``--json``."""
    parser = program.parser_of(__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    print(f"{'model':28} {'change':32} {'old rule':>14} {'judge':>14}  worst part")
    rows = []
    for row in chain(faults(), *(harmless(path, asked.data) for path in asked.models)):
        rows.append(row)
        old, new = (verdict(row[key]) for key in ("old", "new"))
        words = f"{row['model']!s:28} {row['change']!s:32} {old:>14} {new:>14}  {row['where']}"
        print(words.rstrip(), flush=True)
    program.print_json(asked, {"rows": rows})


if __name__ == "__main__":
    main()
