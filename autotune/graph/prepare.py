"""The model file that a candidate's graph half asks for."""

from dataclasses import dataclass
from pathlib import Path

from autotune.facts.model import Model
from autotune.space.candidate import Candidate


@dataclass(frozen=True, kw_only=True)
class PreparedModel:
    """A model file that sessions are opened on.

    Attributes:
        path: The file; never written to once it is here.
        data_files: Its external data files, beside it.
        sha256: Digest of all these files' bytes.
        steps: What was done to the source, in words; empty if it is the source itself.
    """

    path: Path
    data_files: tuple[Path, ...]
    sha256: str
    steps: tuple[str, ...]


def prepare(model: Model, candidate: Candidate) -> PreparedModel:
    """Returns the file for the graph half of `candidate`.

    An empty graph half is the user's own file, untouched and not copied.
    """
    if candidate.graph.values:
        raise NotImplementedError(f"no step makes {candidate.graph.in_words()}")
    return PreparedModel(
        path=model.path.resolve(), data_files=model.data_files, sha256=model.sha256, steps=()
    )
