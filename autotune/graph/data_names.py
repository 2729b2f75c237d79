"""Names for the external data files of a model that is written somewhere else."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.graph.graph_facts import Renamed
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.graph.prepare_child"
# The file of a model without its data has 2 GiB at most.
_TIME_LIMIT_S = 300.0


class RenamingError(Exception):
    """The names in a model cannot be changed; the text says why."""


def data_names(data_files: Sequence[Path], model: str) -> dict[str, str]:
    """Returns a name of our own for each external data file of a model, by its name now.

    The user chose the old ones, and they may be those of other files in a study's folder.

    Args:
        data_files: The files, in their order.
    """
    return {file.name: f"{model}.data{i + 1 if i else ''}" for i, file in enumerate(data_files)}


def copy_with_data_names(model: Path, names: Mapping[str, str], target: Path) -> None:
    """Copies a model's file, the names of its external data files in it changed.

    A limited child parses the file.

    Args:
        names: The new name of each data file, by its old one.
        target: The file that is written; it is there already, and no process but this one knows it.

    Raises:
        RenamingError: the child failed.
        OSError: writing to disk failed.
    """
    if all(old == new for old, new in names.items()):
        shutil.copyfile(model, target)
        return
    with Child(_CHILD, memory_limit()) as child:
        renamed = child.folder / "renamed.onnx"
        request = {
            "do": "rename_data",
            "path": str(model),
            "names": dict(names),
            "to": str(renamed),
        }
        try:
            child.request(request, _TIME_LIMIT_S, Renamed)
        except ChildFailure as failure:
            raise RenamingError(failure.message) from None
        shutil.copyfile(renamed, target)
