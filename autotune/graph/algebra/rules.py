"""All rules in the order in which they are applied."""

from autotune.graph.algebra import (
    activations,
    affine,
    arithmetic,
    attention,
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

WITH_ATTENTION: tuple[Rule, ...] = (*RULES, *attention.RULES)
"""The rules of the pre-pass that also makes one operator of attention.

They are applied when :data:`RULES` are done, because behind that operator no shape is known.
"""
