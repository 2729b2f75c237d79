"""What a model is: its inputs, what is in it, and what of it decides which parameters matter.

The file is parsed in a limited child process (:mod:`autotune.facts.model_child`); this side hashes
bytes and reads numbers.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.deploy.loader import digest_files
from autotune.errors import ModelError
from autotune.process import reply
from autotune.process.child import Child, ChildFailure, memory_limit

# Opening a model and optimising it once; a 2 GiB model on a slow disk takes a minute.
_TIME_LIMIT_S = 600

_INPUT = reply.record(
    name=reply.text,
    dtype=reply.text,
    shape=reply.several(reply.maybe(reply.either(reply.whole, reply.text))),
    index_bound=reply.maybe(reply.whole),
)
_REPLIES: dict[str, dict[str, reply.Shape]] = {
    "inspect": {
        "data_files": reply.several(reply.bare_name),
        "inputs": reply.several(_INPUT),
        "outputs": reply.several(reply.text),
        "opset": reply.whole,
        "operators": reply.mapping(reply.whole),
        "parameters": reply.whole,
        "has_conv": reply.flag,
        "has_gelu": reply.flag,
        "branches": reply.whole,
        "subnormals": reply.whole,
    }
}

Dimension = int | str | None
"""A size, a symbolic name, or None where the model says nothing."""


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """An input of a model.

    Attributes:
        name: Its name.
        dtype: Its element type as numpy spells it; ``str`` for strings.
        shape: Its dimensions; empty for a scalar.
        index_bound: Where its values index the rows of a constant table, how many there are.
    """

    name: str
    dtype: str
    shape: tuple[Dimension, ...]
    index_bound: int | None = None

    @property
    def is_dynamic(self) -> bool:
        """Whether some dimension is left open."""
        return any(not isinstance(size, int) for size in self.shape)


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model file and what was found in it.

    Attributes:
        path: The file.
        data_files: Its external data files, beside it.
        sha256: Digest of all these files' bytes.
        size_bytes: Of all these files.
        inputs: The inputs that must be fed (those with a default value are left at it).
        outputs: Names of the outputs.
        opset: Of the default domain.
        operators: How many nodes there are of each type, subgraphs included.
        parameters: Number of elements of all initializers.
        has_conv: Whether there is a convolution.
        has_gelu: Whether there is a GELU, whole or in pieces.
        branches: How many heavy nodes can run side by side, at least.
        subnormals: Subnormal numbers among the weights, after ONNX Runtime's optimisation.
    """

    path: Path
    data_files: tuple[Path, ...]
    sha256: str
    size_bytes: int
    inputs: tuple[Tensor, ...]
    outputs: tuple[str, ...]
    opset: int
    operators: dict[str, int]
    parameters: int
    has_conv: bool
    has_gelu: bool
    branches: int
    subnormals: int

    @property
    def is_dynamic(self) -> bool:
        """Whether some input leaves a dimension open."""
        return any(tensor.is_dynamic for tensor in self.inputs)


def describe(path: Path) -> Model:
    """Returns what the file `path` holds.

    Raises:
        ModelError: there is no such file, or ONNX Runtime cannot run it; the message says why.
    """
    if path.is_dir():
        raise ModelError(f"{path} is a folder; name the .onnx file in it")
    if not path.is_file():
        raise ModelError(f"there is no file {path}")
    with Child("autotune.facts.model_child", memory_limit(), _REPLIES) as child:
        try:
            found = child.request({"do": "inspect", "path": str(path.resolve())}, _TIME_LIMIT_S)
        except ChildFailure as failure:
            raise ModelError(_refusal(path, failure)) from None
    data_files = tuple(path.parent / name for name in found["data_files"])
    return Model(
        path=path,
        data_files=data_files,
        sha256=digest_files([path, *data_files]),
        size_bytes=sum(file.stat().st_size for file in (path, *data_files)),
        inputs=tuple(_tensor(item) for item in found["inputs"]),
        outputs=tuple(found["outputs"]),
        opset=found["opset"],
        operators=found["operators"],
        parameters=found["parameters"],
        has_conv=found["has_conv"],
        has_gelu=found["has_gelu"],
        branches=found["branches"],
        subnormals=found["subnormals"],
    )


def _tensor(item: dict[str, Any]) -> Tensor:
    return Tensor(
        name=item["name"],
        dtype=item["dtype"],
        shape=tuple(item["shape"]),
        index_bound=item["index_bound"],
    )


def _refusal(path: Path, failure: ChildFailure) -> str:
    """Returns one sentence that says why the model cannot be used."""
    text = failure.message
    if failure.kind == "timeout":
        return f"{path} could not be opened within {_TIME_LIMIT_S} s"
    if failure.kind == "out_of_memory":
        return f"{path} needs more memory to open than this machine has free: {text}"
    if failure.kind != "refused":
        return f"{path} makes ONNX Runtime end abruptly ({text}); the file may be damaged"
    if match := re.search(r"No Op registered for (\S+) with domain_version of (\d+)", text):
        return (
            f"{path} uses the operator '{match[1]}', which ONNX Runtime does not have at opset "
            f"{match[2]}; export the model without it or with another opset"
        )
    if match := re.search(r"(\S+?)(?:\(-?\d+\))? is not a registered function/op", text):
        return (
            f"{path} uses the operator '{match[1]}', which ONNX Runtime does not have; "
            "models with custom operators cannot be tuned"
        )
    if match := re.search(r"Could not find an implementation for (\w+)\((\d+)\)", text):
        return (
            f"{path} uses the operator '{match[1]}' with a type for which ONNX Runtime has no "
            "kernel on the CPU; export the model with another type"
        )
    if match := re.search(r"Opset (\d+) is under development.*?till opset (\d+)", text):
        return (
            f"{path} uses opset {match[1]}, and this ONNX Runtime knows opsets up to {match[2]}; "
            "upgrade onnxruntime or export the model with an older opset"
        )
    reason = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from .* failed:)?", "", text)
    return f"{path} cannot be used: {reason}"
