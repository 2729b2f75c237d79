"""The traffic of one model: shapes with their shares, as samples for a study.

It comes from a recording, with real inputs, or from a JSON file, with generated ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.own_study import write_samples
from autotune.applications.recording import InputShape, Recording, Shape
from autotune.deploy.files import digest_files, is_folder, read_json
from autotune.deploy.records import Positive, PositiveWhole, Several, read
from autotune.errors import FormatError, RequestError, did_you_mean, typed
from autotune.facts.model import Model

FOLDER = "traffic"
"""Folder of the samples, in the folder of a study."""

_LARGEST_BYTES = 16 << 20
# Shares become whole numbers of calls.
_CALLS = 10_000
_EXAMPLE = '[{"dimensions": {"batch": 8, "sequence": 40}, "share": 0.3}]'


@dataclass(frozen=True, kw_only=True)
class _Part:
    """A part of the traffic: the sizes of named dimensions, and its share of the requests."""

    dimensions: Mapping[str, PositiveWhole]
    share: Positive


def write_traffic(model: Model, source: Path, folder: Path, seed: int = 0) -> None:
    """Writes samples of a model's traffic to a folder, each shape as often as it came.

    Args:
        model: The model.
        source: A recording, or a JSON file with shares of shapes.
        folder: Where the samples go, a file each.
        seed: For generated inputs.

    Raises:
        RequestError: the source says nothing of this model, or breaks its schema.
    """
    shapes = _recorded(model, source) if is_folder(source) else _stated(model, source)
    write_samples(shapes, model, folder, seed)


def _recorded(model: Model, source: Path) -> Sequence[Shape]:
    """Returns the shapes with which a recorded application called the model."""
    sha256 = digest_files([model.path])
    recording = Recording.read(source)
    own = [session for session in recording.sessions if session.opened.sha256 == sha256]
    shapes = [shape for session in own for shape in session.shapes.values() if shape.calls]
    if not shapes:
        names = ", ".join(session.name for session in recording.sessions) or "none"
        raise RequestError(
            f"--traffic: {source} has no call of {model.path.name}; its models are {names}"
        )
    if any(shape.fed for shape in shapes):  # most of its calls were not kept as inputs
        raise RequestError(
            f"--traffic: {source} feeds outputs of calls to {model.path.name}, so its samples are "
            f"no calls of their own; type autotune study {typed(source)}"
        )
    return shapes


def _stated(model: Model, source: Path) -> Sequence[Shape]:
    """Returns the shapes that a JSON file states."""
    try:
        parts = read(Several[_Part], read_json(source, _LARGEST_BYTES), "the traffic")
        whole = sum(part.share for part in parts)
        return [
            Shape(
                inputs=_inputs(model, part.dimensions),
                calls=max(1, round(_CALLS * part.share / whole)),
            )
            for part in parts
        ]
    except FormatError as error:
        raise RequestError(
            f"--traffic: cannot read {source}: {error}. Name a recording, or a list such "
            f"as {_EXAMPLE}"
        ) from None


def _inputs(model: Model, sizes: Mapping[str, int]) -> tuple[InputShape, ...]:
    """Returns the inputs where named dimensions have these sizes; other open ones are 1.

    Raises:
        FormatError: the model has no dimension of a name.
    """
    known = {size for tensor in model.inputs for size in tensor.shape if isinstance(size, str)}
    for name in sizes:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none with a name"
            raise FormatError(
                f"{model.path.name} has no open dimension '{name}'.{did_you_mean(name, known)} "
                f"It has {listed}"
            )
    return tuple(
        InputShape(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tuple(
                size if isinstance(size, int) else sizes.get(str(size), 1) for size in tensor.shape
            ),
        )
        for tensor in model.inputs
    )
