"""Digests that are the same for models that ONNX Runtime optimises to the same graph."""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import external_data_helper, numpy_helper

from autotune.facts.graphs import all_initializers, operator_of
from autotune.graph.model_file import DATA_FILE, NO_PREPACKING, write_optimised

# ONNX Runtime reads shapes and axes while it parses, and most fusions read small constants alone.
_SMALLEST_BYTES = 1 << 16
_PAGE_BYTES = 4096


def graph_digest(path: Path) -> str | None:
    """Returns the digest of the graph that ONNX Runtime makes of the model in the file `path`.

    None where ONNX Runtime does not write the graph.
    """
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        models = SlimModels(Path(folder))
        try:
            return models.digest(models.write(onnx.load(path)))
        except Exception:  # noqa: BLE001  # it is too large: without a digest nothing is lost
            return None


class SlimModels:
    """Models that have their large weights in one file, where ONNX Runtime maps them.

    Equal weights are in the file once. What ONNX Runtime leaves of them as they are is not written
    again with the optimised graph, so many such graphs are written in the time of one.

    Args:
        folder: An empty folder, for the models and the file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._weights = folder / "weights"
        self._offsets: dict[str, int] = {}
        self._digests: dict[int, str] = {}
        self._count = 0

    def write(self, model: onnx.ModelProto) -> Path:
        """Writes a model, whose large weights leave it, to a new file; returns that file."""
        with self._weights.open("ab") as file:
            for item in all_initializers(model.graph):
                if len(item.raw_data) < _SMALLEST_BYTES:
                    continue
                digest = hashlib.sha256(item.raw_data).hexdigest()
                if digest not in self._offsets:
                    file.write(bytes(-file.tell() % _PAGE_BYTES))
                    self._offsets[digest] = file.tell()
                    self._digests[file.tell()] = digest
                    file.write(item.raw_data)
                external_data_helper.set_external_data(
                    item, self._weights.name, self._offsets[digest], len(item.raw_data)
                )
                item.ClearField("raw_data")
        self._count += 1
        path = self._folder / f"{self._count}.onnx"
        path.write_bytes(model.SerializeToString())
        return path

    def digest(self, path: Path, leave_out: str = "") -> str | None:
        """Returns the digest of the graph that ONNX Runtime makes of one of these models.

        Tensors are known by the order in which they appear, because passes invent names of their
        own. None where ONNX Runtime does not write the graph.

        Args:
            leave_out: The name of an optimisation that ONNX Runtime leaves out.
        """
        optimised = self._folder / "optimised"
        entries = {DATA_FILE: "", NO_PREPACKING: "1"}
        try:
            write_optimised(path, optimised, "ORT_ENABLE_EXTENDED", entries, leave_out)
            model = onnx.load(optimised, load_external_data=False)
        except Exception:  # noqa: BLE001  # without a digest the model is measured: nothing is lost
            return None
        opsets = sorted((item.domain, item.version) for item in model.opset_import)
        digest = hashlib.sha256(repr(opsets).encode())
        for item in (*model.graph.input, *model.graph.output):
            digest.update(f"{item.name} ".encode())
        self._hash_graph(digest, model.graph, {}, {})
        return digest.hexdigest()

    def _hash_graph(
        self,
        digest: "hashlib._Hash",
        graph: onnx.GraphProto,
        outer_places: Mapping[str, int],
        outer_weights: Mapping[str, str],
    ) -> None:
        """Adds the nodes to the digest: weights by their values, other tensors by first appearance.

        Args:
            graph: The main graph or the body of a branch or loop.
            outer_places: Numbers of the tensors of the graphs around it.
            outer_weights: Digests of the weights of the graphs around it, by name.
        """
        places, weights = dict(outer_places), dict(outer_weights)
        for item in graph.initializer:
            weights[item.name] = self._identity(item)

        def neutral_name(name: str) -> str:
            if not name:
                return "-"
            return weights[name] if name in weights else str(places.setdefault(name, len(places)))

        def add(*names: str) -> None:
            digest.update(" ".join(map(neutral_name, names)).encode())

        add(*(item.name for item in graph.input))
        for node in graph.node:
            digest.update(f"\n{operator_of(node)} ".encode())
            add(*node.input)
            for attribute in sorted(node.attribute, key=lambda item: item.name):
                if attribute.type == onnx.AttributeProto.GRAPH:
                    digest.update(attribute.name.encode())
                    self._hash_graph(digest, attribute.g, places, weights)
                else:
                    digest.update(attribute.SerializeToString(deterministic=True))
            digest.update(b" = ")
            add(*node.output)
        add(*(item.name for item in graph.output))

    def _identity(self, tensor: onnx.TensorProto) -> str:
        """Returns a word that equal weights have, in the file or not."""
        if external_data_helper.uses_external_data(tensor):
            place: Any = external_data_helper.ExternalDataInfo(tensor)
            contents = self._digests[place.offset or 0]
        else:
            is_raw = tensor.HasField("raw_data")
            raw = tensor.raw_data if is_raw else numpy_helper.to_array(tensor).tobytes()
            contents = hashlib.sha256(raw).hexdigest()
        return f"{tensor.data_type}:{','.join(map(str, tensor.dims))}:{contents}"
