"""What one value of a graph parameter is: its words, its needs, and the step that it stands for.

A pre-pass, a precision and a storage form are one entry each. Everything else that autotune must
know about it (the values of the parameter, what a machine must have, the order of steps, the words)
is read from that entry. This module imports neither onnx nor onnxruntime, because the command line
imports it.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autotune.deploy.options import Domain, Value


class StepRefusedError(Exception):
    """A step cannot be applied to this model; the text tells the user why."""


class UnfitModelError(StepRefusedError):
    """A step cannot be applied to this model with any options."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One value of a graph parameter.

    Attributes:
        needs: What the model and the machine must have, by the names of
            :data:`autotune.space.needs.NEEDS`.
        packages: What must be installed, by the names under which the packages are imported.
    """

    words: str
    needs: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def all_needs(self) -> tuple[str, ...]:
        """Its needs and its packages; each package is a need of the same name."""
        return (*self.needs, *self.packages)

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of its packages that are not installed."""
        return tuple(package for package in self.packages if not is_installed(package))


@dataclass(frozen=True, kw_only=True)
class Step(Entry):
    """An entry that writes a new model.

    Attributes:
        run: Reads a model file (first argument), with its external data beside it, and writes a
            whole new one (second argument). It gets its options by name. Raises
            :class:`StepRefusedError`, or whatever its tool raises, where it cannot. It runs in a
            limited child process on a private copy, and imports its tools only when it is called.
        wants_samples: Whether ``run`` gets the calibration samples as its third argument, and as
            ``shared`` the :class:`~autotune.graph.intermediates.Intermediates` of the model.
        changes_interface: Whether the inputs and outputs of what it writes are not the source's.
    """

    run: Callable[..., None]
    wants_samples: bool = False
    changes_interface: bool = False


@dataclass(frozen=True, kw_only=True)
class GraphParameter:
    """A parameter that changes the model's file.

    Attributes:
        words: Returns how a person reads a value that is not the default.
        entries: The entry of each value that has one.
    """

    domain: Domain
    words: Callable[[Value], str]
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def of_entries(cls, default: str, entries: Mapping[str, Entry]) -> "GraphParameter":
        """Returns the parameter whose values are `default` and the names of `entries`."""
        names = dict.fromkeys([default, *entries])

        def words(value: Value) -> str:
            entry = entries.get(str(value))
            # a plain Optuna study may have a parameter of this name with values of its own
            return entry.words if entry else str(value)

        return cls(
            domain=Domain(choices=tuple(names), default=default), words=words, entries=entries
        )

    def needs(self, value: Value) -> tuple[str, ...]:
        """Returns the names of what model, machine and installation must have for `value`."""
        entry = self.entries.get(str(value))
        return entry.all_needs if entry else ()


@dataclass(frozen=True, kw_only=True)
class OperatorGroup(Entry):
    """Which operators are quantised.

    Attributes:
        types: Their types; empty for all that ONNX Runtime can quantise.
    """

    types: tuple[str, ...]


_BOTH_KINDS = ("conv_and_matrix_products",)

OPERATOR_GROUPS: Mapping[str, OperatorGroup] = {
    "all": OperatorGroup(types=(), words="all operators"),
    "products": OperatorGroup(
        types=("Conv", "MatMul", "Gemm"), words="convolutions and matrix products alone"
    ),
    "conv": OperatorGroup(types=("Conv",), words="convolutions alone", needs=_BOTH_KINDS),
    "matmul": OperatorGroup(
        types=("MatMul", "Gemm"), words="matrix products alone", needs=_BOTH_KINDS
    ),
}
"""Values of ``quantized_operators``."""

OFF = "off"
"""The value of ``smoothing`` that leaves activations as they are."""

ALL_ERROR = 100
"""The value of ``error_left``, in percent, that leaves the error of int8 as it is."""

AS_PRECISION = "as_precision"
"""The value of ``embeddings`` that leaves them to the precision of the other nodes."""


def is_installed(package: str) -> bool:
    """Returns whether a package of this import name can be imported."""
    return importlib.util.find_spec(package) is not None


def not_installed(package: str) -> str:
    """Returns the sentence that says that a package is missing, and how to install it."""
    if package == "torch":
        return "the package torch is not installed: pip install torch"
    name = package.replace("_", "-")
    extra = name if name == "nncf" else "passes"
    return f"the package {name} is not installed; the extra [{extra}] brings it"
