"""The limits of a study: which measurements keep them, and how far others break them."""

import math
from dataclasses import replace

import pytest
from fakes import measurement, under_load

from autotune.results.score import most_held_mib
from autotune.search.objective import LOADED_DEFAULT
from autotune.search.trial import Limits, latency_limit

_LOADED = under_load(measurement(10.0), 4)  # its 99th percentile is 20 ms


@pytest.mark.parametrize(("max_p99_ms", "kept"), [(21.0, True), (19.0, False), (None, True)])
def test_the_99th_percentile_has_a_limit(max_p99_ms: float | None, kept: bool) -> None:
    limits = Limits(max_p99_ms=max_p99_ms)
    assert limits.admit_measurement(_LOADED) is kept
    assert (limits.violations(_LOADED)["latency"] <= 0) is kept


def test_an_unknown_percentile_keeps_no_limit() -> None:
    """Too few runs prove nothing; a lower percentile above the limit proves that it is broken."""
    limits = Limits(max_p99_ms=21.0)
    unknown = replace(_LOADED, p99_ms=None, p90_ms=15.0)
    assert not limits.admit_measurement(unknown)
    assert limits.latency_excess(unknown) < 0
    assert limits.latency_excess(replace(unknown, p90_ms=22.0)) > 0


def test_an_unknown_percentile_is_left_to_the_final_comparison() -> None:
    limits = Limits(max_p99_ms=21.0, max_memory_mib=200.0)
    unknown = replace(_LOADED, p99_ms=None, p90_ms=15.0)
    assert limits.may_admit(unknown)
    assert not limits.may_admit(replace(unknown, p90_ms=22.0))
    assert not replace(limits, max_memory_mib=50.0).may_admit(unknown)
    wrong = replace(unknown, fidelity=replace(unknown.fidelity, error=0.2))
    assert not limits.may_admit(wrong)
    assert limits.may_admit_cost(wrong)


def test_the_limit_of_latency_is_that_of_the_tail_where_throughput_is_sought() -> None:
    assert latency_limit(Limits(), LOADED_DEFAULT, 20.0) == Limits(max_p99_ms=20.0)
    assert latency_limit(Limits(), ["latency_ms"], 20.0) == Limits(max_latency_ms=20.0)


def test_a_limit_of_the_tail_needs_runs() -> None:
    """There is no estimate of the 99th percentile below 662 runs."""
    assert Limits(max_p99_ms=20.0).fewest_runs == 662
    assert Limits(max_latency_ms=20.0).fewest_runs == 0


def test_held_memory_has_a_limit_of_its_own() -> None:
    """It counts with the memory among the constraints, whose order samplers rely on."""
    limits = Limits(max_held_memory_mib=90.0)
    lean = measurement(10.0, 80.0)
    assert limits.admit_measurement(lean)
    held = replace(lean, memory=replace(lean.memory, resident_mib=50.0 + 100.0))
    assert not limits.admit_measurement(held)
    assert not limits.may_admit(held)
    assert limits.violations(held)["memory"] == pytest.approx((1.05 * 100 + 1) / 90 - 1)
    assert list(limits.violations(held)) == list(Limits().violations(lean))


@pytest.mark.parametrize(("resident_mib", "kept"), [(94.0, True), (95.0, False), (97.0, False)])
def test_held_memory_keeps_a_distance_from_its_limit(resident_mib: float, kept: bool) -> None:
    """It is admitted in the search where the final comparison can promise that it keeps it."""
    limits = Limits(max_held_memory_mib=100.0)
    measured = measurement(10.0)
    held = replace(measured, memory=replace(measured.memory, resident_mib=50.0 + resident_mib))
    promised_mib = most_held_mib([held, held])
    assert promised_mib is not None
    assert (promised_mib <= 100.0) is kept
    assert limits.admit_measurement(held) is kept
    assert limits.may_admit(held) is kept
    assert (limits.violations(held)["memory"] <= 0) is kept
    assert (limits.broken(held) == "") is kept


def test_a_quantity_that_was_not_measured_breaks_its_limit() -> None:
    assert not Limits(max_memory_mib=100.0).admit({"latency_ms": 1.0})
    assert Limits(max_memory_mib=100.0).admit({"peak_memory_mib": 99.0})


def test_limits_and_what_breaks_them_in_words() -> None:
    limits = Limits(max_error=0.1, max_memory_mib=50.0, max_latency_ms=5.0)
    assert limits.words == "error 0.1, peak memory 50.0 MiB, latency 5 ms"
    assert limits.broken(measurement(7.0, 60.0, error=0.5)) == (
        "error 0.5, limit 0.1; peak memory 60.0 MiB, limit 50.0 MiB; latency 7 ms, limit 5 ms"
    )
    assert limits.broken(measurement(5.0, 50.0, error=0.1)) == ""
    assert Limits(max_error=math.inf, max_drop=0.01).words == "fall of the metric 0.01"
