"""A model that takes nothing can be studied like any other."""

from pathlib import Path

import brief_studies
import numpy as np
import pytest
from factories import save_onnx

import autotune
from autotune.facts.inputs import workload_for
from autotune.results.compare import compare
from autotune.results.subjects import lineup_of

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {"w": np.eye(64, dtype=np.float32)}
    return save_onnx(tmp_path / "m.onnx", "y = MatMul (w, w)", weights, x="", y="float[64,64] y")


def test_a_model_without_inputs_is_studied_loaded_and_compared(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief_studies.measure_briefly(monkeypatch.setattr)
    # nothing is that fast, so that the final comparison measures the default alone
    result = autotune.tune(
        model, trials=2, space="session", max_latency_ms=1e-6, out=tmp_path / "out"
    )
    assert result.trials == 2
    assert result.failed == {}
    (answer,) = autotune.load(tmp_path / "out" / "best.json").run(None, {})
    np.testing.assert_array_equal(answer, np.eye(64, dtype=np.float32))
    lineup = lineup_of([tmp_path / "out" / "best.json"], model, None)
    comparison = compare(lineup, workload_for(lineup.model, None, {}), on_step=lambda *_: None)
    assert comparison.configs[0].numbers.error == 0
