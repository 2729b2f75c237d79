"""Which provider runs which nodes, and a configuration whose provider runs none."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.deploy.placement import Placement, placement_of
from autotune.deploy.providers import CPU, PROVIDERS, Provider
from autotune.deploy.session import SessionConfig
from autotune.measure.configuration_run import ConfigurationRun, TimeLimits
from autotune.measure.memory import Usage
from autotune.measure.outcome import Failure
from autotune.measure.provider_cache import ProviderCache
from autotune.measure.replies import Opened
from autotune.measure.requests import SampleFiles
from autotune.process.child import Child

_CUDA = PROVIDERS["cuda"]
_FILES = SampleFiles(
    timing=Path("t.npz"), validation=Path("v.npz"), outputs=Path("o.npz"), one_shape=True
)


class FakeSession:
    """A session in which providers have these subgraphs."""

    def __init__(self, *subgraphs: tuple[str, str]) -> None:
        self._subgraphs = subgraphs

    def get_provider_graph_assignment_info(self) -> list[Any]:
        return [
            SimpleNamespace(ep_name=name, get_nodes=lambda types=types: _nodes(types))
            for name, types in self._subgraphs
        ]


def _nodes(types: str) -> list[Any]:
    return [SimpleNamespace(op_type=name) for name in types.split()]


def test_nodes_are_counted_over_all_subgraphs() -> None:
    """A provider may have got several; what the CPU provider got is named, most frequent first."""
    placement = placement_of(
        FakeSession((_CUDA.name, "Conv Relu"), (CPU, "Shape NonZero Shape"), (_CUDA.name, "Conv"))
    )
    assert placement.nodes == {_CUDA.name: 3, CPU: 3}
    assert placement.left_behind == ("Shape", "NonZero")
    assert placement.share(_CUDA.name) == 0.5
    assert placement.share("another") == 0


def test_a_graph_without_nodes_has_no_shares() -> None:
    """All nodes may have been folded away."""
    assert placement_of(FakeSession()).share(CPU) == 0


class FakeChild:
    """A child that has opened a session with such a placement."""

    def __init__(self, placement: Placement | None) -> None:
        self._placement = placement
        self.limit_s = 0.0

    def request(self, message: object, timeout_s: float, reply: object) -> Opened:
        self.limit_s = timeout_s
        held = Usage(resident_mib=1.0, peak_mib=1.0, anonymous_mib=None)
        return Opened(load_ms=1.0, base=held, loaded=held, placement=self._placement)


def _open(child: FakeChild, provider: Provider, folder: Path) -> Failure | None:
    """Returns what a visit says once the child has opened the session."""
    visit = ConfigurationRun(cast(Child, child), _FILES, TimeLimits(load_s=60.0, run_s=30.0))
    names = dict.fromkeys([provider.name, CPU])
    config = SessionConfig(providers=tuple((name, {}) for name in names))
    return visit.open(Path("m.onnx"), config, ProviderCache(folder))


def test_a_provider_that_runs_no_node_is_a_fallback(tmp_path: Path) -> None:
    """Its times would be the CPU provider's."""
    failure = _open(FakeChild(Placement(nodes={CPU: 38})), _CUDA, tmp_path)
    assert failure == Failure(
        kind="fallback", phase="open", message="CUDAExecutionProvider runs none of the 38 nodes"
    )


@pytest.mark.parametrize(
    ("provider", "placement"),
    [(_CUDA, Placement(nodes={_CUDA.name: 1, CPU: 37})), (PROVIDERS["cpu"], None)],
    ids=["a part", "the CPU provider alone"],
)
def test_a_part_of_the_nodes_is_enough(
    provider: Provider, placement: Placement | None, tmp_path: Path
) -> None:
    """A partial placement is measured; the CPU provider has none to be told."""
    assert _open(FakeChild(placement), provider, tmp_path) is None


@pytest.mark.parametrize(("word", "limit_s"), [("cpu", 60.0), ("tensorrt", 1800.0)])
def test_a_provider_that_compiles_has_time(word: str, limit_s: float, tmp_path: Path) -> None:
    """Building an engine takes minutes; the limit of the baseline would end it."""
    provider = PROVIDERS[word]
    child = FakeChild(Placement(nodes={provider.name: 1}))
    assert _open(child, provider, tmp_path) is None
    assert child.limit_s == limit_s
