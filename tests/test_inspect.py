"""The inspection of a model, and what the command prints of it."""

import json
from dataclasses import replace
from pathlib import Path

import brief_studies
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from small_inspections import PEAKS, PROFILE, REPORT
from small_models import write
from small_spaces import machine, model
from typer.testing import CliRunner
from views import words_of

from autotune.cli.app import app
from autotune.deploy.config import Interval
from autotune.inspection.findings import HIGH, LOW, Finding, RemedyEffect
from autotune.inspection.headroom import headroom
from autotune.inspection.inspect import Inspection, inspect_model
from autotune.report.inspection import view_inspection

EFFECT = RemedyEffect(
    remedy="no arena",
    latency=Interval(value=1.02, low=0.98, high=1.05),
    memory=0.5,
    default_memory_mib=500,
    held_mib=10,
    default_held_mib=490,
    error=0.0,
    default_error=0.0,
)
FINDING = Finding(
    name="arena",
    severity=HIGH,
    summary="The arena holds memory.",
    evidence="It holds 490 MiB.",
    advice="--fix arena=off",
    effect=EFFECT,
)


def made_inspection(*findings: Finding) -> Inspection:
    work = replace(REPORT.work, float_operations=2_000_000, by_operator={"Conv": 2_000_000})
    return Inspection(
        model=model(operators={"Conv": 3, "Constant": 9}),
        machine=machine(cores=2),
        workload=("input 'x': float32 [1, 4], standard normal",),
        report=replace(REPORT, work=work),
        findings=findings,
        clear=("an old opset",),
        unknown=(),
        unmeasured=(),
        profile=PROFILE,
        peaks=PEAKS,
        headroom=headroom(work, PEAKS, 4.0),
        memory_mib=500.0,
    )


def _text(inspection: Inspection) -> str:
    return words_of(view_inspection(inspection))


def test_what_could_not_be_read_is_called_unknown() -> None:
    inspection = replace(made_inspection(), unknown=("subnormal weights", "layout reorders"))
    assert (
        "Not known, because the optimised graph could not be read: subnormal weights, layout "
        "reorders. Not found: an old opset."
    ) in _text(inspection)


def test_findings_come_first_with_evidence_effect_and_remedy() -> None:
    text = _text(made_inspection(FINDING, replace(FINDING, severity=LOW, effect=None)))
    assert text.startswith("m.onnx: 2 findings, the most important first. high The arena holds")
    assert (
        "Measured with no arena: 1.02 times the latency (0.98–1.05), 0.50 times the peak memory "
        "(500 MiB), and 10 MiB held between runs instead of 490 MiB."
    ) in text
    assert "--fix arena=off" in text
    assert "50 % of the peak is reached" in text
    assert "Work of a run: 2 million operations in products (100 % Conv)." in text
    assert "3 nodes (3 Conv)" in text
    assert "Inputs: x float32 [batch, 4]. Outputs: y." in text
    assert "Samples: input 'x': float32 [1, 4], standard normal." in text
    assert "Not found: an old opset." in text


def test_remedy_that_gains_nothing_is_not_recommended() -> None:
    text = _text(made_inspection(replace(FINDING, severity=LOW)))
    assert "The remedy does not help this model here." in text
    assert "--fix arena=off" not in text


def test_no_findings_are_said_in_one_line() -> None:
    assert _text(made_inspection()).startswith("m.onnx: nothing was found that holds it back here.")


def _subnormal(folder: Path) -> Path:
    path, _ = write("lstm", folder)
    made = onnx.load(path)
    weight = next(item for item in made.graph.initializer if len(item.dims) == 3)
    array = numpy_helper.to_array(weight).copy()
    array[..., ::2] = 1e-40
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    onnx.save(made, path)
    return path


def test_quick_reads_and_measures_nothing(tmp_path: Path) -> None:
    """Subnormal weights are found by reading; what needs a run is named as open."""
    inspection = inspect_model(_subnormal(tmp_path), quick=True)
    assert [finding.name for finding in inspection.findings] == ["subnormal weights"]
    assert inspection.profile is None
    assert inspection.headroom is None
    assert inspection.findings[0].effect is None
    assert "memory growth over shapes" in inspection.unmeasured
    assert "an old opset" in inspection.clear


@pytest.mark.process
@pytest.mark.slow
def test_each_suspicion_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief_studies.measure_briefly(monkeypatch.setattr)
    steps: list[tuple[int, int]] = []
    inspection = inspect_model(
        _subnormal(tmp_path), on_step=lambda done, total: steps.append((done, total))
    )
    assert inspection.failure == ""
    finding = next(f for f in inspection.findings if f.name == "subnormal weights")
    assert finding.effect is not None
    assert finding.effect.latency.low <= finding.effect.latency.high
    assert inspection.profile is not None
    assert inspection.headroom is not None
    assert inspection.headroom.latency_ms > 0
    assert inspection.unmeasured == ()
    assert steps[-1][0] == steps[-1][1]


def test_model_that_does_not_run_is_read_all_the_same(tmp_path: Path) -> None:
    """The reason is in the result; the findings are those of reading."""
    path, _ = write("lstm", tmp_path)
    made = onnx.load(path)
    name = made.graph.input[0].name
    made.graph.initializer.append(numpy_helper.from_array(np.array([7, 7], np.int64), "wrong"))
    made.graph.node.insert(0, helper.make_node("Reshape", [name, "wrong"], ["reshaped"]))
    made.graph.output.append(helper.make_tensor_value_info("reshaped", 1, [7, 7]))
    onnx.save(made, path)
    inspection = inspect_model(path)
    assert "runs on no inputs that autotune can make up" in inspection.failure
    assert inspection.report.opset == 17


def test_command_prints_text_and_json(tmp_path: Path) -> None:
    path = _subnormal(tmp_path)
    text = CliRunner().invoke(app, ["inspect", str(path), "--quick"])
    assert text.exit_code == 0
    assert text.stdout.startswith("lstm.onnx: 1 finding.")
    done = CliRunner().invoke(app, ["inspect", str(path), "--quick", "--json"])
    document = json.loads(done.stdout)
    assert document["findings"][0]["name"] == "subnormal weights"
    assert document["report"]["work"]["float_operations"] > 0
