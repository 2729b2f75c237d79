"""The float model that a precision quantises, with its ranges and rankings, each made once."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from autotune.facts.feeds import Feed
from autotune.graph import calibration, channels, quantisation, sensitivity, smoothing
from autotune.graph.calibration import Ranges
from autotune.graph.channels import Channels
from autotune.graph.intermediates import Intermediates
from autotune.graph.model_file import load
from autotune.graph.precision_options import OFF
from autotune.graph.ranking import ranked


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

    def ranges(self, method: str, scratch: Path) -> Ranges:
        """Returns the ranges of all activations.

        Args:
            method: How they are taken: a value of ``calibration``.
            scratch: Where a copy of the file may be written.
        """
        source = calibration.SOURCES[method]

        def make() -> dict[str, Ranges]:
            copy = self.copy_to(scratch)
            try:
                return calibration.activation_ranges(copy, self._samples, source)
            finally:
                copy.unlink()

        ranges: dict[str, Ranges] = self._shared.record(f"{self._name}-ranges_{source}", make)
        return ranges[method]

    def most_sensitive(self, types: Sequence[str], count: int, ranking: str) -> list[str]:
        """Returns the names of the `count` nodes of these types that are best left in float.

        Args:
            types: Types of nodes that are considered; none means all that can be quantised.
            count: How many; 0 ranks nothing.
            ranking: A value of the parameter of this name.
        """
        if not count:
            return []
        model = self.load()
        names = ranked(self._name, self._shared, model, self._samples, by=ranking)
        allowed = types or sensitivity.QUANTISABLE
        types_by_name = {node.name: node.op_type for node in model.graph.node}
        return [name for name in names if types_by_name[name] in allowed][:count]


def added_products(model: onnx.ModelProto) -> list[str]:
    """Returns the nodes that smoothing added: rounding what they take would undo it."""
    return [node.name for node in model.graph.node if node.doc_string == smoothing.MARK]
