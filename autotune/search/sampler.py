"""Which candidate next: a portfolio of well-known settings first, then Optuna's sampler."""

from collections.abc import Iterable, Mapping

import optuna

from autotune.options import Value
from autotune.space.candidate import BASELINE, PARAMETERS, Candidate
from autotune.space.space import Space

# What people who know ONNX Runtime try first, each as changes from the default. What a space does
# not offer falls back to the default, and what comes out twice is measured once.
_STATIC: Mapping[str, Value] = {"precision": "int8_static", "per_channel": True}
_WELL_KNOWN: tuple[Mapping[str, Value], ...] = (
    {"storage": "external_data"},
    _STATIC,
    {"intra_op_num_threads": 1},
    {**_STATIC, "storage": "external_data"},
    {**_STATIC, "quantized_operators": "products"},
    {"precision": "int8_dynamic", "per_channel": True},
    {"storage": "external_data", "session.disable_prepacking": "1"},
    {**_STATIC, "kept_in_float": 4},
    {**_STATIC, "calibration": "percentile"},
    {"precision": "int8_weight_only", "storage": "external_data"},
    {"storage": "prepacked"},
    *({"pre_pass": value} for value in PARAMETERS["pre_pass"].choices if value != "none"),
    {"precision": "int8_dynamic", "per_channel": True, "kept_in_float": 4},
    {**_STATIC, "quantized_operators": "conv"},
    {**_STATIC, "quantized_operators": "matmul"},
    {"precision": "int4_weight_only"},
    {"precision": "fp16_mixed"},
    {"spinning": "stop_after_run"},
    {"graph_optimization_level": "ORT_ENABLE_EXTENDED"},
    {"nchwc": "off"},
    {"session.use_device_allocator_for_initializers": "1"},
    {"arena": "off", "enable_mem_pattern": False},
    {"arena": "same_as_requested", "enable_mem_pattern": False},
    {"session.disable_prepacking": "1"},
    {"session.disable_prepacking": "1", "arena": "off", "enable_mem_pattern": False},
    {"fixed_dimensions": True},
    {"execution_mode": "ORT_PARALLEL"},
    {"session.set_denormal_as_zero": "1"},
    {"optimization.enable_gelu_approximation": "1"},
)


def portfolio(space: Space) -> list[Candidate]:
    """Returns the first candidates of a study: the baseline, then the well-known settings."""
    known = (space.nearest(values) for values in ({}, *_WELL_KNOWN))
    return list(dict.fromkeys((BASELINE, *known)))


def make_sampler(seed: int, trials_so_far: int) -> optuna.samplers.BaseSampler:
    """Returns Optuna's sampler for the rest of a study.

    The seed moves on with the trials: with the same one, a study that goes on would repeat the
    random start-up points that it has measured already.
    """
    return optuna.samplers.TPESampler(
        multivariate=True, group=True, seed=seed * 1_000_003 + trials_so_far
    )


def unseen_neighbour(
    space: Space, seen: Mapping[Candidate, object], around: Iterable[Candidate]
) -> Candidate | None:
    """Returns a candidate that was not measured yet, near the given ones if possible.

    None means that the space is exhausted (or too large to tell and well covered around them).
    """
    for centre in around:
        for candidate in space.neighbours(centre):
            if candidate not in seen:
                return candidate
    return next((c for c in space.candidates or () if c not in seen), None)
