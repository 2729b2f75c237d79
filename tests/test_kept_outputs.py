"""Outputs that nobody asked for: removed from the file, and not compared."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import brief_studies
import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, onnx_model, save_onnx

from autotune.cli.app import run
from autotune.deploy.config import TunedConfig
from autotune.errors import RequestError
from autotune.facts.workload import Workload
from autotune.graph.entries import StepRefusedError
from autotune.graph.kept_outputs import keep
from autotune.graph.parameters import shared_passes, steps_of
from autotune.measure.flatten import flatten, output_of
from autotune.study.options import StudyOptions

_BRANCH = "inner () => (float[2] h) { h = Add(a, w) }"


def _model(path: Path) -> Path:
    """A model with two outputs; the first one takes `a` and `w` from inside a branch alone."""
    model = onnx_model(
        "a = Relu(x) b = MatMul(x, big) c = Softmax(b) "
        f"y = If <then_branch = {_BRANCH}, else_branch = {_BRANCH}> (flag)",
        {"w": normal(0, 2), "big": normal(1, 2, 5000), "flag": np.array(True)},
        x="float[2] x",
        y="float[2] y, float[5000] c",
    )
    onnx.save(model, path)
    return path


def test_what_served_the_other_outputs_goes(tmp_path: Path) -> None:
    source = _model(tmp_path / "two.onnx")
    keep(source, tmp_path / "y.onnx", outputs="y")
    graph = onnx.load(tmp_path / "y.onnx").graph
    assert [node.op_type for node in graph.node] == ["Relu", "If"]
    assert sorted(item.name for item in graph.initializer) == ["flag", "w"]
    feed = {"x": normal(2, 2)}
    kept = onnxruntime.InferenceSession(tmp_path / "y.onnx").run(None, feed)
    np.testing.assert_array_equal(kept, onnxruntime.InferenceSession(source).run(["y"], feed))
    with pytest.raises(StepRefusedError, match="not all of the outputs y, z"):
        keep(source, tmp_path / "z.onnx", outputs="y,z")


def test_it_is_the_first_step_and_shared_by_all_that_follow() -> None:
    steps = steps_of({"outputs": "y", "pre_pass": "algebra", "precision": "int8_dynamic"})
    assert [step.name for step in steps] == ["outputs", "algebra", "int8_dynamic"]
    assert shared_passes(steps) == (steps[:2], steps[2:])


def test_parts_of_an_output_have_its_name() -> None:
    values = [[[np.ones(1)], [np.ones(2)]], {1: 0.5}, np.ones(1), np.ones(1)]
    flat = flatten(["y", "m", "z[0]", "z"], values)
    assert {output_of(name) for name in flat} == {"y", "m", "z[0]", "z"}
    assert [output_of(name) for name in flat if name.startswith("y")] == ["y"] * (len(flat) - 4)


def test_unknown_outputs_are_refused() -> None:
    model: Any = SimpleNamespace(path=Path("m.onnx"), outputs=("logits", "attentions"))
    workload = Workload(feeds=({"x": normal(0, 2)},), source="generated", notes=())

    def asked(*names: str, **changes: Any) -> Workload:
        options = StudyOptions.of("m.onnx", outputs=[",".join(names)], **changes)
        return options.asked_of(model, workload)

    with pytest.raises(RequestError, match=r"no output 'logit'\. Did you mean 'logits'\? It has"):
        asked("logit")
    with pytest.raises(RequestError, match="name the outputs with --outputs logits"):
        asked("attentions", fix={"outputs": "logits"})
    assert asked("logits").outputs == ("logits",)
    assert asked("logits").signature() != workload.signature()
    assert asked("attentions", "logits") == workload  # all of them


@pytest.mark.stress
def test_a_study_of_one_output_and_the_commands_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    brief_studies.measure_briefly(monkeypatch.setattr)
    body = "a = MatMul(x, w) y = Relu(a) b = MatMul(x, big) c = Softmax(b)"
    constants = {"w": normal(0, 64, 8), "big": normal(1, 64, 40_000)}
    save_onnx(Path("two.onnx"), body, constants, x="float[1,64] x", y="float[1,8] y, float[?] c")
    study = ["study", "two.onnx", "--outputs", "y", "--trials", "2", "--prefer", "memory"]
    for arguments in (study, ["compare", "two.autotune/best.json"]):
        assert run([*arguments, "--json"]).code == 0
        json.loads(capsys.readouterr().out)
    config = TunedConfig.read(Path("two.autotune/best.json"))
    assert config.configuration == {"outputs": "y"}
    session = onnxruntime.InferenceSession(next(Path("two.autotune").glob("best-*.onnx")))
    assert [item.name for item in session.get_outputs()] == ["y"]
