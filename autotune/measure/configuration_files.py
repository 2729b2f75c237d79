"""The model files of configurations, and which configurations come to the same file."""

from pathlib import Path

from autotune.deploy.options import RUNTIME
from autotune.errors import StorageError
from autotune.facts.model import Model
from autotune.graph.prepare import PreparationError, Preparer
from autotune.space.configuration import Configuration
from autotune.space.session import EXECUTION_PROVIDER, OPTIMIZER_PARAMETERS

# A file's digest is that of the graph that the CPU provider makes of it at the level extended.
_COMPARED_LEVELS = ("ORT_ENABLE_EXTENDED", "ORT_ENABLE_LAYOUT", "ORT_ENABLE_ALL")
# With these, other optimisations decide what a session makes of a file; the blocked layout comes
# after the level extended.
_OTHER_GRAPHS = frozenset(
    {
        *(OPTIMIZER_PARAMETERS.keys() - {"optimizer.NchwcTransformer"}),
        *(EXECUTION_PROVIDER, "fixed_dimensions", "session.x64quantprecision"),
        *("session.disable_quant_qdq", "session.enable_quant_qdq_cleanup"),
        *("session.disable_aot_function_inlining", "session.graph_optimizations_loop_level"),
        "optimization.enable_gelu_approximation",
        "optimization.enable_cast_chain_elimination",
    }
)


class ConfigurationFiles:
    """The files that configurations of one model are opened on.

    Args:
        preparer: Makes the files; without one every configuration opens the model itself.
    """

    def __init__(self, model: Model, preparer: Preparer | None) -> None:
        self._model = model
        self._preparer = preparer
        self._duplicates: dict[str, Configuration] = {}

    @property
    def source(self) -> Path:
        """The model's own file; children work in other folders than this process."""
        return self._model.path.absolute()

    def file(self, configuration: Configuration) -> tuple[Path, str]:
        """Returns the file of a configuration, which is made if it is not there, and a digest.

        The digest is that of the file and of its external data.

        Raises:
            PreparationError: it cannot be made.
            StorageError: writing to disk failed.
        """
        if self._preparer is None:
            return self.source, self._model.sha256
        try:
            prepared = self._preparer.prepare(configuration.graph.to_json())
        except OSError as error:
            raise StorageError(
                f"cannot write models to {self._preparer.cache.root}: {error.strerror}; "
                "make room and type the same command again"
            ) from None
        return prepared.path, prepared.sha256

    def canonical(self, configuration: Configuration) -> Configuration:
        """Returns the first configuration so far that opens the same session on the same graph.

        Two sets of graph parameters are the same where ONNX Runtime optimises their files to the
        same graph and stores weights alike. That is known for the CPU provider alone, from the
        level extended on. Its own offline passes stand apart: what they save is the optimisation
        itself, in time and memory of loading.
        """
        graph_parameters = configuration.graph
        session = configuration.session.to_json()
        level = session.get("graph_optimization_level", "ORT_ENABLE_ALL")
        if level not in _COMPARED_LEVELS or not _OTHER_GRAPHS.isdisjoint(session):
            return configuration
        # each runtime optimises in its own way
        if RUNTIME in graph_parameters.to_json():
            return configuration
        if self._preparer is None or "ort_" in str(graph_parameters.to_json().get("pre_pass", "")):
            return configuration
        try:
            digest = self._preparer.looked_at(graph_parameters.to_json()).graph_digest
        except PreparationError:
            return configuration
        if digest is None:
            return configuration
        storage = graph_parameters.to_json().get("weight_storage", "inline")
        first = self._duplicates.setdefault(f"{digest} {storage}", graph_parameters)
        return Configuration.of({**session, **first.to_json()})
