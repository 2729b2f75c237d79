"""Each check finds what it looks for, and nothing in a plain model."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from small_inspections import GRAPH, PROFILE, REPORT
from small_spaces import machine, model

from autotune.cli.app import app
from autotune.deploy.config import Interval
from autotune.facts.generated import generate
from autotune.inspection.checks import CHECKS
from autotune.inspection.findings import (
    HIGH,
    LOW,
    MEDIUM,
    Finding,
    InspectedModel,
    RemedyEffect,
    by_answers,
    by_gain,
    by_held_memory,
)
from autotune.inspection.growth import DEFAULT, Growth
from autotune.inspection.model_report import Saturation, SubnormalWeight, WeightGroup
from autotune.inspection.profile import CASTS, REORDERS, Profile, TimeShare
from autotune.space.configuration import Configuration
from autotune.space.parameters import PARAMETERS, parse_value


def _inspected(**changes: Any) -> InspectedModel:
    """Returns a model without a fault, but for these changes of its inspected."""
    described = model(branches=1)
    plain = InspectedModel(
        model=described,
        report=REPORT,
        machine=machine(cores=2),
        workload=generate(described, {}),
        profile=PROFILE,
    )
    return replace(plain, **changes)


def _report(**changes: Any) -> InspectedModel:
    return _inspected(report=replace(REPORT, **changes))


def _graph(**changes: Any) -> InspectedModel:
    return _report(optimised=replace(GRAPH, **changes))


def _profile(**changes: Any) -> Profile:
    return replace(PROFILE, **changes)


def _overhead(name: str, share: float) -> tuple[TimeShare, ...]:
    return (TimeShare(name=name, operator="", nodes=3, time_ms=share, share=share),)


def _findings(inspected: InspectedModel) -> dict[str, Finding]:
    findings = (check.find(inspected) for check in CHECKS)
    return {finding.name: finding for finding in findings if finding is not None}


def _only(inspected: InspectedModel) -> Finding:
    """Returns the one finding; its name is that of a check, and its remedy is a configuration."""
    findings = _findings(inspected)
    assert len(findings) == 1, findings
    finding = next(iter(findings.values()))
    assert finding.name in {check.name for check in CHECKS}
    assert Configuration.of(finding.remedy).to_json() == dict(finding.remedy)
    _assert_commands(finding.advice)
    return finding


def _assert_commands(remedy: str) -> None:
    """Parses each study that a remedy names, and the values that it fixes."""
    program: Any = typer.main.get_command(app)
    for command in re.findall(r"autotune (study .*)$", remedy):
        name, *arguments = shlex.split(command)
        with program.commands[name].make_context(name, arguments) as context:
            for parameter, text in context.params["fix"]:
                assert PARAMETERS[parameter].problem(parse_value(parameter, text)) is None


def test_nothing_is_found_in_a_plain_model() -> None:
    """Two cores, fp32, a new opset, few weights."""
    assert _findings(_inspected()) == {}


_WORST = SubnormalWeight(name="conv.weight", subnormals=90, elements=100)
_REORDERED = replace(REPORT, optimised=replace(GRAPH, operators={"Conv": 4, "ReorderInput": 3}))
_THROTTLED = replace(machine(cores=8), usable_cores=2, quota_cores=2.0)


@pytest.mark.parametrize(
    ("inspected", "words", "remedy"),
    [
        (
            _graph(subnormals=90, subnormal_weights=(_WORST,)),
            ("90 of 1,000", "'conv.weight' has 90 of 100"),
            {"session.set_denormal_as_zero": "1"},
        ),
        # reading alone counts the nodes of the optimised graph
        (
            _inspected(report=_REORDERED, profile=None),
            ("Changes of layout: 3",),
            {"optimizer.NchwcTransformer": "off"},
        ),
        (
            _report(weights_as_inputs=7),
            ("7 initializers", "remove_initializer_from_input"),
            {},
        ),
        (
            _graph(unfolded={"GreaterOrEqual": 2, "Where": 1}),
            ("3 such nodes", "2 GreaterOrEqual"),
            None,
        ),
        (_report(opset=11), ("opset 11",), None),
        # what the arena holds beyond weights
        (
            _inspected(profile=_profile(arena_mib=512.0, activations_mib=256.0)),
            ("It has reserved 512 MiB",),
            {"arena": "off"},
        ),
        (_report(inline_bytes=100 << 20), ("100.0 MiB",), {"weight_storage": "external_data"}),
        (
            _inspected(machine=_THROTTLED),
            ("its CPU quota is 2 cores",),
            {"intra_op_num_threads": 2},
        ),
    ],
)
def test_a_check_finds_its_fault(
    inspected: InspectedModel, words: tuple[str, ...], remedy: dict[str, object] | None
) -> None:
    finding = _only(inspected)
    for word in words:
        assert word in f"{finding.evidence} {finding.advice}"
    assert remedy is None or finding.remedy == remedy


def test_reorders_by_their_share_of_the_time() -> None:
    operators = {"Conv": 4, "ReorderInput": 2, "ReorderOutput": 1}
    report = replace(REPORT, optimised=replace(GRAPH, operators=operators))
    many = _profile(overheads=_overhead(REORDERS, 0.1))
    finding = _only(_inspected(report=report, profile=many))
    assert "Changes of layout: 3; convolutions: 4." in finding.evidence
    assert "take 10 % of the run time" in finding.evidence
    few = _profile(overheads=_overhead(REORDERS, 0.01))
    assert _findings(_inspected(report=report, profile=few)) == {}


def test_fp16_weights_on_a_processor_without_kernels() -> None:
    """On x86 they are converted; a processor with half precision has kernels."""
    groups = (WeightGroup(dtype="float16", tensors=1, elements=1000, size_bytes=2000),)
    report = replace(REPORT, weights=groups, optimised=replace(GRAPH, operators={"Cast": 5}))
    profile = _profile(overheads=_overhead(CASTS, 0.2))
    finding = _only(_inspected(report=report, profile=profile))
    assert "5 casts, which take 20 % of the run time" in finding.evidence
    arm = machine(cores=2, features=("asimdhp",), architecture="aarch64")
    assert _findings(_inspected(report=report, machine=arm)) == {}


def test_saturation_without_vnni() -> None:
    saturation = Saturation(products=3, large_share=0.25)
    finding = _only(_report(saturation=saturation))
    assert finding.severity == HIGH
    assert "3 products" in finding.evidence
    vnni = machine(cores=2, features=("avx512_vnni",))
    assert _findings(_inspected(report=replace(REPORT, saturation=saturation), machine=vnni)) == {}


def _growth(first_mib: float, held_mib: float) -> Growth:
    return Growth(shapes=3, first_mib=first_mib, held_mib=held_mib, peak_mib=held_mib)


def test_memory_growth_names_the_better_of_both_remedies() -> None:
    """Without the pattern 90 MiB are saved, without the arena 60."""
    growth = {
        DEFAULT: _growth(20, 100),
        "enable_mem_pattern=false": _growth(10, 10),
        "arena=off": _growth(40, 40),
    }
    finding = _only(_inspected(growth=growth))
    assert finding.severity == HIGH
    assert "20 MiB after the first of 3 shapes and 100 MiB after all of them" in finding.evidence
    assert "--prefer memory --fix enable_mem_pattern=false" in finding.advice


def test_remedies_are_commands_for_the_file() -> None:
    spaced = model(path=Path("my model.onnx"), branches=1)
    finding = _only(_inspected(model=spaced, report=replace(REPORT, inline_bytes=100 << 20)))
    assert finding.advice.endswith(
        "autotune study 'my model.onnx' --fix weight_storage=external_data"
    )


def test_memory_that_hardly_grows_is_no_finding() -> None:
    growth = {DEFAULT: _growth(20, 30), "arena=off": _growth(20, 20)}
    assert _findings(_inspected(growth=growth)) == {}


def test_parallel_branches_need_cores() -> None:
    wide = model(branches=3)
    assert _only(_inspected(model=wide, machine=machine(cores=8))).name == "parallel branches"
    assert _findings(_inspected(model=wide, machine=machine(cores=2))) == {}


def _effect(**changes: Any) -> RemedyEffect:
    plain = RemedyEffect(
        remedy="",
        latency=Interval(value=1.0, low=0.99, high=1.01),
        memory=1.0,
        default_memory_mib=100,
        held_mib=50,
        default_held_mib=50,
        error=0.1,
        default_error=0.1,
    )
    return replace(plain, **changes)


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({}, LOW),
        ({"latency": Interval(value=0.95, low=0.94, high=0.96)}, MEDIUM),
        ({"latency": Interval(value=0.95, low=0.8, high=1.1)}, LOW),
        ({"latency": Interval(value=0.7, low=0.6, high=0.8)}, HIGH),
        ({"memory": 0.9}, MEDIUM),
        ({"memory": 0.5}, HIGH),
    ],
)
def test_severity_by_the_measured_gain(changes: dict[str, Any], severity: str) -> None:
    assert by_gain(_effect(**changes)) == severity


def test_severity_by_memory_held_between_runs() -> None:
    """A hundred MiB that nobody uses are much, whatever the peak."""
    assert by_held_memory(_effect(default_held_mib=150, held_mib=10)) == HIGH
    assert by_held_memory(_effect(default_held_mib=15, held_mib=1)) == LOW


def test_severity_by_right_answers() -> None:
    assert by_answers(_effect(error=0.01)) == HIGH
    assert by_answers(_effect(error=0.09)) == LOW


def test_every_check_has_a_row_in_the_docs() -> None:
    text = (Path(__file__).parent.parent / "docs" / "inspecting.md").read_text(encoding="utf-8")
    assert [check.name for check in CHECKS if f"| {check.name} |" not in text] == []
