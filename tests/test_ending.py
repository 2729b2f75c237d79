"""The end of a study on one screen."""

from dataclasses import replace
from io import StringIO

from made_results import ablation, member, part, result, step
from rich.console import Console

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.report.ending import render_ending
from autotune.results.result import Kind, StudyResult

_INT8: dict[str, Value] = {"precision": "int8_static", "per_channel": True, "kept_in_float": 2}
_OUTSIDE: dict[str, Value] = {"storage": "external_data"}
_NEEDLESS: dict[str, Value] = {
    "intra_op_num_threads": 2,
    "enable_mem_pattern": False,
    "arena": "off",
}


def _screen(study: StudyResult, width: int = 80) -> list[str]:
    """Returns the lines of a terminal of 80 columns."""
    text = StringIO()
    Console(file=text, width=width).print(render_ending(study))
    return text.getvalue().splitlines()


def _usual() -> StudyResult:
    """Returns a study of 100 trials with a front of seven, long descriptions and all remarks."""
    winner = {**_INT8, **_OUTSIDE}
    others = [
        member(10 + i, {**winner, **_NEEDLESS, "nchwc": "off"}, 1.7 - i / 20, 50 - i, 0.02)
        for i in range(6)
    ]
    needless = [part({name: value}) for name, value in _NEEDLESS.items()]
    kept = [part(_INT8, ["latency_ms"]), part(_OUTSIDE, ["peak_memory_mib"])]
    return result(
        member(2, winner, 1.8, 40.0, 0.01),
        *others,
        picked=2,
        trials=100,
        never_quiet=3,
        left_out=dict.fromkeys(map(str, range(9)), "a reason"),
        kinds=(
            Kind(
                answers="beyond",
                trial=33,
                words="int8 static",
                speedup=2.3,
                confirmed=True,
                peak_memory_mib=30.0,
                error=0.09,
            ),
        ),
        ablation=ablation(2, [step(_INT8, 1.8, 0.5), step(_OUTSIDE, 1.0, 0.8)], [*kept, *needless]),
    )


def test_the_end_of_a_usual_study_fits_one_screen() -> None:
    """With the line that loads the config and the prompt it has at most 24 lines of 80 columns."""
    lines = _screen(_usual())
    assert len(lines) + 2 <= 24
    assert max(map(len, lines)) <= 80


def test_the_answer_comes_first_and_the_front_after_it() -> None:
    """The chosen config is marked; a row takes one line, however many changes it has."""
    lines = _screen(_usual())
    assert lines[0].startswith("net.onnx: 1.80× faster than the default (1.78–1.82), with 60 %")
    (chosen,) = (line for line in lines if line.startswith("→"))
    assert chosen.split()[1] == "2"
    assert sum("int8 st" in line and "(" in line for line in lines[2:8]) == 4
    assert lines[8] == ""


def test_what_each_change_brings_is_shown() -> None:
    """A line for each step with what it does, and one for all that was dropped."""
    lines = _screen(_usual())
    place = lines.index("What each change brings, from the default on:")
    first, second, third = lines[place + 1 : place + 4]
    assert first.startswith("  int8 static, per channel, ")
    assert first.endswith("1.80× (1.78–1.82), 0.50 of the memory")
    assert second.split() == "external data 0.80 of the memory".split()
    assert third.split() == "2 threads, no memory pattern, no arena no effect, dropped".split()


def test_a_looser_limit_is_named_by_numbers_of_the_run_off_alone() -> None:
    """Without them there is no such line."""
    study = _usual()
    line = "A looser error limit would allow 2.30×: trial 33, error 0.09."
    assert line in _screen(study)
    (kind,) = study.kinds
    lucky = result(study.best, picked=2, kinds=(Kind(**{**vars(kind), "confirmed": False}),))
    assert not any("looser" in line for line in _screen(lucky))


def test_what_was_not_tried_is_one_line() -> None:
    """`autotune show` has the reasons."""
    lines = _screen(_usual())
    assert "Not tried: 9 parameters and values without a use here." in lines
    assert "All of the result: autotune show net.autotune; the changes: add --why" in lines


def test_wide_brackets_are_explained() -> None:
    """A speed-up between a twelfth and twelve times is hardly known, and the screen says why."""
    known, unknown = member(4, _OUTSIDE, 0.99), member(4, _OUTSIDE, 0.99)
    evidence = replace(unknown.evidence, speedup=Interval(value=0.99, low=0.08, high=11.61))
    unknown = replace(unknown, evidence=evidence)
    line = "Some brackets are wide: too few quiet runs. More trials narrow them."
    assert line in _screen(result(unknown))
    assert line not in _screen(result(known))
    assert line not in _screen(result(unknown, complete=False))


def test_the_default_that_stays_explains_itself() -> None:
    """What came nearest, what would save memory with the same answers, and where to look next."""
    lean = member(4, _OUTSIDE, 0.93, 74.0, 1e-7)
    near = member(7, {"intra_op_num_threads": 2}, 1.01, 99.0)
    wrong = member(8, _INT8, 3.0, 20.0, 0.2, admitted=False)
    text = " ".join(" ".join(_screen(result(lean, others=(near, wrong)), width=160)).split())
    assert "the default stays, because no other configuration beats it by more than" in text
    assert "Nearest in latency: trial 7, 1.01× (1.00–1.02), 0.99 of the memory: 2 threads." in text
    assert "Less memory with the same answers: trial 4, 0.93× (0.92–0.94), 0.74 of the" in text
    assert "`autotune pick net.autotune --trial 4` takes it." in text
    assert "autotune inspect net.onnx" in text
    assert "trial 8" not in text


def test_what_costs_no_time_is_named_before_what_saves_more() -> None:
    """Less memory at half of the speed is nothing that most users want."""
    slow = member(4, {**_OUTSIDE, "nchwc": "off"}, 0.5, 60.0, 1e-7)
    lean = member(5, _OUTSIDE, 0.98, 74.0, 1e-7)
    text = "\n".join(_screen(result(slow, lean)))
    assert "Less memory with the same answers: trial 5" in text


def test_a_study_without_rivals_is_shown() -> None:
    """Nothing but the default ran and kept the limits."""
    text = " ".join(" ".join(_screen(result())).split())
    assert "No other configuration ran in the final comparison" in text


def test_a_study_that_was_cut_short_says_so() -> None:
    """Its numbers are those of the search, and no change was put back."""
    study = result(member(2, _OUTSIDE, 1.5), picked=2, complete=False)
    lines = _screen(study)
    assert "There was no final comparison: these are the numbers of the search." in lines
    assert not any("What each change" in line for line in lines)
