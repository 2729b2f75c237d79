"""What is said of a study's result: its end on one screen, its details, and its changes."""

import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from made_results import member, part, result, simplification
from rich.console import Console
from views import lines_of, words_of

from autotune.deploy.config import Interval, LengthTimes
from autotune.deploy.options import Value
from autotune.report.changes import view_why
from autotune.report.result import headline, view_effects, view_ending, view_result
from autotune.report.terminal import renderable
from autotune.results.leave_one_out import ANSWERS, RUNNING
from autotune.results.result import StudyResult
from autotune.search.effects import Effect

_INT8: dict[str, Value] = {"precision": "int8_static", "per_channel": True, "kept_in_float": 2}
_OUTSIDE: dict[str, Value] = {"weight_storage": "external_data"}
_THREADS: dict[str, Value] = {"intra_op_num_threads": 2}
_NEEDLESS: dict[str, Value] = {**_THREADS, "enable_mem_pattern": False, "arena": "off"}
_LOOSER = member(33, {"precision": "int8_static"}, 2.3, 30.0, 0.09, admitted=False)


def _ending(study: StudyResult) -> list[str]:
    return lines_of(view_ending(study, "report.html"))


def _small() -> StudyResult:
    """Returns a study that found one winner with two changes, as that of the README."""
    parts = [part(_INT8, ["latency_ms"], 1.8, 0.5), part(_OUTSIDE, ["peak_memory_mib"], 1.0, 0.8)]
    return result(
        member(2, {**_INT8, **_OUTSIDE}, 1.8, 40.0, 0.01),
        picked=2,
        left_out=dict.fromkeys(map(str, range(9)), "a reason"),
        simplification=simplification(2, parts, 1.8, 0.4),
    )


def _large() -> StudyResult:
    """Returns a study of 100 trials with a front of seven, long descriptions and all remarks."""
    winner = {**_INT8, **_OUTSIDE}
    others = [
        member(10 + i, {**winner, **_NEEDLESS, "spinning": "off"}, 1.7 - i / 20, 50 - i, 0.02)
        for i in range(6)
    ]
    needless = [part({name: value}) for name, value in _NEEDLESS.items()]
    small = _small()
    assert small.simplification is not None
    kept = small.simplification.parts
    return replace(
        small,
        members=(small.baseline, member(2, winner, 1.8, 40.0, 0.01), *others),
        trials=100,
        never_undisturbed=60,
        others=(_LOOSER,),
        simplification=simplification(2, [*kept, *needless], 1.8, 0.4),
    )


@pytest.mark.parametrize(("study", "most"), [(_small(), 15), (_large(), 27)])
def test_the_end_of_a_study_fits_on_a_screen(study: StudyResult, most: int) -> None:
    text = StringIO()
    Console(file=text, width=100).print(renderable(view_ending(study, "report.html")))
    lines = text.getvalue().splitlines()
    assert len(lines) <= most
    assert max(map(len, lines)) <= 100


def test_the_end_of_a_study_says_what_to_use() -> None:
    lines = _ending(_small())
    assert len(lines) + 1 <= 14  # one more for the headings of the front
    assert lines[0] == (
        "net.onnx: 1.80× faster than the default (1.78–1.82), with 60 % less memory."
    )
    assert lines[3].startswith("→ 2 ")
    assert lines[5].startswith("int8 static, per channel, 2 nodes kept in float 1.80× (1.78–1.82)")
    assert lines[6] == "external data 1.00× (0.99–1.01) 0.80 (0.79–0.81) kept"
    assert lines[-3].startswith("Written to net.autotune: ")
    assert lines[-3].endswith("report.html")
    assert lines[-2].startswith("Details: autotune show net.autotune (--why, --effects); ")
    assert lines[-1] == 'Load it: session = autotune.load("net.autotune/best.json")'


def test_commands_name_files_as_a_shell_takes_them() -> None:
    """Folders and models may have blanks in their names, and quotes in those of configs."""
    lean = member(4, _OUTSIDE, 0.98, 74.0, 1e-7)
    names: dict[str, Any] = {"folder": Path('my "net"'), "model": Path("/my models/net.onnx")}
    endings = [
        view_ending(replace(study, **names), "") for study in (result(lean), _small(), _large())
    ]
    text = " ".join(map(words_of, [*endings, view_why(replace(result(lean), **names))]))
    for command in ("show", "profile", "pick"):
        assert f"""autotune {command} 'my "net"'""" in text
    assert "autotune inspect '/my models/net.onnx'" in text
    assert re.findall(r"autotune \w+ (?:my|/my)", text) == []
    assert r'autotune.load("my \"net\"/best.json")' in text


def test_what_an_ending_adds_where_there_is_reason_to() -> None:
    """A busy machine, a looser limit by confirmed numbers alone, and the best four members."""
    lines = _ending(_large())
    assert any(line.startswith("60 of 100 trials ran on a busy machine;") for line in lines)
    looser = "Best with a looser error limit: trial 33, 2.30× in the final comparison, 30.0 MiB, "
    assert any(line.startswith(looser) for line in lines)
    assert sum("int8 static" in line and "×" not in line for line in lines[2:8]) == 3
    assert "looser" not in " ".join(_ending(replace(_large(), complete=False)))


def test_an_unconfirmed_result_is_not_shown_as_confirmed() -> None:
    study = result(member(2, _OUTSIDE, 1.5), picked=2, complete=False)
    text = words_of(view_ending(study, ""))
    assert "by the estimate of the search. No final comparison has confirmed this: " in text
    assert "→ 2 ~" in text
    assert "~1.50 (" in text
    assert "Load it" not in text
    assert "estimates of the search" in words_of(view_result(study))


def test_a_decoder_has_a_line_for_each_prompt() -> None:
    """Its speed depends on the context, so the context stands beside it."""
    times = LengthTimes(prompt_tokens=64, context=96, ttft_ms=60.0, step_ms=5.0)
    slower = replace(times, ttft_ms=120.0, step_ms=10.0)
    default, winner = (
        replace(made, evidence=replace(made.evidence, lengths=(each,)))
        for made, each in ((member(0, {}), slower), (member(2, _THREADS, 2.0), times))
    )
    assert (
        "After a prompt of 64 tokens, by the clock, the default in parentheses: 60 (120) ms to the "
        "first token, 200 (100) tokens/s at a context of 96."
    ) in _ending(result(members=(default, winner), picked=2))
    assert (
        "After a prompt of 64 tokens, by the clock: 120 ms to the first token, 100 tokens/s at a "
        "context of 96."
    ) in _ending(result(members=(default,)))


def test_wide_intervals_are_explained() -> None:
    unknown = member(4, _OUTSIDE, 0.99)
    evidence = replace(unknown.evidence, speedup=Interval(value=0.99, low=0.08, high=11.61))
    study = result(replace(unknown, evidence=evidence))
    line = (
        "Some intervals are wide: too few runs were undisturbed. More trials or a quieter machine "
        "narrow them."
    )
    assert line in _ending(study)
    assert line not in _ending(result(member(4, _OUTSIDE, 0.99)))
    assert line not in _ending(replace(study, complete=False))


def test_a_default_that_stays_explains_itself() -> None:
    """What came nearest, what would save memory with the same answers, and where to look next."""
    lean = member(4, _OUTSIDE, 0.98, 74.0, 1e-7)
    slow = member(5, {**_OUTSIDE, "spinning": "off"}, 0.5, 60.0, 1e-7)
    near = member(7, _THREADS, 1.01, 99.0)
    wrong = member(8, _INT8, 3.0, 20.0, 0.2, admitted=False)
    study = result(lean, others=(near, slow, wrong))
    text = words_of(view_ending(study, ""))
    assert "the default stays, because no other configuration is better by more than" in text
    assert "Nearest in latency: trial 7, 1.01× (1.00–1.02), 0.99 of the memory: 2 threads." in text
    assert "Less memory with the same answers: trial 4, 0.98× (0.97–0.99), 0.74 of the" in text
    assert "To use it: autotune pick net.autotune --trial 4" in text
    assert "autotune inspect /models/net.onnx" in text
    assert "Nearest in latency: trial 8" not in text
    assert "net.onnx: why the default stays. Nearest in latency: trial 7" in words_of(
        view_why(study)
    )
    assert "No other configuration qualified." in words_of(view_why(result()))


def test_a_model_in_the_working_directory_is_named_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = replace(result(), model=tmp_path / "net.onnx")
    assert f"autotune inspect {tmp_path}/net.onnx" in words_of(view_ending(study, ""))
    monkeypatch.chdir(tmp_path)
    assert "autotune inspect net.onnx" in words_of(view_ending(study, ""))


def test_reasons_come_first_where_most_trials_failed() -> None:
    """A study in which no file could be made says so, and not that nothing was better."""
    reasons = {"ort_transformers: no pattern of a transformer was found": 9}
    refused = replace(result(), trials=10, failed={"refused": 9}, reasons=reasons)
    text = words_of(view_ending(refused, ""))
    assert text.startswith(
        "net.onnx: the default stays, because no other configuration could be measured. "
        "9 of 10 trials failed: ort_transformers: no pattern of a transformer was found (9). "
    )
    assert "better by more than the noise" not in text
    alone = replace(result(), trials=1)
    assert "because no other configuration was measured" in headline(alone)
    near = member(7, _THREADS, 1.01)
    most = replace(result(others=(near,)), trials=10, failed={"refused": 7}, reasons=reasons)
    assert " 7 of 10 trials failed: ort_" in words_of(view_ending(most, ""))


def test_the_memory_of_a_device_has_no_ratio() -> None:
    """The default runs on the CPU and takes none of it."""
    quick = member(2, {"execution_provider": "cuda"}, 7.35)
    on_device = replace(quick, evidence=replace(quick.evidence, peak_device_memory_mib=924.0))
    names = ("latency_ms", "peak_memory_mib", "peak_device_memory_mib")
    study = replace(result(on_device, picked=2), objectives=names)
    assert headline(study).endswith("memory, 924 MiB on the device.")


def test_the_headline_of_a_busy_machine_says_so_and_what_to_type() -> None:
    """In the terminal and in JSON; the page calls such a config not confirmed."""
    quick = member(2, _OUTSIDE, 7.35)
    busy = replace(quick, evidence=replace(quick.evidence, undisturbed=False))
    study = result(busy, picked=2)
    assert "on a busy machine" in headline(study)
    warning = _ending(study)[1]
    assert "this is not confirmed" in warning
    assert f"type `autotune compare {study.folder}`." in warning
    (_, best) = json.loads(json.dumps(study.to_json()))["members"]
    assert best["evidence"]["undisturbed"] is False
    quiet = result(quick, picked=2)
    assert "busy" not in headline(quiet)


def test_a_percentile_has_its_interval() -> None:
    quick = member(2, _OUTSIDE, 2.0)
    gains = {**quick.evidence.gains, "p99_ms": Interval(value=2.0, low=1.6, high=2.5)}
    made = replace(quick, evidence=replace(quick.evidence, p99_ms=5.0, gains=gains))
    default = member(0, {})
    default = replace(default, evidence=replace(default.evidence, p99_ms=10.0))
    study = replace(result(members=(default, made), picked=2), objectives=("latency_ms", "p99_ms"))
    assert "0.50 of its p99 ms (0.40–0.62)" in headline(study)


def test_a_default_that_was_picked_says_so() -> None:
    picked = replace(_small(), picked=0)
    first = "net.onnx: you picked the default; the study selected trial 2."
    assert _ending(picked)[0] == first
    assert "Nearest" not in words_of(view_ending(picked, ""))
    assert "To use trial 2: autotune pick net.autotune --trial 2" in words_of(view_why(picked))


@pytest.mark.parametrize(
    ("memory_mib", "noise_floor", "words"),
    [
        (90.0, 0.2, "with the same memory"),
        (90.0, 0.05, "with 10 % less memory"),
    ],
)
def test_memory_within_its_noise_floor_is_the_same(
    memory_mib: float, noise_floor: float, words: str
) -> None:
    fast = member(1, _THREADS, 1.8, memory_mib)
    evidence = replace(fast.evidence, memory_noise_floor=noise_floor)
    study = result(replace(fast, evidence=evidence), picked=1)
    assert words in headline(study)


def test_all_of_a_result() -> None:
    text = words_of(view_result(_large()))
    assert "Noise floor: " in text
    assert "Options that do not apply to this model or machine: 0 a reason 1 a reason" in text
    assert "Best with a looser error limit: trial 33, 2.30× in the final comparison" in text
    assert " 15 " in text


def _effect(value: Value, factor: float, objective: str) -> Effect:
    interval = Interval(value=factor, low=factor - 0.05, high=factor + 0.05)
    return Effect(parameter="arena", value=value, objective=objective, trials=4, factor=interval)


def test_effects_without_a_clear_one() -> None:
    effects = [
        _effect("off", 0.8, "latency_ms"),
        _effect("off", 1.0, "peak_memory_mib"),
        _effect("on", 1.0, "latency_ms"),
        _effect("on", 1.0, "peak_memory_mib"),
    ]
    lines = lines_of(view_effects(result(effects=tuple(effects))))
    assert "arena off 4 ×0.80 (0.75–0.85) ·" in lines
    assert lines[-1] == "No clear effect: arena=on."


_REVERTED = simplification(
    2,
    [
        part(_INT8, ["latency_ms", "peak_memory_mib"], 1.15, 0.41),
        part({"kept_in_float": 16}, [ANSWERS], error=0.0194),
        part(_OUTSIDE, ["peak_memory_mib"], 1.0, 0.86),
        part(_THREADS),
    ],
    1.15,
    0.35,
)
_STUDY = result(
    member(2, {**_INT8, **_OUTSIDE}, 1.15, 35.0, 0.0061), picked=2, simplification=_REVERTED
)


def test_what_each_change_brings() -> None:
    lines = lines_of(view_why(_STUDY))
    assert "external data 1.00× (0.99–1.01) 0.86 (0.85–0.87) kept" in lines
    assert "together 1.15× (1.14–1.16) 0.35 (0.35–0.35)" in lines
    assert "2 threads 1.00× (0.99–1.01) 1.00 (0.99–1.01) no clear effect, dropped" in lines
    assert any(line.startswith("int8") and line.endswith(" kept") for line in lines)
    (line,) = (line for line in lines if "error" in line)
    assert line.endswith("kept: error 0.0061 instead of 0.019 without it")
    assert not any("needed" in line for line in lines)


def test_a_change_without_numbers_has_a_reason() -> None:
    failing = replace(part(_THREADS, [RUNNING]), speedup=None, memory=None, failure="no memory")
    several = replace(failing, changes={**_THREADS, "arena": "off"}, words="2 threads, no arena")
    doubtful = part(_OUTSIDE, kept=True)
    in_a_group = replace(part({"arena": "off"}, kept=True), speedup=None, memory=None, error=None)
    parts = [failing, several, doubtful, in_a_group]
    text = words_of(view_why(replace(_STUDY, simplification=simplification(2, parts))))
    assert "2 threads kept: without it the config fails (no memory)" in text
    together = "kept together, not measured one by one: without all of these the config fails"
    assert f"2 threads, no arena {together} (no memory)" in text
    why = "kept, because a loss without it is not ruled out"
    assert f"external data 1.00× (0.99–1.01) 1.00 (0.99–1.01) no clear effect; {why}" in text
    assert f"no arena not measured alone; {why}" in text


def test_why_there_is_nothing_to_say_of_changes() -> None:
    other = replace(_STUDY, simplification=replace(_REVERTED, trial=9))
    assert "autotune pick net.autotune --trial 9" in words_of(view_why(other))
    unfinished = replace(_STUDY, simplification=replace(_REVERTED, complete=False))
    assert "`autotune study net.autotune` continues it." in words_of(view_why(unfinished))
    cut_short = replace(_STUDY, simplification=None, complete=False)
    assert "`autotune study net.autotune` continues it." in words_of(view_why(cut_short))
    picked_later = words_of(view_why(replace(_STUDY, simplification=None)))
    assert "you picked trial 2, and the study selected trial 0." in picked_later
