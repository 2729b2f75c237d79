"""The gate of a build: limits, verdicts, exit codes, and JUnit."""

from typing import Any
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from autotune.deploy.config import Interval
from autotune.measure.outcome import Failure
from autotune.report.comparison import render_comparisons
from autotune.report.junit import junit_document
from autotune.results.compare import Comparison, Comparisons
from autotune.results.gate import Gate, Verdict, exit_code, judge


def make_comparison(**changes: Any) -> Comparison:
    """Returns a configuration that is 1.5 times faster, as lean, and right."""
    parts: dict[str, Any] = {
        "name": "best.json",
        "speedup": Interval(value=1.5, low=1.4, high=1.6),
        "latency_ms": 2.0,
        "baseline_latency_ms": 3.0,
        "peak_memory_mib": 50.0,
        "baseline_peak_memory_mib": 50.0,
        "error": 0.01,
        "faster": True,
        "slower": False,
        "leaner": False,
        "better": True,
        "noise_floor": 0.02,
        "rounds": 5,
        "coverage": None,
        "throughput_per_s": 1000.0,
        "baseline_throughput_per_s": 667.0,
        "p50_ms": 2.0,
        "baseline_p50_ms": 3.0,
        "p99_ms": 2.5,
        "baseline_p99_ms": None,
    }
    return Comparison(**{**parts, **changes})


def make_comparisons(*configs: Comparison, clients: int = 1, **failures: Failure) -> Comparisons:
    """Returns a comparison with the default."""
    return Comparisons(
        baseline="the default",
        configs=configs,
        failures=failures,
        model="model.onnx",
        untouched=True,
        error_data="generated",
        clients=clients,
    )


def _broken(verdicts: tuple[Verdict, ...]) -> list[str]:
    return [verdict.limit for verdict in verdicts if not verdict.kept]


def test_one_config_has_to_be_better() -> None:
    """Without limits of its own the gate asks for a gain."""
    better = judge(make_comparisons(make_comparison()), Gate(max_error=0.05))
    assert [verdict.limit for verdict in better] == ["error", "better"]
    assert exit_code(better) == 0
    worse = judge(make_comparisons(make_comparison(better=False)), Gate(max_error=0.05))
    assert _broken(worse) == ["better"]
    assert exit_code(worse) == 3


@pytest.mark.parametrize(
    ("gate", "broken"),
    [
        (Gate(max_error=0.05, min_speedup=1.5, max_memory_mib=50.0), []),
        (Gate(max_error=0.05, min_speedup=1.51), ["speedup"]),
        (Gate(max_error=0.05, max_memory_mib=49.9), ["memory"]),
        (Gate(max_error=0.009), ["error"]),
        (Gate(max_error=0.009, min_speedup=2, max_memory_mib=1), ["error", "speedup", "memory"]),
    ],
)
def test_each_limit_is_judged(gate: Gate, broken: list[str]) -> None:
    """A number at its limit keeps it; every broken limit is named."""
    verdicts = judge(make_comparisons(make_comparison()), gate)
    assert _broken(verdicts) == broken
    assert exit_code(verdicts) == (3 if broken else 0)


def test_a_limit_takes_the_place_of_being_better() -> None:
    """A config that is slower than another baseline may be within what is allowed."""
    slower = make_comparison(better=False, speedup=Interval(value=0.97, low=0.96, high=0.98))
    gate = Gate(max_error=0.05, min_speedup=0.95)
    assert _broken(judge(make_comparisons(slower), gate)) == []


def test_several_configs_are_compared_without_a_winner() -> None:
    """A table of configs is no gate unless a limit makes it one."""
    configs = [make_comparison(name=name, better=False) for name in ("a.json", "b.json")]
    assert _broken(judge(make_comparisons(*configs), Gate(max_error=0.05))) == []
    limited = judge(make_comparisons(*configs), Gate(max_error=0.05, min_speedup=2.0))
    assert _broken(limited) == ["speedup", "speedup"]


def test_with_clients_the_least_speed_up_is_one_of_throughput() -> None:
    """The verdict says so, and the table shows throughput and latencies under load."""
    comparisons = make_comparisons(make_comparison(), clients=4)
    verdicts = judge(comparisons, Gate(max_error=0.05, min_speedup=1.2))
    (verdict,) = [verdict for verdict in verdicts if verdict.limit == "speedup"]
    assert verdict.kept
    assert verdict.words.startswith("throughput 1.500×")
    console = Console(width=120)
    with console.capture() as capture:
        console.print(render_comparisons(comparisons, verdicts))
    text = capture.get()
    row = next(line for line in text.splitlines() if line.startswith("best.json "))
    assert row.split()[1:6] == ["1000", "1.50", "(1.40–1.60)", "2", "2.5"]
    assert "4 clients send one request after another" in text
    assert "too few requests" in text


def test_wrong_answers_break_a_limit_and_a_crash_does_not_run() -> None:
    """The exit codes tell them apart."""
    wrong = Failure(kind="wrong_answers", phase="answers", message="error 0.3", error=0.3)
    crash = Failure(kind="crashed", phase="run", message="it crashed")
    verdicts = judge(make_comparisons(wrong=wrong), Gate(max_error=0.05))
    assert _broken(verdicts) == ["error"]
    assert exit_code(verdicts) == 3
    verdicts = judge(make_comparisons(make_comparison(), crash=crash), Gate(max_error=0.05))
    assert _broken(verdicts) == ["runs"]
    assert exit_code(verdicts) == 4


def test_junit_has_a_test_for_each_verdict() -> None:
    """Build servers count tests, failures and errors; names of strangers stay text."""
    verdicts = [
        Verdict(config="<best>\x1b.json", limit="error", kept=True, words="fine"),
        Verdict(config="best.json", limit="speedup", kept=False, words="1.0× & less"),
        Verdict(config="other.json", limit="runs", kept=False, words="it crashed"),
    ]
    root = ET.fromstring(junit_document(verdicts, "autotune compare"))
    (suite,) = root
    assert suite.attrib == {
        "name": "autotune compare",
        "tests": "3",
        "failures": "1",
        "errors": "1",
    }
    cases = list(suite)
    assert [case.get("classname") for case in cases] == ["<best>?.json", "best.json", "other.json"]
    assert [[child.tag for child in case] for case in cases] == [[], ["failure"], ["error"]]
    assert cases[1][0].get("message") == "1.0× & less"
