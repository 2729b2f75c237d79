"""What a search begins with, and what it falls back to."""

from collections.abc import Container, Iterable, Mapping

from autotune.deploy.options import Value
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space

# The settings that experts of ONNX Runtime try first, each as changes from the default. A value
# that a space does not offer falls back to the default. The list is short, and each entry changes
# several values that hardly ever harm: with one change each, and thirty of them, the search knew
# less after forty trials (`benchmarks/search.py`), because most of them do nothing.
_OUTSIDE: Mapping[str, Value] = {"storage": "external_data"}


_STATIC: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}
# Where eight bits saturate, seven are hardly slower, and the error of transformers falls to between
# two thirds and a sixth. Unsigned weights, which never saturate, took 1.2 times as long on AVX2.
_SEVEN_BITS: Mapping[str, Value] = {"reduce_range": True}


_WELL_KNOWN: tuple[Mapping[str, Value], ...] = (
    {"pre_pass": "onnxscript", **_OUTSIDE},
    {**_STATIC, **_OUTSIDE},
    {**_STATIC, **_SEVEN_BITS, "quantized_operators": "products", "float_outputs": True},
    {"precision": "int8_dynamic", "per_channel": True, **_SEVEN_BITS, **_OUTSIDE},
    {"intra_op_num_threads": 1},
    {"pre_pass": "ort_transformers", **_OUTSIDE},
    {"precision": "int8_weight_only", **_OUTSIDE},
    {"precision": "fp16_mixed", **_OUTSIDE},
)


def portfolio(space: Space) -> list[Candidate]:
    """Returns the first candidates of a study: the default, then the well-known settings."""
    candidates = (space.nearest(values) for values in ({}, *_WELL_KNOWN))
    return list(dict.fromkeys((BASELINE, *candidates)))


def unseen_neighbour(
    space: Space, taken: Container[Candidate], around: Iterable[Candidate]
) -> Candidate | None:
    """Returns a candidate that was not measured yet, near the given ones if possible.

    None means that the space is exhausted (or too large to tell and well covered around them).
    """
    for centre in around:
        for candidate in space.neighbours(centre):
            if candidate not in taken:
                return candidate
    return next((c for c in space.candidates or () if c not in taken), None)


DEFAULT_SAMPLER = "effects"
"""autotune's own sampler: :class:`autotune.study.sampler.EffectsSampler`."""
