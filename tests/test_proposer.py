"""What is proposed next, on costs that are computed."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from fakes import (
    Cost,
    FakeMeasurer,
    build_proposer,
    measurement,
    observed,
    parameter,
    refusal,
    space,
    thread_cost,
    thread_space,
)

from autotune.measure.outcome import SEARCH, Failure, Outcome
from autotune.search.coding import Floats
from autotune.search.effects import Posterior
from autotune.search.objective import DEFAULT
from autotune.search.proposer import Outlook
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.space import Space

_GRAPHS = space(
    parameter("precision", "fp32", "int8_dynamic", "int8_static"),
    parameter("weight_storage", "inline", "external_data"),
    parameter("arena", "on", "off"),
    parameter("intra_op_num_threads", 0, 1),
)


def _proposed(
    within: Space,
    cost: Cost | Callable[[Configuration], Outcome],
    count: int,
    limits: Limits | None = None,
) -> list[Trial]:
    """Returns the trials of a search by proposals alone, after the baseline."""
    proposer = build_proposer(within, limits=limits)
    measurer = FakeMeasurer(cost)
    trials = [_trial(0, BASELINE, measurer.measure(BASELINE, SEARCH))]
    while len(trials) < count:
        proposal = proposer.propose(observed(trials), {trial.configuration for trial in trials})
        if proposal is None:
            break
        outcome = measurer.measure(proposal.configuration, SEARCH)
        trials.append(_trial(len(trials), proposal.configuration, outcome))
    return trials


def _trial(number: int, configuration: Configuration, outcome: Outcome) -> Trial:
    return Trial(number=number, configuration=configuration, outcome=outcome)


def test_limits_are_kept_to() -> None:

    def cost(configuration: Configuration) -> tuple[float, float]:
        values = configuration.to_json()
        quantised = values.get("precision") == "int8_static"
        memory = 200.0 if quantised else 100.0
        latency = 4.0 if quantised else 10.0
        return latency * (0.8 if values.get("arena") == "off" else 1.0), memory

    trials = _proposed(_GRAPHS, cost, 12, Limits(max_memory_mib=150))
    kept = [m for t in trials if (m := t.measurement) and m.peak_memory_mib < 150]
    assert min(m.latency_ms for m in kept) == 8.0
    assert sum(t.configuration.to_json().get("precision") == "int8_static" for t in trials) <= 4


@pytest.mark.parametrize("names", [("latency_ms",), (*DEFAULT, "cpu_s"), ("load_ms", "cpu_s")])
def test_any_objectives_will_do(names: tuple[str, ...]) -> None:
    proposer = build_proposer(_GRAPHS, names, Limits(max_latency_ms=50))
    trials = [_trial(0, BASELINE, measurement(10.0))]
    for number in range(1, 8):
        proposal = proposer.propose(observed(trials), {t.configuration for t in trials})
        assert proposal is not None
        assert math.isfinite(proposal.gain)
        trials.append(_trial(number, proposal.configuration, measurement(10.0 - number)))


def test_answers_are_those_of_the_precision() -> None:

    def is_off(configuration: Configuration) -> bool:
        return configuration.to_json().get("precision", "fp32") != "fp32"

    def cost(configuration: Configuration) -> Outcome:
        if is_off(configuration):
            return measurement(2.0, error=0.06)
        return measurement(10.0 - len(configuration.values), error=1e-7)

    # after ten nothing else is left
    off = [t for t in _proposed(_GRAPHS, cost, 10) if is_off(t.configuration)]
    assert len({t.configuration.to_json()["precision"] for t in off}) == len(off)


def test_a_pass_that_breaks_answers_is_left_alone() -> None:
    within = space(
        parameter("pre_pass", "none", "onnxslim", "onnxscript"),
        parameter("precision", "fp32", "int8_static"),
        parameter("enable_mem_pattern", True, False),
        parameter("session.disable_prepacking", "0", "1"),
    )

    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        if configuration.to_json().get("pre_pass") == "onnxslim":
            return Failure(kind="wrong_answers", phase="answers", message="no", error=3.0)
        return 10.0 - len(configuration.values), 100.0

    trials = _proposed(within, cost, 12)
    wrong = [t.number for t in trials if isinstance(t.outcome, Failure)]
    assert len(wrong) <= 3
    assert min(t.measurement.latency_ms for t in trials if t.measurement) == 6.0


def test_of_many_trials_the_best_are_looked_at() -> None:
    configurations = thread_space().configurations or ()
    trials = [_trial(0, BASELINE, measurement(10.0))]
    for number in range(1, 900):
        configuration = configurations[number % len(configurations)]
        cost = thread_cost(configuration)
        assert not isinstance(cost, Failure)
        trials.append(_trial(number, configuration, measurement(*cost)))
    proposer = build_proposer(thread_space())
    proposal = proposer.propose(observed(trials), set())
    assert proposal is not None
    assert proposal.gain < 0.01
    assert proposer.propose(observed(trials), set(configurations) | {BASELINE}) is None


class _Latencies(Posterior):
    """A model that knows the logarithm of the latency: it is the only column of a row."""

    def __init__(self) -> None:
        """Learns nothing."""

    def predict(self, rows: Floats) -> tuple[Floats, Floats]:
        return rows[:, 0], np.full(len(rows), 0.01)


def _outlook(admitted: Sequence[bool]) -> Outlook:
    """Returns the outlook after a default that breaks a limit, and two that take longer."""
    rows = np.log([[1.0], [1.5], [1.6]])
    configurations = [Configuration.of({"intra_op_num_threads": i}) for i in range(1, 3)]
    return Outlook([_Latencies()], [], rows, [BASELINE, *configurations], np.asarray(admitted))


@pytest.mark.parametrize(
    ("admitted", "front"), [((False, True, True), 1), ((False, False, False), 0)]
)
def test_beside_a_default_that_breaks_a_limit_the_faster_promise_more(
    admitted: Sequence[bool], front: int
) -> None:
    """All that keeps the limits may be slower than the default, or nothing keeps them yet."""
    outlook = _outlook(admitted)
    fast, slow = outlook.gains(np.log([[1.3], [1.45]]))
    assert len(outlook.front) == front
    assert fast > slow > 0


def test_beside_a_default_within_the_limits_the_slower_promise_nothing() -> None:
    assert not _outlook((True, True, True)).gains(np.log([[1.4], [1.45]])).any()


_WRONG = Failure(kind="wrong_answers", phase="answers", message="no", error=3.0)


@pytest.mark.parametrize(
    ("bad", "failure", "count"),
    [("int8_static", _WRONG, 17), ("external_data", refusal(), 13)],
    ids=["wrong answers", "refused"],
)
def test_what_failed_is_not_asked_for_again(bad: str, failure: Failure, count: int) -> None:
    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        is_bad = bad in configuration.to_json().values()
        return failure if is_bad else (10.0 - len(configuration.values), 100.0)

    trials = _proposed(_GRAPHS, cost, count)
    failed = [t.number for t in trials if isinstance(t.outcome, Failure)]
    assert len(failed) <= 3 or min(failed[2:]) >= 14
