"""Which configurations open the same session on the same graph."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.deploy.options import Value
from autotune.measure.configuration_files import ConfigurationFiles
from autotune.space.configuration import Configuration

_SLIMMED: dict[str, Value] = {"pre_pass": "onnxslim"}


def _files() -> ConfigurationFiles:
    """Returns files that ONNX Runtime optimises to one graph, whatever the graph parameters."""
    preparer = SimpleNamespace(looked_at=lambda _: SimpleNamespace(graph_digest="one"))
    files = ConfigurationFiles(cast(Any, None), cast(Any, preparer))
    files.canonical(Configuration())
    return files


@pytest.mark.parametrize(
    "session",
    [{}, {"intra_op_num_threads": 1}, {"graph_optimization_level": "ORT_ENABLE_EXTENDED"}],
)
def test_files_of_one_graph_are_duplicates(session: dict[str, Value]) -> None:
    """The session parameters stay; the graph parameters become those of the first file."""
    both = Configuration.of({**_SLIMMED, **session})
    assert _files().canonical(both) == Configuration.of(session)


@pytest.mark.parametrize(
    "session",
    [
        {"execution_provider": "openvino"},
        {"graph_optimization_level": "ORT_ENABLE_BASIC"},
        {"fixed_dimensions": True},
        {"optimization.enable_gelu_approximation": "1"},
    ],
)
def test_other_optimisations_make_no_duplicates(session: dict[str, Value]) -> None:
    """What the CPU provider makes of a file at its usual level says nothing about these."""
    both = Configuration.of({**_SLIMMED, **session})
    assert _files().canonical(both) == both
