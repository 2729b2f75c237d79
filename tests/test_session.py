"""Session parameters: each of their values does to a session what its name says."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given
from small_spaces import VALUES

from autotune.deploy.opening import open_session
from autotune.deploy.options import Value
from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.space.configuration import Configuration
from autotune.space.session import (
    COMPOSITES,
    EXECUTION_PROVIDER,
    SESSIONS,
    session_config,
    session_words,
)


@given(values=VALUES)
def test_any_configuration_opens_a_session_within_the_schema(values: dict[str, Value]) -> None:
    session = session_config(Configuration.of(values).session.to_json(), {"batch": 4})
    assert SessionConfig.from_json(session.to_json()) == session


_SHRINK = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
_GROWS_LITTLE: dict[str, Any] = {
    "entries": {"session.use_env_allocators": "1"},
    "env_allocator": {"arena_extend_strategy": 1},
}


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("optimizer.NchwcTransformer", "off", {"disabled_optimizers": ("NchwcTransformer",)}),
        ("spinning", "stop_after_run", {"entries": {"session.force_spinning_stop": "1"}}),
        ("spinning", "off", {"entries": {"session.intra_op.allow_spinning": "0"}}),
        ("arena", "off", {"options": {"enable_cpu_mem_arena": False}}),
        ("arena", "same_as_requested", _GROWS_LITTLE),
        ("arena_shrinkage", True, {"run_entries": _SHRINK}),
        ("fixed_dimensions", True, {"free_dimensions": {"batch": 4}}),
        ("intra_op_num_threads", 3, {"options": {"intra_op_num_threads": 3}}),
        ("session.disable_prepacking", "1", {"entries": {"session.disable_prepacking": "1"}}),
    ],
)
def test_what_a_value_does(name: str, value: Value, parts: dict[str, Any]) -> None:
    assert session_config({name: value}, {"batch": 4}) == SessionConfig(**parts)


def test_cuda_takes_the_nodes_that_tensorrt_leaves() -> None:
    """On the same device; the CPU gets what neither takes."""
    values: dict[str, Value] = {EXECUTION_PROVIDER: "tensorrt", "tensorrt.device_id": 1}
    providers = session_config({**values, "tensorrt.trt_fp16_enable": "1"}, {}).providers
    assert providers == (
        ("TensorrtExecutionProvider", {"device_id": "1", "trt_fp16_enable": "1"}),
        ("CUDAExecutionProvider", {"device_id": "1"}),
        ("CPUExecutionProvider", {}),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [(n, v) for n, c in COMPOSITES.items() for v in c.domain.choices if v != c.domain.default],
)
def test_every_value_of_a_composite_opens_a_session(
    tmp_path: Path, name: str, value: Value
) -> None:
    assert "=" not in session_words(name, value)
    path = tmp_path / "cnn.onnx"
    onnx.save(sample_models.separable_cnn(), path)
    config = session_config({name: value}, {"batch": 1})
    assert (config != SessionConfig()) == (name != SESSIONS)  # how many, not how they open
    assert name == EXECUTION_PROVIDER or open_session(path, config).get_inputs()
