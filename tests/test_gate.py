"""The gate of a build: limits, verdicts, exit codes, and JUnit."""

import json
import math
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from factories import make_numbers
from fakes import judged
from views import lines_of

from autotune.deploy.config import Interval
from autotune.measure.outcome import Failure
from autotune.report.comparison import junit_document, view_comparison
from autotune.results.compare import Compared, Comparison, Tuned
from autotune.results.gate import Gate, Verdict, exit_code, judge


def make_config(
    name: str = "best.json", speedup: float = 1.5, error: float = 0.01, **changes: Any
) -> Compared:
    """Returns a configuration that is 1.5 times faster, as lean, and right."""
    near = Interval(value=speedup, low=speedup - 0.01, high=speedup + 0.01)
    same = Interval(value=1.0, low=0.99, high=1.01)
    values = {
        "latency_ms": 3 / speedup,
        "peak_memory_mib": 50.0,
        "held_memory_mib": 40.0,
        "p99_ms": 2.5,
    }
    gains = {"latency_ms": near, "peak_memory_mib": same}
    own = make_numbers(values, gains, error=error, rounds=5)
    numbers: dict[str, Any] = {"p50_ms": 2.0, "throughput_per_s": 1000.0, "max_error": 0.05}
    return Compared(name=name, numbers=own, **{**numbers, **changes})


def make_comparison(*configs: Compared, clients: int = 1, **failures: Failure) -> Comparison:
    """Returns a comparison with the default, of whose percentiles too little is known."""
    default = make_config("the default", 1.0, 0.0)
    return Comparison(
        baseline=replace(default, numbers=replace(default.numbers, p99_ms=None)),
        configs=configs,
        failures=failures,
        model="model.onnx",
        untouched=True,
        error_data="generated",
        clients=clients,
        max_error=0.05,
    )


def _broken(verdicts: tuple[Verdict, ...]) -> list[str]:
    return [verdict.limit for verdict in verdicts if not verdict.kept]


def test_one_config_has_to_be_better() -> None:
    better = judge(make_comparison(make_config()), Gate())
    assert [verdict.limit for verdict in better] == ["error", "better"]
    assert exit_code(better) == 0
    worse = judge(make_comparison(make_config(speedup=1.0)), Gate())
    assert _broken(worse) == ["better"]
    assert exit_code(worse) == 3


def test_a_metric_alone_limits_no_error() -> None:
    """And JSON, which has no infinite numbers, says so by null."""
    comparison = make_comparison(make_config(error=0.5, max_error=math.inf))
    verdicts = judge(comparison)
    assert _broken(verdicts) == []
    assert verdicts[0].words == "error 0.5, no error limit applies"
    data = json.dumps(view_comparison(comparison, verdicts).data, allow_nan=False)
    assert json.loads(data)["configs"][0]["max_error"] is None


@pytest.mark.parametrize(("speedup", "broken"), [(0.995, []), (0.97, ["better"])])
def test_less_memory_may_cost_one_per_cent(speedup: float, broken: list[str]) -> None:
    """By the estimate, also where the noise of the machine is larger."""
    same = make_config(speedup=speedup)
    halved = {**same.numbers.gains, "peak_memory_mib": Interval(value=2.0, low=1.9, high=2.1)}
    lean = replace(same, numbers=replace(same.numbers, gains=halved, noise_floor=0.04))
    assert _broken(judge(make_comparison(lean))) == broken


@pytest.mark.parametrize(
    ("gate", "broken"),
    [
        (Gate(min_speedup=1.5, max_memory_mib=50.0), []),
        (Gate(min_speedup=0.95), []),
        (Gate(min_speedup=1.51), ["speedup"]),
        (Gate(max_memory_mib=49.9), ["memory"]),
        (Gate(max_held_memory_mib=40.0), []),
        (Gate(max_held_memory_mib=39.9), ["held memory"]),
        (Gate(min_speedup=2, max_memory_mib=1), ["speedup", "memory"]),
    ],
)
def test_each_limit_is_judged(gate: Gate, broken: list[str]) -> None:
    verdicts = judge(make_comparison(make_config()), gate)
    assert _broken(verdicts) == broken
    assert exit_code(verdicts) == (3 if broken else 0)


def _busy(speedup: float, **changes: Any) -> Compared:
    config = make_config(speedup=speedup, **changes)
    return replace(config, numbers=replace(config.numbers, undisturbed=False))


@pytest.mark.parametrize(
    ("speedup", "least", "broken", "code"),
    [
        (1.5, 0.0001, [], 0),
        (4.9, 1.2, [], 0),
        (4.7, 1.2, ["quiet"], 4),
        (1.0, 1.2, ["quiet"], 4),
        (0.3, 1.2, ["quiet"], 4),
        (0.28, 1.2, ["speedup"], 3),
        (4.9, None, [], 0),
        (2.0, None, ["quiet"], 4),
        (0.2, None, ["better"], 3),
    ],
)
def test_a_busy_machine_leaves_open_what_it_could_have_changed(
    speedup: float, least: float | None, broken: list[str], code: int
) -> None:
    """It made 7.35 of 1.83: beyond a factor of four the verdict stands."""
    verdicts = judge(make_comparison(_busy(speedup)), Gate(min_speedup=least))
    assert _broken(verdicts) == broken
    assert exit_code(verdicts) == code
    says_when = "type it again when it is quiet" in verdicts[-1].words
    assert says_when == (code == 4)


def test_other_broken_limits_count_on_a_busy_machine() -> None:
    """And what is known of memory needs no quiet machine."""
    gate = Gate(min_speedup=1.2, max_memory_mib=1.0)
    verdicts = judge(make_comparison(_busy(1.5)), gate)
    assert _broken(verdicts) == ["quiet", "memory"]
    assert exit_code(verdicts) == 3
    memory = judge(make_comparison(_busy(1.5)), Gate(max_memory_mib=50.0))
    assert exit_code(memory) == 0


def test_the_error_limit_is_the_one_that_the_config_was_tuned_for() -> None:
    tuned = make_config(error=0.06, max_error=0.1)
    assert exit_code(judge(make_comparison(tuned), Gate())) == 0
    strict = make_config(error=0.06, max_error=0.05)
    assert _broken(judge(make_comparison(strict), Gate())) == ["error"]


def test_the_default_itself_holds_while_it_is_no_slower() -> None:
    """A study writes the default where nothing is better; that cannot stop being better."""
    one = Interval(value=1.0, low=0.99, high=1.01)
    then = Tuned(
        differences=(),
        speedup=one,
        peak_memory_mib=50.0,
        error=0.0,
        was_better=False,
        as_fast=True,
        same_answers=True,
    )
    same = make_config(speedup=1.0, tuned=then)
    assert exit_code(judge(make_comparison(same), Gate())) == 0
    slower = make_config(speedup=0.9, tuned=then)
    assert _broken(judge(make_comparison(slower), Gate())) == ["better"]


def test_several_configs_are_compared_without_a_winner() -> None:
    configs = [make_config(name, 1.0) for name in ("a.json", "b.json")]
    assert _broken(judge(make_comparison(*configs), Gate())) == []
    limited = judge(make_comparison(*configs), Gate(min_speedup=2.0))
    assert _broken(limited) == ["speedup", "speedup"]


def test_with_clients_the_least_speed_up_is_one_of_throughput() -> None:
    comparison = make_comparison(make_config(), clients=4)
    verdicts = judge(comparison, Gate(min_speedup=1.2))
    (verdict,) = [verdict for verdict in verdicts if verdict.limit == "speedup"]
    assert verdict.kept
    assert verdict.words.startswith("throughput 1.500×")
    text = "\n".join(lines_of(view_comparison(comparison, verdicts)))
    row = next(line for line in text.splitlines() if line.startswith("best.json "))
    assert row.split()[1:6] == ["1000", "1.50", "(1.49–1.51)", "2", "2.5"]
    assert "4 clients send one request after another" in text
    assert "too few requests" in text


def test_wrong_answers_break_a_limit_and_a_crash_does_not_run() -> None:
    wrong = Failure(kind="wrong_answers", phase="answers", message="error 0.3", error=0.3)
    crash = Failure(kind="crashed", phase="run", message="it crashed")
    verdicts = judge(make_comparison(wrong=wrong), Gate())
    assert _broken(verdicts) == ["error"]
    assert exit_code(verdicts) == 3
    verdicts = judge(make_comparison(make_config(), crash=crash), Gate())
    assert _broken(verdicts) == ["runs"]
    assert exit_code(verdicts) == 4


def test_junit_has_a_test_for_each_verdict() -> None:
    """Build servers count tests, failures and errors; names of strangers stay text."""
    verdicts = [
        Verdict(config="<best>\x1b.json", limit="error", kept=True, words="fine"),
        Verdict(config="best.json", limit="speedup", kept=False, words="1.0× & less"),
        Verdict(config="other.json", limit="runs", kept=False, words="it crashed"),
        Verdict(config="other.json", limit="quiet", kept=False, words="busy"),
    ]
    root = ET.fromstring(junit_document(verdicts))
    (suite,) = root
    assert suite.attrib == {
        "name": "autotune compare",
        "tests": "4",
        "failures": "1",
        "errors": "2",
    }
    cases = list(suite)
    assert [case.get("classname") for case in cases] == [
        "<best>?.json",
        "best.json",
        "other.json",
        "other.json",
    ]
    assert [[child.tag for child in case] for case in cases] == [
        [],
        ["failure"],
        ["error"],
        ["error"],
    ]
    assert cases[1][0].get("message") == "1.0× & less"


def test_a_file_is_not_judged_by_itself() -> None:
    alone = replace(make_comparison(make_config(error=0.0)), untouched=False)
    error, better = judge(alone)
    assert error.words.startswith("answers not compared: name the model")
    assert better.kept


def test_answers_that_were_nearer_when_it_was_tuned_break_the_gate() -> None:
    """Within the limit too, and where a metric alone limited the error."""
    then = Tuned(
        differences=(),
        speedup=Interval(value=1.5, low=1.4, high=1.6),
        peak_memory_mib=50.0,
        error=0.001,
        was_better=True,
        as_fast=True,
        same_answers=False,
    )
    for max_error in (0.05, math.inf):
        verdicts = judge(make_comparison(make_config(tuned=then, max_error=max_error)))
        assert _broken(verdicts) == ["answers"]
        assert verdicts[1].words == "its error was 0.001 when it was tuned, and is 0.01"
        assert exit_code(verdicts) == 3


def test_all_samples_count() -> None:
    on_all = judged(0, admitted=False)
    (error, _) = judge(make_comparison(make_config(on_all=on_all)))
    assert not error.kept
    assert error.words == "error 0.01, 0.5 on all 120 samples, at most 0.05 is allowed"
