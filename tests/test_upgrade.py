"""A config after an upgrade: answers and gain beside what was measured when it was tuned."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import measurement, refusal
from test_compare import by_threads, make_fake, save_model, write_config

from autotune.measure.outcome import Failure, Outcome
from autotune.results.compare import SessionMeasurer
from autotune.results.upgrade import Verification, verify_config

pytestmark = pytest.mark.process


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config that was twice as fast as the default, with an error of 0.01."""
    path = write_config(save_model(tmp_path), threads=1)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["evidence"] |= {"error": 0.01, "peak_memory_mib": 100.0, "baseline_peak_memory_mib": 100.0}
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def _verify(config: Path, cost: Any, **options: Any) -> Verification:
    _, make = make_fake(cost)
    given: dict[str, Any] = {
        "data": None,
        "shapes": {},
        "max_error": None,
        "on_step": lambda _done, _total: None,
    }
    return verify_config(config, **{**given, "make_measurer": make, **options})


def test_what_still_holds(config: Path) -> None:
    """The same answers and the same gain: nothing to do."""
    verification = _verify(config, by_threads({0: (10.0, 100.0), 1: (5.0, 100.0)}))
    assert verification.exit_code == 0
    assert verification.same_answers
    assert verification.still_better
    assert verification.still_as_fast
    assert verification.comparable
    assert any("ONNX Runtime 1.0 there" in difference for difference in verification.differences)


def test_a_smaller_gain_still_holds(config: Path) -> None:
    """It is better than the default, and the user learns that it was better before."""
    verification = _verify(config, by_threads({0: (10.0, 100.0), 1: (8.0, 100.0)}))
    assert verification.exit_code == 0
    assert not verification.still_as_fast


def test_a_lost_gain_does_not_hold(config: Path) -> None:
    """The new version runs the default as fast."""
    verification = _verify(config, by_threads({0: (5.0, 100.0), 1: (5.0, 100.0)}))
    assert verification.exit_code == 3
    assert verification.same_answers
    assert not verification.still_better


@pytest.mark.parametrize(
    ("error", "limit", "same"), [(0.0119, None, True), (0.013, None, False), (0.013, 0.02, True)]
)
def test_answers_are_the_same_up_to_a_limit(
    config: Path, error: float, limit: float | None, same: bool
) -> None:
    """A fifth more than then, or what the user allows."""

    def cost(_: str, threads: int) -> Outcome:
        return measurement(5.0 if threads else 10.0, error=error if threads else 0.0)

    verification = _verify(config, cost, max_error=limit)
    assert verification.same_answers == same
    assert verification.exit_code == (0 if same else 3)


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Failure(kind="wrong_answers", phase="answers", message="error 0.5", error=0.5), 3),
        (refusal("unknown operator"), 4),
    ],
)
def test_a_config_without_numbers(config: Path, failure: Failure, code: int) -> None:
    """Wrong answers, and a config that the new version does not run."""
    verification = _verify(config, lambda _, threads: failure if threads else measurement(10.0))
    assert verification.now is None
    assert verification.failure == failure.message
    assert verification.exit_code == code


def test_the_default_itself_holds_while_it_is_no_slower(config: Path) -> None:
    """A study emits the default where nothing beats it; that cannot stop being better."""
    data = json.loads(config.read_text(encoding="utf-8"))
    data["evidence"] |= {"significant": False}
    config.write_text(json.dumps(data), encoding="utf-8")
    same = _verify(config, by_threads({0: (10.0, 100.0), 1: (10.0, 100.0)}))
    assert same.exit_code == 0
    slower = _verify(config, by_threads({0: (5.0, 100.0), 1: (10.0, 100.0)}))
    assert slower.exit_code == 3


def test_errors_on_other_inputs_are_marked(config: Path) -> None:
    """Generated inputs say little about an error that was measured on the user's own."""
    data = json.loads(config.read_text(encoding="utf-8"))
    data["evidence"] |= {"error_data": "user"}
    config.write_text(json.dumps(data), encoding="utf-8")
    verification = _verify(config, by_threads({0: (10.0, 100.0), 1: (5.0, 100.0)}))
    assert not verification.comparable


def test_as_many_clients_call_as_when_it_was_tuned(config: Path) -> None:
    """What serves several clients best need not be faster for one."""
    data = json.loads(config.read_text(encoding="utf-8"))
    data["serving"] = {"clients": 3, "sessions": "shared"}
    config.write_text(json.dumps(data), encoding="utf-8")
    fake, _ = make_fake(by_threads({0: (10.0, 100.0), 1: (5.0, 100.0)}))
    asked: list[int] = []

    def make(*arguments: Any) -> SessionMeasurer:
        asked.append(arguments[-1])
        return fake

    assert _verify(config, None, make_measurer=make).exit_code == 0
    assert asked == [3]
