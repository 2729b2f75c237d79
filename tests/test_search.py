"""How a search spends its budget: samplers, starting points, an early end, simple winners."""

import math
import random

import pytest
from fakes import Cost, FakeMeasurer, build_search, parameter, space, thread_cost, thread_space

from autotune.deploy.options import Value
from autotune.measure.outcome import Failure
from autotune.search.trial import Limits
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.files import find_space
from autotune.space.session import EVERY_OPTIMIZER
from autotune.space.space import Parameter, Space

pytestmark = pytest.mark.usefixtures("quiet")


def noisy(cost: Cost, deviation: float = 0.01) -> FakeMeasurer:
    """Returns a measurer whose numbers are off by a per cent or so, by another luck each time."""
    luck = random.Random(0)

    def lucky(configuration: Configuration) -> tuple[float, float] | Failure:
        own = cost(configuration)
        if isinstance(own, Failure):
            return own
        latency_ms, memory_mib = (value * math.exp(luck.gauss(0, deviation)) for value in own)
        return latency_ms, memory_mib

    return FakeMeasurer(lucky)


def _default_space() -> Space:
    """The default preset as a machine of eight cores sees it, without preparing anything."""
    default = find_space("default")
    counts = {"intra_op_num_threads": (0, 1, 2, 4, 8), "inter_op_num_threads": (0, 2, 8)}
    return Space(
        name="default",
        description="",
        parameters=tuple(
            Parameter(
                name=p.name,
                values=counts.get(p.name, p.values),
                default=p.default,
                when=p.when,
                unless=p.unless,
                needs=(),
            )
            for p in default.parameters
            if p.name != EVERY_OPTIMIZER
        ),
        left_out={},
        impossible=(
            {"precision": ("int8_dynamic", "int8_weight_only"), "kept_in_float": (4, 8, 16)},
            {"quantized_operators": ("conv",), "kept_in_float": (8, 16)},
        ),
    )


def _additive(seed: int) -> Cost:
    """Returns costs in which each value of each parameter has an effect of its own."""
    luck = random.Random(seed)
    effects: dict[tuple[str, Value], tuple[float, float]] = {}

    def cost(configuration: Configuration) -> tuple[float, float]:
        logs = [0.0, 0.0]
        for pair in configuration.values:
            if pair not in effects:
                effects[pair] = (luck.gauss(0, 0.2), luck.gauss(0, 0.2))
            logs = [total + own for total, own in zip(logs, effects[pair], strict=True)]
        return 10 * math.exp(logs[0]), 100 * math.exp(logs[1])

    return cost


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_conditions_are_honoured(seed: int) -> None:
    measurer = FakeMeasurer(_additive(seed))
    within = _default_space()
    build_search(measurer, within, seed=seed).run(20, None)
    assert len(set(measurer.searched)) == len(measurer.searched)
    for configuration in measurer.searched:
        chosen = configuration.to_json()
        for each in within.parameters:
            assert each.is_active(chosen) or each.name not in chosen
            assert chosen.get(each.name, each.default) in (*each.values, each.default)
        for condition in within.impossible:
            assert any(chosen.get(name) not in values for name, values in condition.items())


def _small_space() -> Space:
    return space(
        parameter("intra_op_num_threads", 0, 1, 2),
        parameter("graph_optimization_level", "ORT_ENABLE_ALL", "ORT_ENABLE_EXTENDED"),
        parameter("arena", "on", "off", "same_as_requested"),
        parameter("enable_mem_pattern", True, False),
        parameter("session.disable_prepacking", "0", "1"),
        parameter("spinning", "on", "stop_after_run", "off"),
    )


def _flat(_: Configuration) -> tuple[float, float]:
    return 10.0, 100.0


@pytest.mark.parametrize("early_stop", [True, False])
def test_the_search_ends_when_nothing_is_to_be_expected(early_stop: bool) -> None:
    measurer = noisy(_flat, deviation=0.003)
    search = build_search(measurer, _small_space(), early_stop=early_stop)
    search.run(120, None)
    assert (25 < len(search.trials) < 120) == early_stop
    assert ("has not moved" in search.ended) == early_stop


def test_the_search_goes_on_while_nothing_keeps_the_limits() -> None:
    measurer = noisy(_flat, deviation=0.003)
    search = build_search(measurer, _small_space(), limits=Limits(max_memory_mib=50.0))
    search.run(60, None)
    assert (len(search.trials), search.ended) == (60, "")


def test_a_small_space_is_measured_in_full() -> None:
    measurer = FakeMeasurer(_flat)
    search = build_search(measurer, thread_space())
    search.run(100, None)
    assert set(measurer.searched) == set(thread_space().configurations or ())
    assert search.ended == "every configuration is measured"


def test_starting_points_come_right_after_the_default() -> None:
    outside = Configuration.of({"intra_op_num_threads": 3, "session.disable_prepacking": "1"})
    inside = Configuration.of({"arena": "off"})
    measurer = FakeMeasurer(thread_cost)
    search = build_search(measurer, thread_space(), first=[outside, inside, BASELINE, inside])
    search.run(30, None)
    assert measurer.searched[:3] == [BASELINE, outside, inside]
    assert len(measurer.searched) == len(set(measurer.searched))
    assert [t.configuration for t in search.trials[:3]] == measurer.searched[:3]


def test_twins_of_graph_halves_are_not_asked_for() -> None:
    asked: list[Configuration] = []

    class Duplicates(FakeMeasurer):
        def canonical(self, configuration: Configuration) -> Configuration:
            asked.append(configuration)
            values = configuration.to_json()
            values.pop("per_channel", None)
            return Configuration.of(values)

    within = space(
        parameter("precision", "fp32", "int8_dynamic"),
        parameter("per_channel", False, True),
        parameter("arena", "on", "off", "same_as_requested"),
        parameter("intra_op_num_threads", 0, 1, 2, 4),
    )
    search = build_search(Duplicates(thread_cost), within)
    search.run(100, None)
    assert len(search.trials) == 24
    halves = [c.graph for c in asked if "per_channel" in c.to_json()]
    assert len(halves) == len(set(halves))
