"""What is remembered of models that a provider has compiled."""

from pathlib import Path

import pytest

from autotune.deploy.providers import CPU, PROVIDERS
from autotune.deploy.session import SessionConfig
from autotune.measure.provider_cache import ProviderCache

_MODEL = Path("model.onnx")


def _config(**options: str) -> SessionConfig:
    return SessionConfig(providers=((PROVIDERS["openvino"].name, options), (CPU, {})))


@pytest.fixture
def cache(tmp_path: Path) -> ProviderCache:
    """A cache in which nothing is."""
    return ProviderCache(tmp_path)


def test_the_first_load_is_remembered(cache: ProviderCache) -> None:
    """Another process that opens the same folder finds it."""
    assert cache.first_load_ms(_MODEL, _config()) is None
    cache.remember(_MODEL, _config(), 250.0)
    assert ProviderCache(cache.folder).first_load_ms(_MODEL, _config()) == 250.0


def test_another_model_or_option_is_compiled_anew(cache: ProviderCache) -> None:
    """What is compiled depends on both; session options of ONNX Runtime do not matter."""
    cache.remember(_MODEL, _config(), 250.0)
    cache.remember(_MODEL, _config(num_streams="2"), 300.0)
    assert cache.first_load_ms(Path("other.onnx"), _config()) is None
    assert cache.first_load_ms(_MODEL, _config(num_streams="4")) is None
    assert cache.first_load_ms(_MODEL, _config(num_streams="2")) == 300.0
    assert cache.first_load_ms(_MODEL, _config()) == 250.0


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": "fast"}', '{"a": -1}', "\0"])
def test_a_damaged_record_is_none(cache: ProviderCache, text: str) -> None:
    """The model is compiled once more, and that is remembered."""
    cache.remember(_MODEL, _config(), 250.0)
    (record,) = cache.folder.iterdir()
    record.write_text(text, encoding="utf-8")
    assert cache.first_load_ms(_MODEL, _config()) is None
    cache.remember(_MODEL, _config(), 260.0)
    assert cache.first_load_ms(_MODEL, _config()) == 260.0
