"""What each change of an emitted config brings, in words."""

from dataclasses import replace
from io import StringIO

from made_results import ablation, member, part, result, step
from rich.console import Console

from autotune.deploy.options import Value
from autotune.report.why import render_why
from autotune.results.parts import ANSWERS, RUNNING
from autotune.results.result import StudyResult

_INT8: dict[str, Value] = {"precision": "int8_dynamic", "kept_in_float": 16}
_OUTSIDE: dict[str, Value] = {"storage": "external_data"}
_THREADS: dict[str, Value] = {"intra_op_num_threads": 2}


def _why(study: StudyResult) -> list[str]:
    text = StringIO()
    Console(file=text, width=160).print(render_why(study))
    return text.getvalue().splitlines()


_ABLATION = ablation(
    2,
    [step(_INT8, 1.15, 0.41), step(_OUTSIDE, 1.0, 0.86)],
    [
        part(_INT8, ["latency_ms", "peak_memory_mib"], 1.15, 0.41),
        part({"kept_in_float": 16}, [ANSWERS]),
        part(_OUTSIDE, ["peak_memory_mib"], 1.0, 0.86),
        part(_THREADS),
    ],
)
_STUDY = result(member(2, {**_INT8, **_OUTSIDE}, 1.15, 35.0), picked=2, ablation=_ABLATION)


def test_steps_and_what_was_dropped() -> None:
    """A line for each step, all together, and what had no effect."""
    assert _why(_STUDY)[2:6] == [
        "int8 dynamic, 16 nodes kept in float: 1.15× (1.14–1.16), 0.41 of the memory",
        "external data: 0.86 of the memory",
        "together: 1.15× (1.14–1.16), 0.35 of the memory",
        "2 threads: no effect, dropped",
    ]


def test_each_change_put_back_alone() -> None:
    """Its numbers beside the winner, and what it is needed for."""
    lines = _why(_STUDY)
    assert (
        "  16 nodes kept in float: 1.00× (0.99–1.01), 1.00 of the memory; needed for answers"
        in lines
    )
    assert "  2 threads: 1.00× (0.99–1.01), 1.00 of the memory; dropped" in lines


def test_a_change_without_numbers_has_a_reason() -> None:
    """Without it the config fails, or it was left in doubt, or the user fixed it."""
    failing = replace(part(_THREADS, [RUNNING]), speedup=None, memory=None, failure="no memory")
    doubtful = part(_OUTSIDE, kept=True)
    fixed: dict[str, Value] = {"arena": "off"}
    study = replace(
        _STUDY,
        ablation=ablation(2, [step(_THREADS), step(_OUTSIDE), step(fixed)], [failing, doubtful]),
    )
    text = "\n".join(_why(study))
    assert "2 threads: without it the config fails (no memory)" in text
    assert "external data: needed beside the others" in text
    assert "no arena: chosen by you" in text


def test_why_the_default_stays() -> None:
    """The same sentences as at the end of a study."""
    study = result(member(4, _OUTSIDE, 0.93, 74.0))
    assert _why(study)[0] == "net.onnx: why the default stays."
    assert "Less memory with the same answers: trial 4" in _why(study)[1]


def test_a_result_without_an_ablation_says_why() -> None:
    """An earlier version wrote it, it was cut short, or another member was picked."""
    other = member(3, _THREADS, 1.1)
    assert "an earlier version" in _why(replace(_STUDY, ablation=None))[0]
    cut_short = replace(_STUDY, ablation=None, complete=False)
    assert "no final comparison" in _why(cut_short)[0]
    unfinished = replace(_ABLATION, complete=False)
    assert "was cut short before" in _why(replace(_STUDY, ablation=unfinished))[0]
    picked = replace(_STUDY, members=(*_STUDY.members, other), picked=3)
    assert "`autotune pick net.autotune --trial 2` takes it again" in _why(picked)[0]
