"""The model files of candidates, and which candidates come to the same file."""

from pathlib import Path

from autotune.errors import StorageError
from autotune.facts.model import Model
from autotune.graph.prepare import PreparationError, Preparer
from autotune.space.candidate import Candidate


class CandidateFiles:
    """The files that candidates of one model are opened on.

    Args:
        model: The model.
        preparer: Makes the files; without one every candidate opens the model itself.
    """

    def __init__(self, model: Model, preparer: Preparer | None) -> None:
        self._model = model
        self._preparer = preparer
        self._twins: dict[str, Candidate] = {}

    @property
    def source(self) -> Path:
        """The model's own file; children work in other folders than this process."""
        return self._model.path.resolve()

    def path(self, candidate: Candidate) -> Path:
        """Returns the file of a candidate, which is made if it is not there.

        Raises:
            PreparationError: it cannot be made.
            StorageError: the disk gave out.
        """
        if self._preparer is None:
            return self.source
        try:
            return self._preparer.prepare(candidate.graph.to_json()).path
        except OSError as error:
            raise StorageError(
                f"cannot write prepared models to {self._preparer.cache.root}: {error.strerror}; "
                "make room and type the same command again"
            ) from None

    def canonical(self, candidate: Candidate) -> Candidate:
        """Returns the first candidate so far that opens the same session on the same graph.

        Two graph halves are the same where ONNX Runtime optimises their files to the same graph
        and stores weights alike. Its own offline passes stand apart: what they save is the
        optimisation itself, in time and memory of loading.
        """
        half = candidate.graph
        if self._preparer is None or "ort_" in str(half.to_json().get("pre_pass", "")):
            return candidate
        try:
            digest = self._preparer.looked_at(half.to_json()).graph_digest
        except PreparationError:
            return candidate
        if digest is None:
            return candidate
        storage = half.to_json().get("storage", "inline")
        first = self._twins.setdefault(f"{digest} {storage}", half)
        return Candidate.of({**candidate.session.to_json(), **first.to_json()})
