"""What is remembered of models that a provider has compiled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.deploy.providers import CPU, PROVIDERS
from autotune.deploy.session import SessionConfig
from autotune.measure.provider_cache import ProviderCache

_MODEL = Path("model.onnx")


def _config(**options: str) -> SessionConfig:
    return SessionConfig(providers=((PROVIDERS["openvino"].name, options), (CPU, {})))


@pytest.fixture
def cache(tmp_path: Path) -> ProviderCache:
    return ProviderCache(tmp_path)


def test_the_first_load_is_remembered(cache: ProviderCache) -> None:
    assert cache.first_load_ms(_MODEL, _config()) is None
    cache.remember(_MODEL, _config(), 250.0)
    assert ProviderCache(cache.folder).first_load_ms(_MODEL, _config()) == 250.0


def test_another_model_or_option_is_compiled_anew(cache: ProviderCache) -> None:
    cache.remember(_MODEL, _config(), 250.0)
    cache.remember(_MODEL, _config(num_streams="2"), 300.0)
    assert cache.first_load_ms(Path("other.onnx"), _config()) is None
    assert cache.first_load_ms(_MODEL, _config(num_streams="4")) is None
    assert cache.first_load_ms(_MODEL, _config(num_streams="2")) == 300.0
    assert cache.first_load_ms(_MODEL, _config()) == 250.0


@pytest.mark.parametrize(
    "other",
    [
        {"free_dimensions": {"batch": 4}},
        {"options": {"graph_optimization_level": "ORT_ENABLE_BASIC"}},
        {"entries": {"session.disable_quant_qdq": "1"}},
        {"disabled_optimizers": ("MatMulAddFusion",)},
    ],
)
def test_another_graph_is_compiled_anew(cache: ProviderCache, other: dict[str, Any]) -> None:
    """Its compilation must not fall into a measurement; threads do not change the graph."""
    cache.remember(_MODEL, _config(), 250.0)
    assert cache.first_load_ms(_MODEL, replace(_config(), **other)) is None
    threads = {"intra_op_num_threads": 2}
    spinning = {"session.intra_op.allow_spinning": "0"}
    same = replace(_config(), options=threads, entries=spinning)
    assert cache.first_load_ms(_MODEL, same) == 250.0


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "fast"}', '{"a": -1}', "\0"])
def test_a_damaged_record_is_none(cache: ProviderCache, text: str) -> None:
    cache.remember(_MODEL, _config(), 250.0)
    (record,) = cache.folder.iterdir()
    record.write_text(text, encoding="utf-8")
    assert cache.first_load_ms(_MODEL, _config()) is None
    cache.remember(_MODEL, _config(), 260.0)
    assert cache.first_load_ms(_MODEL, _config()) == 260.0
