"""The float model that a precision quantises, with its ranges and rankings, each made once."""

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from autotune.facts.feeds import Feed
from autotune.facts.graphs import operator_of
from autotune.graph import by_error, by_time, calibration, sensitivity, smoothing
from autotune.graph.by_time import LinearTime, Quantise, Times
from autotune.graph.calibration import Ranges
from autotune.graph.entries import ALL_ERROR, OFF
from autotune.graph.intermediates import Intermediates
from autotune.graph.ready_model import make_ready, original_names


class FloatModel:
    """A model that is ready to be quantised.

    Args:
        path: Its file, which nobody writes to.
        rough: The same model before its outliers were moved; None where they were not.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        samples: Sequence[Feed],
        shared: Intermediates,
        rough: "FloatModel | None" = None,
    ) -> None:
        self.path = path
        self._rough = rough
        self._name = name
        self._samples = samples
        self._shared = shared

    @classmethod
    def ready(cls, source: Path, samples: Sequence[Feed], shared: Intermediates) -> "FloatModel":
        """Returns the model in the file `source`, as quantisation needs it.

        Raises:
            StepRefusedError: it cannot be made ready.
        """
        path = shared.file("ready.onnx", lambda path: make_ready(source, path, samples))
        names = original_names(onnx.load(path))
        neutral = {name: own for own, name in names.items()}
        renamed = [{neutral.get(n, n): array for n, array in feed.items()} for feed in samples]
        return cls(path, "ready", renamed, shared)

    @property
    def samples(self) -> Sequence[Feed]:
        """The calibration samples, by the names that its inputs have."""
        return self._samples

    def load(self) -> onnx.ModelProto:
        """Returns the model, its weights in memory."""
        return onnx.load(self.path)

    def smoothed(self, alpha: str) -> "FloatModel":
        """Returns the model with outliers moved into weights; see :func:`smoothing.smooth`."""

        def make(path: Path) -> None:
            model = self.load()
            largest: dict[str, list[float]] = self._shared.record(
                f"{self._name}-inputs", partial(smoothing.largest_inputs, model, self._samples)
            )
            smoothing.smooth(model, largest, float(alpha))
            onnx.save(model, path)

        if alpha == OFF:
            return self
        name = f"{self._name}-smoothed_{alpha}"
        path = self._shared.file(f"{name}.onnx", make)
        return FloatModel(path, name, self._samples, self._shared, self)

    def ranges(self, method: str, scratch: Path) -> Ranges:
        """Returns the ranges of all activations.

        Args:
            method: How they are taken: a value of ``calibration``.
        """

        def make() -> Ranges:
            # ONNX Runtime's tools write beside the file that they read
            shutil.copyfile(self.path, scratch)
            try:
                return calibration.activation_ranges(scratch, self._samples, method)
            finally:
                scratch.unlink()

        ranges: Ranges = self._shared.record(f"{self._name}-ranges_{method}", make)
        return ranges

    def slow(
        self, quantise: Quantise, kernels: str, ranges: Ranges, error_left: int = ALL_ERROR
    ) -> list[str]:
        """Returns the names of the nodes that eight bits make slower, or too wrong for their time.

        Times and errors are measured once for a kernel, also for pre-passes that give the same
        nodes in the same order.

        Args:
            quantise: Writes a copy of the model, all in eight bits.
            kernels: The name of what decides on the kernels that ONNX Runtime runs that copy with.
            ranges: Those of the activations.
            error_left: How much of the error of the fastest division may be left, in percent.
        """
        model = self.load()
        record = self._shared.of_model.record
        key = f"{kernels}-{_wiring(model)}"

        def measured() -> list[Any]:
            times = by_time.measure(model, self._samples, quantise)
            edges = [[*pair, size] for pair, size in times.edges.items()]
            return [times.units, times.float_us, times.int8_us, edges, times.crossing]

        units, float_us, int8_us, edges, crossing = record(f"times-{key}", measured)
        by_pair = {(i, j): size for i, j, size in edges}
        times = Times(units, float_us, int8_us, by_pair, LinearTime(*crossing))
        fastest = by_time.fastest_in_int8(times)
        if error_left == ALL_ERROR:
            return by_time.names_in_float(model, times, fastest)

        def rated() -> list[list[float]]:
            order = sorted(fastest, key=lambda i: times.int8_us[i] - times.float_us[i])
            ordered = [times.units[i] for i in order]
            run_us = sum(times.float_us)
            errors = by_error.squared_errors(model, self._samples, ranges, ordered, run_us)
            return [[i, error] for i, error in zip(order, errors, strict=False)]

        errors = dict(record(f"errors-{key}", rated))
        precise = by_time.precise_in_int8(times, fastest, errors, error_left / ALL_ERROR)
        return by_time.names_in_float(model, times, precise)

    def most_sensitive(
        self, types: Sequence[str], count: int, in_float: Sequence[str]
    ) -> list[str]:
        """Returns the names of the `count` nodes of these types that are best left in float.

        Pre-passes that leave the products and their weights as they are leave their ranking too.

        Args:
            types: Types of nodes that are considered; none means all that can be quantised.
            count: How many; 0 ranks nothing.
            in_float: Names of nodes that are in float already, and do not count.
        """
        if not count:
            return []
        model = self.load()
        nodes, rough = sensitivity.quantisable(model), self._rough or self
        numbers: list[int] = self._shared.of_model.record(
            f"{self._name}-ranked-{sensitivity.digest(rough.load())}",
            lambda: list(map(nodes.index, sensitivity.ranked(model, self._samples))),
        )
        allowed = types or sensitivity.QUANTISABLE
        types_by_name = {node.name: operator_of(node) for node in model.graph.node}
        free = (nodes[number] for number in numbers if nodes[number] not in in_float)
        return [name for name in free if types_by_name[name] in allowed][:count]


def added_products(model: onnx.ModelProto) -> list[str]:
    """Returns the nodes that smoothing added: rounding what they take would undo it."""
    return [node.name for node in model.graph.node if node.doc_string == smoothing.MARK]


def _wiring(model: onnx.ModelProto) -> str:
    """Returns a digest of the nodes of the main graph, in order: it does not see their names."""
    names = [item.name for item in model.graph.input]
    names += [name for node in model.graph.node for name in node.output]
    places = {name: str(i) for i, name in enumerate(names)}
    text = hashlib.sha256(sensitivity.digest(model).encode())
    for node in model.graph.node:
        given = [places.get(name, "constant") for name in node.input]
        attributes = sorted(item.SerializeToString() for item in node.attribute)
        text.update(f"{operator_of(node)} {given} {attributes}\n".encode())
    return text.hexdigest()[:16]
