"""What options of the process do, measured and shown apart from the session."""

from pathlib import Path
from typing import Any

import made_results
import pytest
from fakes import FakeMeasurer, measurement, refusal, setting, thread_space
from views import words_of

from autotune.deploy.config import Interval
from autotune.deploy.options import Value
from autotune.deploy.process_options import STEADY_HEAP, ProcessOptions
from autotune.errors import RequestError
from autotune.measure.outcome import Failure, Outcome
from autotune.report.result import view_ending, view_result
from autotune.results.final_comparison import compare_finalists
from autotune.results.process_effect import ProcessEffect, SessionEffect, process_effect
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.study.options import StudyOptions

_WINNER: dict[str, Value] = {"intra_op_num_threads": 4}


def _effect(measurer: FakeMeasurer, values: dict[str, Value]) -> ProcessEffect | None:
    """Returns the effect beside a winner with these values, as trial 3."""
    base = Trial(number=0, configuration=BASELINE, outcome=measurement(10.0))
    winner = Trial(number=3, configuration=Configuration.of(values), outcome=measurement(5.0))

    def quiet(_done: int, _total: int) -> None:
        return None

    compared = compare_finalists(measurer, base, [winner], find(DEFAULT), seed=1, on_step=quiet)
    return process_effect(setting(thread_space()), measurer, compared[-1 if values else 0], quiet)


def _cost(configuration: Configuration) -> tuple[float, float] | Failure:
    return (10.0, 100.0) if configuration == BASELINE else (5.0, 50.0)


def test_the_process_is_measured_beside_both() -> None:
    measurer = FakeMeasurer(_cost)
    effect = _effect(measurer, _WINNER)
    assert effect is not None
    assert set(measurer.processes) == {STEADY_HEAP}
    assert effect.default.without_mib == 100.0
    assert effect.default.peak_memory_mib == pytest.approx(80.0)
    assert effect.config is not None
    assert effect.config.memory.value == pytest.approx(0.8)
    assert effect.config.speedup.value == pytest.approx(1.0)
    assert effect.options_for(3) == STEADY_HEAP
    assert effect.options_for(4) is None


def test_the_default_alone() -> None:
    effect = _effect(FakeMeasurer(_cost), {})
    assert effect is not None
    assert effect.config is None
    assert effect.options_for(0) == STEADY_HEAP


class _Special(FakeMeasurer):
    """A measurer that has an outcome of its own where the process has options."""

    def __init__(self, special: Outcome) -> None:
        super().__init__(_cost)
        self._special = special

    def measure(
        self, *arguments: Any, process: ProcessOptions | None = None, **named: Any
    ) -> Outcome:
        return self._special if process else super().measure(*arguments, **named)


def test_what_costs_speed_is_not_offered() -> None:
    effect = _effect(_Special(measurement(20.0, 60.0)), {})
    assert effect is not None
    assert effect.default.memory.value == pytest.approx(0.6)
    assert effect.options_for(0) is None


def test_a_process_that_fails_has_no_effect() -> None:
    """A study does not end because of it."""
    assert _effect(_Special(refusal()), _WINNER) is None


def test_the_effect_is_shown_apart() -> None:
    session = SessionEffect(
        speedup=Interval(value=0.99, low=0.98, high=1.0),
        memory=Interval(value=0.75, low=0.74, high=0.76),
        peak_memory_mib=75.0,
        peak_memory_interval_mib=Interval(value=75.0, low=74.0, high=76.0),
        without_mib=100.0,
        helps=True,
    )
    effect = ProcessEffect(options=STEADY_HEAP, trial=0, default=session, config=None)
    text = words_of(view_result(made_results.result(process=effect)))
    assert text.startswith("net.onnx: the default stays")
    assert "75.0 (74.0–76.0) MiB instead of 100.0, 0.99× as fast (0.98–1.00)" in text
    assert "process_options=True" in text
    ending = words_of(view_ending(made_results.result(process=effect), ""))
    assert "The default with them: 75.0" in ending


def test_it_is_refused_without_glibc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.study.options.has_glibc", lambda: False)
    with pytest.raises(RequestError, match="--process-options"):
        StudyOptions.of(tmp_path / "absent.onnx", process_options=True)
