"""The result of a study: numbers of the search beside those of the final comparison."""

import pytest
from fakes import measurement

from autotune.results.summary import _on_confirmed_scale, _Rated
from autotune.search.trial import Trial
from autotune.space.candidate import BASELINE, Candidate

_ARENA = Candidate.of({"arena": "off"})


def _rated(candidate: Candidate, latency_ms: float, *, confirmed: bool = False) -> _Rated:
    return _Rated(
        trial=Trial(number=0, candidate=candidate, outcome=measurement(latency_ms)),
        values={"latency_ms": latency_ms, "throughput_per_s": 1e3 / latency_ms},
        error=0.0,
        drop=None,
        confirmed=confirmed,
    )


def test_estimates_are_on_the_scale_of_the_final_comparison() -> None:
    """A machine that was half as fast in the search makes no candidate slower than it is."""
    estimated = [_rated(BASELINE, 20.0), _rated(_ARENA, 30.0)]
    scaled = _on_confirmed_scale([_rated(BASELINE, 10.0, confirmed=True)], estimated)
    assert [item.values["latency_ms"] for item in scaled] == [10.0, 15.0]
    assert scaled[1].values["throughput_per_s"] == pytest.approx(1e3 / 15)
    assert _on_confirmed_scale([], estimated) == estimated
