"""The float model that a precision quantises, with its ranges and rankings, each made once."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from autotune.facts.feeds import Feed
from autotune.graph import channels, quantisation, rounding, sensitivity, smoothing
from autotune.graph.channels import Channels
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import load

OFF = "off"
"""The value of ``smoothing`` that leaves activations as they are."""


class FloatModel:
    """A model that is ready to be quantised.

    Args:
        path: Its file, which nobody writes to.
        name: Of its records.
        samples: Calibration samples.
        shared: Where its records are kept.
    """

    def __init__(
        self, path: Path, name: str, samples: Sequence[Feed], shared: Intermediates
    ) -> None:
        self.path = path
        self._name = name
        self._samples = samples
        self._shared = shared

    @classmethod
    def ready(cls, source: Path, samples: Sequence[Feed], shared: Intermediates) -> "FloatModel":
        """Returns the model in the file `source`, as quantisation needs it.

        Raises:
            StepRefusedError: it cannot be made ready.
        """

        def make(path: Path) -> None:
            quantisation.ready_to_quantise(source, path)

        return cls(shared.file("ready.onnx", make), "ready", samples, shared)

    def load(self) -> onnx.ModelProto:
        """Returns the model, its weights in memory."""
        return load(self.path)

    def copy_to(self, path: Path) -> Path:
        """Copies the file: ONNX Runtime's tools write beside the file that they read."""
        shutil.copyfile(self.path, path)
        return path

    def equalised(self) -> "FloatModel":
        """Returns the model with the weights of consecutive convolutions equalised."""

        def make(path: Path) -> None:
            model = self.load()
            smoothing.equalise(model)
            onnx.save(model, path)

        return self._changed("equalized", make)

    def smoothed(self, alpha: str) -> "FloatModel":
        """Returns the model with outliers moved into weights; see :func:`smoothing.smooth`."""

        def make(path: Path) -> None:
            model = self.load()
            smoothing.smooth(model, self.inputs(), float(alpha))
            onnx.save(model, path)

        return self if alpha == OFF else self._changed(f"smoothed_{alpha}", make)

    def clipped(self, *, per_channel: bool, reduce_range: bool) -> "FloatModel":
        """Returns the model with clipped weights; see :func:`autotune.graph.rounding.clip`."""

        def make(path: Path) -> None:
            model = self.load()
            rounding.clip(model, per_channel=per_channel, reduce_range=reduce_range)
            onnx.save(model, path)

        return self._changed(f"clipped_{per_channel:d}{reduce_range:d}", make)

    def _changed(self, change: str, make: Any) -> "FloatModel":
        name = f"{self._name}-{change}"
        path = self._shared.file(f"{name}.onnx", make)
        return FloatModel(path, name, self._samples, self._shared)

    def inputs(self) -> Mapping[str, Channels]:
        """Returns the figures of the inputs of all products."""
        record = self._shared.record(
            f"{self._name}-channels", lambda: channels.measure(self.load(), self._samples)
        )
        return channels.from_json(record)

    def ranges(self, calibration: str, scratch: Path) -> dict[str, list[Any]]:
        """Returns the ranges of all activations.

        Args:
            calibration: How they are taken.
            scratch: Where a copy of the file may be written.
        """

        def make() -> dict[str, list[Any]]:
            copy = self.copy_to(scratch)
            try:
                return quantisation.activation_ranges(copy, self._samples, calibration)
            finally:
                copy.unlink()

        ranges: dict[str, list[Any]] = self._shared.record(
            f"{self._name}-ranges_{calibration}", make
        )
        return ranges

    def most_sensitive(self, types: Sequence[str], count: int) -> list[str]:
        """Returns the names of the `count` nodes of these types that are best left in float.

        Args:
            types: Types of nodes that are considered; none means all that can be quantised.
            count: How many; 0 ranks nothing.
        """
        if not count:
            return []
        model = self.load()
        ranking = self._shared.record(
            f"{self._name}-ranking", lambda: sensitivity.rank(model, self._samples)
        )
        allowed = types or sensitivity.QUANTISABLE
        types_by_name = {node.name: node.op_type for node in model.graph.node}
        return [name for name in ranking if types_by_name[name] in allowed][:count]


def added_products(model: onnx.ModelProto) -> list[str]:
    """Returns the nodes that smoothing added: rounding what they take would undo it."""
    return [node.name for node in model.graph.node if node.doc_string == smoothing.MARK]
