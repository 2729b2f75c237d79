"""Configurations under an offered load: who keeps up, percentiles, verdicts, and the table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes import refusal
from test_compare import FakeSessions, save_model, write_config
from test_open_loop import SimulatedClock
from views import lines_of

from autotune.deploy.config import Serving
from autotune.deploy.cpu import usable_cores
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, RequestError
from autotune.facts.inputs import workload_for
from autotune.measure.configuration_run import LoadMeasurement
from autotune.measure.open_loop import open_loop
from autotune.measure.outcome import Failure, Fidelity
from autotune.report.comparison import view_under_load
from autotune.results.compare import (
    ROUNDS,
    LoadComparison,
    MakeMeasurer,
    UnderLoad,
    compare_under_load,
    requests_of_a_round,
)
from autotune.results.gate import exit_code, judge
from autotune.results.subjects import lineup_of

Service = Callable[[int], float | Failure]
"""The service time in seconds of a session with so many threads, or why it fails."""


class FakeServers(FakeSessions):
    """A measurer whose servers take a known time, on a simulated clock."""

    def __init__(self, service: Service) -> None:
        super().__init__(lambda *_: refusal())
        self.schedules: dict[int, list[Sequence[float]]] = {}
        self._service = service

    def measure_open_loop(
        self, path: Path, config: SessionConfig, arrivals_s: Sequence[float], *, sessions: str
    ) -> LoadMeasurement | Failure:
        threads = int(config.options.get("intra_op_num_threads", 0))
        self.schedules.setdefault(threads, []).append(arrivals_s)
        service_s = self._service(threads)
        if isinstance(service_s, Failure):
            return service_s
        clock = SimulatedClock()
        loop = open_loop([lambda _: clock.spend(service_s)], arrivals_s, clock)
        fidelity = Fidelity(error=0.01, cosine=1.0, max_difference=0.0, agreement=None)
        return LoadMeasurement(fidelity=fidelity, loop=loop)


def make_fake(service: Service) -> tuple[FakeServers, MakeMeasurer]:
    fake = FakeServers(service)
    return fake, lambda *_, **__: fake  # type: ignore[return-value]


def _compare(
    *configs: Path, make: MakeMeasurer, baseline: Path | None = None, **options: Any
) -> LoadComparison:
    lineup = lineup_of(configs, None, baseline)
    given: dict[str, Any] = {
        "rate_per_s": 100.0,
        "clients": 1,
        "max_error": 0.2,
        "on_step": lambda _done, _total: None,
    }
    workload = workload_for(lineup.model, None, {})
    return compare_under_load(lineup, workload, make_measurer=make, **{**given, **options})


def make_row(name: str = "best.json", **changes: Any) -> UnderLoad:
    parts: dict[str, Any] = {
        "kept_up": True,
        "p50_ms": 2.0,
        "p90_ms": 3.0,
        "p99_ms": 4.0,
        "achieved_per_s": 100.0,
        "requests": 1000,
        "error": 0.01,
        "coverage": None,
    }
    return UnderLoad(name=name, **{**parts, **changes})


OVERLOADED: dict[str, Any] = {
    "kept_up": False,
    "p50_ms": None,
    "p90_ms": None,
    "p99_ms": None,
    "achieved_per_s": 62.5,
}


def make_load_comparison(*configs: UnderLoad, **failures: Failure) -> LoadComparison:
    return LoadComparison(
        offered_per_s=100.0,
        clients=2,
        rounds=5,
        baseline=make_row("the default"),
        configs=configs,
        failures=failures,
        model="model.onnx",
        untouched=True,
        error_data="generated",
        max_error=0.05,
    )


def test_latencies_are_those_of_the_queue(tmp_path: Path) -> None:
    """A service of 5 ms at half its capacity waits for 2.5 ms; one of 12 ms does not keep up."""
    config = write_config(save_model(tmp_path), threads=1)
    fake, make = make_fake(lambda threads: 0.005 if threads else 0.012)
    comparison = _compare(config, make=make)
    (own,) = comparison.configs
    assert own.kept_up
    assert own.requests == 4500
    assert own.p50_ms is not None
    assert own.p90_ms is not None
    assert 4.99 < own.p50_ms < 7.5 < own.p90_ms
    baseline = comparison.baseline
    assert (baseline.name, baseline.kept_up) == ("the default", False)
    assert (baseline.p50_ms, baseline.p90_ms, baseline.p99_ms) == (None, None, None)
    assert baseline.achieved_per_s == pytest.approx(1 / 0.012, rel=0.02)
    assert fake.closed


def test_the_clients_are_those_that_a_config_was_tuned_for(tmp_path: Path) -> None:
    """One for each core where it was tuned for a single caller; batches are refused."""
    model = save_model(tmp_path)
    one = write_config(model, "one.json", threads=1)
    four = write_config(model, "four.json", threads=1, serving=Serving(clients=4))
    batch = write_config(model, "batch.json", threads=1, serving=Serving(clients=1, batch=8))
    _, make = make_fake(lambda _: 0.001)
    assert _compare(one, make=make, clients=None).clients == usable_cores()
    assert _compare(four, make=make, clients=None).clients == 4
    assert _compare(one, four, make=make, clients=3).clients == 3
    with pytest.raises(RequestError, match="tuned for batches of 8"):
        _compare(batch, make=make)


def test_each_round_has_one_schedule_for_all(tmp_path: Path) -> None:
    config = write_config(save_model(tmp_path), threads=1)
    fake, make = make_fake(lambda _: 0.001)
    steps: list[tuple[int, int]] = []
    _compare(config, make=make, on_step=lambda done, total: steps.append((done, total)))
    assert fake.schedules[0] == fake.schedules[1]
    assert len({tuple(schedule) for schedule in fake.schedules[0]}) == ROUNDS
    assert steps == [(done, 2 * ROUNDS) for done in range(1, 2 * ROUNDS + 1)]


def test_a_config_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    paths = [write_config(model, f"{n}.json", threads=n) for n in (1, 2)]
    fake, make = make_fake(lambda threads: refusal("gone") if threads == 1 else 0.001)
    comparison = _compare(*paths, make=make)
    assert [row.name for row in comparison.configs] == [str(paths[1])]
    assert comparison.failures[str(paths[0])].message == "gone"
    assert len(fake.schedules[1]) == 1
    with pytest.raises(CannotMeasureError, match="the baseline failed: gone"):
        _compare(paths[1], make=make, baseline=paths[0])
    assert fake.closed


@pytest.mark.parametrize(
    ("rate_per_s", "requests"), [(1000, 2000), (100, 900), (20, 200), (0.1, 6), (1_000_000, 20_000)]
)
def test_slow_rates_take_longer_to_have_enough_requests(rate_per_s: float, requests: int) -> None:
    assert requests_of_a_round(rate_per_s, clients=3) == requests


def test_a_config_that_does_not_keep_up_breaks_the_gate() -> None:
    comparison = make_load_comparison(make_row(), make_row("slow.json", **OVERLOADED))
    verdicts = judge(comparison)
    broken = [verdict for verdict in verdicts if not verdict.kept]
    assert [(verdict.config, verdict.limit) for verdict in broken] == [("slow.json", "rate")]
    assert broken[0].words == "answers 62.5 of 100 requests a second"
    assert exit_code(verdicts) == 3
    assert exit_code(judge(make_load_comparison(make_row()))) == 0


def test_wrong_answers_break_the_gate_under_load_too() -> None:
    strict = replace(make_load_comparison(make_row()), max_error=0.005)
    assert exit_code(judge(strict)) == 3
    comparison = make_load_comparison(make_row(error=0.0), gone=refusal())
    assert exit_code(judge(comparison)) == 4


def _shown(comparison: LoadComparison) -> str:
    verdicts = judge(comparison)
    return "\n".join(lines_of(view_under_load(comparison, verdicts)))


def test_a_rate_that_is_too_high_is_said_and_not_shown_as_a_latency() -> None:
    text = _shown(make_load_comparison(make_row("slow.json", **OVERLOADED)))
    row = next(line for line in text.splitlines() if line.startswith("slow.json "))
    assert row.split()[1:5] == ["–", "–", "–", "62.5"]
    assert row.endswith("does not keep up")
    assert "the queue grows" in text
    assert "too few requests" not in text


def test_a_percentile_of_too_few_requests_is_left_out() -> None:
    text = _shown(make_load_comparison(make_row(p99_ms=None)))
    assert "too few requests" in text
    assert "the queue grows" not in text
