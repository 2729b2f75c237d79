"""int8 by NNCF: what it is asked for, and what is refused; NNCF itself runs in an environment."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import onnx
import pytest
from small_models import write
from small_spaces import resolved

from autotune.graph import nncf_static
from autotune.graph.entries import StepRefusedError, not_installed
from autotune.graph.parameters import steps_of


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Puts a module in the place of NNCF that quantises nothing; returns what it was asked for."""
    calls: list[dict[str, Any]] = []

    def quantize(model: onnx.ModelProto, dataset: Any, **options: Any) -> onnx.ModelProto:
        calls.append({"samples": dataset, **options})
        return model

    module: Any = ModuleType("nncf")
    module.quantize = quantize
    module.Dataset = list
    module.ModelType = SimpleNamespace(TRANSFORMER="transformer")
    monkeypatch.setitem(sys.modules, "nncf", module)
    return calls


@pytest.mark.parametrize(("name", "kind"), [("cnn", None), ("transformer", "transformer")])
def test_the_kind_of_the_model_is_told(
    asked: list[dict[str, Any]], tmp_path: Path, name: str, kind: str | None
) -> None:
    source, feeds = write(name, tmp_path)
    with pytest.raises(StepRefusedError, match="quantises none"):
        nncf_static.quantise(source, tmp_path / "int8.onnx", feeds)
    (call,) = asked
    assert len(call["samples"]) == call["subset_size"] == len(feeds)
    assert call["model_type"] == kind
    assert not (tmp_path / "int8.onnx").exists()


def test_it_is_left_out_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not_installed("nncf").endswith("the extra [nncf] brings it")
    operators = {"Conv": 5, "MatMul": 2}
    monkeypatch.setitem(sys.modules, "nncf", None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("autotune.space.needs.is_installed", lambda name: name != "nncf")
        space = resolved(operators=operators, quantisable=operators)
    assert "[nncf]" in space.left_out["precision=int8_nncf"]
    assert [step.name for step in steps_of({"precision": "int8_nncf"})] == ["int8_nncf"]
