"""The work of a run: a record that the child that counts and its parent both import."""

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.deploy.records import Whole


@dataclass(frozen=True, kw_only=True)
class Work:
    """The products and the memory traffic of one run, counted from shapes.

    A multiplication with the addition after it counts as two operations. What other nodes compute
    is left out: in most models convolutions, matrix products and recurrent layers are nearly all.

    Attributes:
        int8_operations: Operations of quantised products: eight-bit factors, 32-bit sums.
        weight_bytes: The weights that a run reads, each once; of a table that is indexed, the rows
            that are read.
        by_operator: Operations of each operator type, the most first.
        unknown: Products that are not counted, because their shapes are not known.
    """

    float_operations: Whole
    int8_operations: Whole
    weight_bytes: Whole
    boundary_bytes: Whole
    by_operator: Mapping[str, Whole]
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
        """Whether every product was counted."""
        return self.unknown == 0
