"""All rules in the order in which they are applied."""

from autotune.graph.algebra import (
    activations,
    affine,
    arithmetic,
    normalisation,
    shared_heads,
    structure,
)
from autotune.graph.algebra.rule import Rule

RULES: tuple[Rule, ...] = (
    *structure.RULES,
    *shared_heads.RULES,
    *activations.RULES,
    *normalisation.RULES,
    *affine.RULES,
    *arithmetic.RULES,
)
"""The rules: what a rule puts together, the later ones take as one node."""
