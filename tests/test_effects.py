"""The model of effects: what it learns from configurations whose costs are known."""

import itertools
import math

import numpy as np
import pytest
from fakes import parameter, space, thread_space

from autotune.deploy.options import Value
from autotune.search.coding import Coding
from autotune.search.effects import Posterior, believed, explain
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import PARAMETERS
from autotune.space.space import Space

_EFFECTS: dict[tuple[str, Value], float] = {
    ("intra_op_num_threads", 1): 0.6,
    ("precision", "int8_dynamic"): -0.5,
    ("weight_storage", "external_data"): 0.0,
    ("arena", "off"): -0.1,
}
_PAIR = -0.2


def _space() -> Space:
    return space(*(parameter(n, _default(n), v) for n, v in _EFFECTS))


def _default(name: str) -> Value:
    return PARAMETERS[name].default


def _log_cost(configuration: Configuration) -> float:
    both = {("intra_op_num_threads", 1), ("precision", "int8_dynamic")} <= set(configuration.values)
    return sum(_EFFECTS[pair] for pair in configuration.values) + (_PAIR if both else 0.0)


def _noisy(configurations: list[Configuration], deviation: float) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.asarray([_log_cost(c) + random.normal(0, deviation) for c in configurations])


def test_a_configuration_is_predicted_from_others() -> None:
    everything = list(_space().configurations or ())
    coding = Coding(_space())
    for left_out in everything:
        others = [c for c in everything if c != left_out]
        model = Posterior(coding, coding.rows(others), _noisy(others, 0.005), sweeps=4)
        (mean,), (deviation,) = model.predict(coding.rows([left_out]))
        assert abs(mean - _log_cost(left_out)) < 3 * deviation + 0.02


def test_doubt_shrinks_with_what_is_known() -> None:
    coding = Coding(_space())
    some = [BASELINE, Configuration.of({"arena": "off"})]
    model = Posterior(coding, coding.rows(some), _noisy(some, 0.005))
    _, (known, unknown) = model.predict(
        coding.rows(
            [Configuration.of({"arena": "off"}), Configuration.of({"precision": "int8_dynamic"})]
        )
    )
    assert known < unknown / 3


def test_effects_are_told_with_intervals() -> None:
    everything = [BASELINE, *(c for c in _space().configurations or () if c != BASELINE)]
    logs = _noisy(everything, 0.01)
    base = logs[0]
    observed = [
        (c, {"latency_ms": math.exp(v - base)}) for c, v in zip(everything, logs, strict=True)
    ]
    effects = {(e.parameter, e.value): e for e in explain(_space(), observed)}
    assert effects.keys() == _EFFECTS.keys()
    for pair, effect in _EFFECTS.items():
        factor = effects[pair].factor
        assert factor.low * 0.97 < math.exp(effect) < factor.high * 1.03
        assert factor.low < factor.value < factor.high
    assert effects["precision", "int8_dynamic"].is_known
    assert not effects["weight_storage", "external_data"].is_known
    strongest = explain(_space(), observed)[0]
    assert strongest.parameter == "intra_op_num_threads"


def test_effects_do_not_depend_on_the_order() -> None:
    """Where many drivers share a study the default need not be its first trial."""
    observed = [(c, {"latency_ms": math.exp(_log_cost(c))}) for c in _space().configurations or ()]
    (first, *_), (last, *_) = explain(_space(), observed), explain(_space(), observed[::-1])
    assert (first.parameter, first.value) == (last.parameter, last.value)
    assert first.factor.value == pytest.approx(last.factor.value)


def test_values_that_were_not_tried_have_no_effect_to_tell() -> None:
    """Only what was measured is explained; what the space does not know is left out."""
    elsewhere = Configuration.of({"intra_op_num_threads": 8})
    observed = [
        (c, {"latency_ms": 1.0}) for c in (BASELINE, Configuration.of({"arena": "off"}), elsewhere)
    ]
    assert [(e.parameter, e.value) for e in explain(thread_space(), observed)] == [("arena", "off")]


@pytest.mark.parametrize("sweeps", [0, 1, 4])
def test_a_model_of_any_few_trials_is_sound(sweeps: int) -> None:
    coding = Coding(_space())
    everything = list(_space().configurations or ())
    for count in range(1, 6):
        for some in itertools.islice(itertools.combinations(everything, count), 10):
            model = Posterior(coding, coding.rows(some), np.zeros(count), sweeps=sweeps)
            mean, deviation = model.predict(coding.rows(everything))
            assert np.isfinite(mean).all()
            assert (deviation > 0).all()


def test_graph_halves_are_told_apart() -> None:
    coding = Coding(_space())
    rows = coding.rows(
        [
            BASELINE,
            Configuration.of({"arena": "off"}),
            Configuration.of({"precision": "int8_dynamic"}),
            Configuration.of({"precision": "int8_dynamic", "arena": "off"}),
            Configuration.of({"precision": "int8_dynamic", "weight_storage": "external_data"}),
        ]
    )
    none, none_too, half, same, other = coding.graph_sets(rows)
    assert none == none_too == 0.0
    assert half == same != other
    assert half != 0.0


def _told(
    configurations: list[Configuration], luck: dict[Configuration, float]
) -> list[dict[str, float]]:
    trials = [
        (c, {"latency_ms": 10 * math.exp(_log_cost(c)) * luck.get(c, 1.0)}) for c in configurations
    ]
    return believed(_space(), trials)


def test_a_lucky_number_is_not_believed() -> None:
    """What is far from all that the others let expect is taken for luck, most of it."""
    everything = list(_space().configurations or ())
    lucky = Configuration.of({"weight_storage": "external_data"})
    believed = dict(zip(everything, _told(everything, {lucky: 0.6}), strict=True))
    assert 8 < believed[lucky]["latency_ms"] < 12
    best = min(believed, key=lambda configuration: believed[configuration]["latency_ms"])
    assert {("intra_op_num_threads", 1)} <= set(best.values) or believed[best]["latency_ms"] < 6


def test_what_is_right_is_believed() -> None:
    everything = list(_space().configurations or ())
    for configuration, values in zip(everything, _told(everything, {}), strict=True):
        expected = 10 * math.exp(_log_cost(configuration))
        assert values["latency_ms"] == pytest.approx(expected, rel=0.03)


def test_too_few_or_unknown_are_believed_as_measured() -> None:
    """Three trials make no model, and of a value outside the space it knows nothing."""
    few = [BASELINE, Configuration.of({"arena": "off"})]
    assert _told(few, {BASELINE: 2.0}) == [
        {"latency_ms": 20.0},
        {"latency_ms": pytest.approx(9.05, abs=0.01)},
    ]
    outside = Configuration.of({"intra_op_num_threads": 7})
    trials = [(c, {"latency_ms": 10.0}) for c in _space().configurations or ()]
    assert believed(_space(), [*trials, (outside, {"latency_ms": 1.0})])[-1] == {"latency_ms": 1.0}
