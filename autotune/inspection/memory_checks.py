"""The checks of memory: growth over shapes, the arena, weights inside the file."""

from autotune.deploy.session import SessionConfig
from autotune.inspection.findings import (
    HIGH,
    LOW,
    MEDIUM,
    Check,
    Finding,
    InspectedModel,
    by_held_memory,
)
from autotune.inspection.growth import Growth

# Below this nobody cares, and the allocator's luck is as large.
_LEAST_MIB = 16.0
_LEAST_SHARE = 0.15

DEFAULT = "the default"
NO_PATTERN = "no memory pattern"
NO_ARENA = "no arena"

GROWTH_SESSIONS = {
    DEFAULT: SessionConfig(),
    NO_PATTERN: SessionConfig(options={"enable_mem_pattern": False}),
    NO_ARENA: SessionConfig(options={"enable_cpu_mem_arena": False}),
}
"""The sessions whose memory is measured over several shapes, in words."""

_FIXES = {NO_PATTERN: "enable_mem_pattern=false", NO_ARENA: "arena=off"}


def _growth(inspected: InspectedModel) -> Finding | None:
    default = inspected.growth.get(DEFAULT)
    others = {name: growth for name, growth in inspected.growth.items() if name != DEFAULT}
    if default is None or not others:
        return None
    best = min(others, key=lambda name: others[name].again_mib)
    saved_mib = default.again_mib - others[best].again_mib
    if saved_mib < max(_LEAST_MIB, _LEAST_SHARE * default.again_mib):
        return None
    return Finding(
        name="memory growth",
        severity=HIGH if saved_mib > 0.5 * default.again_mib else MEDIUM,
        says="Memory grows with each new shape of the inputs, and a session does not give it back.",
        evidence=f"{_over_shapes(default)} With {best} it holds {_mib(others[best].again_mib)} at "
        f"the end, at a peak of {_mib(others[best].peak_mib)} instead of {_mib(default.peak_mib)}.",
        remedy="With inputs of all your shapes in inputs.npz: "
        + inspected.study(
            "--data inputs.npz --space memory --prefer memory", f"--fix {_FIXES[best]}"
        ),
    )


def _over_shapes(growth: Growth) -> str:
    return (
        f"A session holds {_mib(growth.held_mib[0])} after the first of {len(growth.shapes)} "
        f"shapes ({growth.shapes[0]}) and {_mib(growth.again_mib)} after all of them."
    )


def _arena(inspected: InspectedModel) -> Finding | None:
    profile = inspected.profile
    if profile is None or profile.arena_mib is None:
        return None
    assert profile.weights_mib is not None
    assert profile.activations_mib is not None
    needed_mib = profile.weights_mib + profile.activations_mib
    spare_mib = profile.arena_mib - needed_mib
    if spare_mib + profile.activations_mib < max(_LEAST_MIB, _LEAST_SHARE * profile.arena_mib):
        return None
    return Finding(
        name="arena",
        severity=LOW,
        says="ONNX Runtime's arena holds memory between runs that no run gives back.",
        evidence=f"It has reserved {_mib(profile.arena_mib)}: weights {_mib(profile.weights_mib)}, "
        f"activations {_mib(profile.activations_mib)} at their peak, {_mib(spare_mib)} spare.",
        remedy=inspected.study("--space memory --prefer memory"),
        try_out={"arena": "off"},
    )


def _inline_weights(inspected: InspectedModel) -> Finding | None:
    inline_mib = inspected.reading.inline_bytes / 2**20
    if inline_mib < _LEAST_MIB / 2:
        return None
    return Finding(
        name="inline weights",
        severity=MEDIUM,
        says="The weights are inside the model's file, so a session copies them; weights in a file "
        "beside it are mapped.",
        evidence=f"{inline_mib:.1f} MiB of weights are inside the file.",
        remedy="A study tries to store them outside, with the same answers; in all its trials: "
        + inspected.study("--fix storage=external_data"),
        try_out={"storage": "external_data"},
    )


def _mib(mib: float) -> str:
    return f"{mib:.0f} MiB" if mib >= 10 else f"{mib:.1f} MiB"


GROWTH = Check(
    name="memory growth",
    about="memory growth over shapes",
    find=_growth,
    measured=True,
)
ARENA = Check(
    name="arena",
    about="memory held by the arena",
    find=_arena,
    rate=by_held_memory,
    measured=True,
)
INLINE_WEIGHTS = Check(name="inline weights", about="weights inside the file", find=_inline_weights)
