"""Which execution provider runs which nodes of an open session.

``get_providers()`` proves nothing: a provider can stand first in that list and run no node.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.deploy.providers import CPU
from autotune.deploy.records import Text, Whole

RECORD_ENTRY = "session.record_ep_graph_assignment_info"
"""The session config entry that lets ONNX Runtime record which provider got which nodes."""

_MOST_TYPES = 20


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The nodes that each execution provider runs, of the graph before providers fuse them.

    Attributes:
        nodes: How many nodes each provider got, by ONNX Runtime's name; providers without a node
            are missing.
        left_behind: Types of the nodes that the CPU provider got, the most frequent first.
    """

    nodes: Mapping[str, Whole]
    left_behind: tuple[Text, ...] = ()

    def share(self, provider: str) -> float:
        """Returns the share of the nodes that `provider` runs; 0 where there are no nodes."""
        return self.nodes.get(provider, 0) / max(1, sum(self.nodes.values()))


def placement_of(session: Any) -> Placement:
    """Returns the placement of a session that was opened with :data:`RECORD_ENTRY`."""
    nodes: Counter[str] = Counter()
    types: Counter[str] = Counter()
    for subgraph in session.get_provider_graph_assignment_info():
        assigned = subgraph.get_nodes()
        nodes[subgraph.ep_name] += len(assigned)
        if subgraph.ep_name == CPU:
            types.update(node.op_type for node in assigned)
    return Placement(
        nodes=dict(nodes),
        left_behind=tuple(name for name, _ in types.most_common(_MOST_TYPES)),
    )
