"""The first configurations of a study: the settings that experts of ONNX Runtime try first."""

from collections.abc import Mapping

from autotune.deploy.options import Value
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space

# The settings that experts of ONNX Runtime try first, each as changes from the default. A value
# that a space does not offer falls back to the default. The list is short, and each entry changes
# several values that hardly ever harm: with one change each, and thirty of them, the search knew
# less after forty trials (`benchmarks/dev/search.py`), because most of them do nothing.
_OUTSIDE: Mapping[str, Value] = {"weight_storage": "external_data"}


_STATIC: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}
# Where eight bits saturate, seven are hardly slower, and the error of transformers falls to between
# two thirds and a sixth. Unsigned weights, which never saturate, took 1.2 times as long on AVX2.
_SEVEN_BITS: Mapping[str, Value] = {"reduce_range": True}


_WELL_KNOWN: tuple[Mapping[str, Value], ...] = (
    {"pre_pass": "algebra", **_OUTSIDE},
    {**_STATIC, "pre_pass": "algebra", **_OUTSIDE},
    {**_STATIC, "pre_pass": "algebra", "slow_in_float": True, **_OUTSIDE},
    # of eight models six met a limit of 0.1 with one of these, and two without
    {**_STATIC, "pre_pass": "algebra", "slow_in_float": True, "error_left": 25, **_OUTSIDE},
    {**_STATIC, "pre_pass": "algebra", "slow_in_float": True, "error_left": 12, **_OUTSIDE},
    {"pre_pass": "onnxscript", **_OUTSIDE},
    {**_STATIC, **_SEVEN_BITS, "quantized_operators": "products", "float_outputs": True},
    {"precision": "int8_nncf", **_OUTSIDE},
    {"precision": "int8_dynamic", "per_channel": True, **_SEVEN_BITS, **_OUTSIDE},
    {"intra_op_num_threads": 1},
    {"pre_pass": "ort_transformers", **_OUTSIDE},
    {"precision": "int8_weight_only", **_OUTSIDE},
    {"precision": "fp16_mixed", **_OUTSIDE},
)


def portfolio(space: Space) -> list[Configuration]:
    """Returns the first configurations of a study: the default, then the well-known settings."""
    configurations = (space.nearest(values) for values in ({}, *_WELL_KNOWN))
    return list(dict.fromkeys((BASELINE, *configurations)))
