"""The work of a run: a record that the child that counts and its parent both import."""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.deploy.records import Whole


@dataclass(frozen=True, kw_only=True)
class Work:
    """The arithmetic and the memory traffic of one run, counted from shapes.

    A multiplication with the addition after it counts as two operations.

    Attributes:
        float_operations: Operations in floating point.
        int8_operations: Operations of quantised products: eight-bit factors, 32-bit sums.
        weight_bytes: The weights that a run reads, each once; of a table that is indexed, the rows
            that are read.
        boundary_bytes: The model's inputs and outputs.
        traffic_bytes: What all nodes read and write, if nothing is fused and nothing stays in a
            cache.
        by_operator: Operations of each operator type, the most first.
        nodes: Nodes that were counted, those of subgraphs included.
        unknown: Nodes among them whose shapes nobody knows; they count as no work.
    """

    float_operations: Whole
    int8_operations: Whole
    weight_bytes: Whole
    boundary_bytes: Whole
    traffic_bytes: Whole
    by_operator: Mapping[str, Whole]
    nodes: Whole
    unknown: Whole

    @property
    def operations(self) -> int:
        """All operations, whatever their type."""
        return self.float_operations + self.int8_operations

    @property
    def least_bytes(self) -> int:
        """The bytes that a run must move at least: weights, inputs and outputs, each once."""
        return self.weight_bytes + self.boundary_bytes

    @property
    def is_complete(self) -> bool:
        """Whether every node was counted."""
        return self.unknown == 0
