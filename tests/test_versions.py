"""One model on several releases of ONNX Runtime: growth of memory, and which release did it."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from command_line import run
from fakes import measurement
from made_runtimes import FORWARDING
from test_compare import FakeSessions

from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.measure.leak import Leak, measure_leak
from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.results.compare import compare
from autotune.results.subjects import lineup_of, subject_of
from autotune.results.versions import ANSWERS, FAILURE, LEAK, SPEED, Bisection, ReleaseChange
from autotune.runtimes import environments
from autotune.runtimes.names import Release

STEADY = Leak.of([1000.0] * 17, 100)
LEAKING = Leak.of([1000.0 + 50 * n + n % 3 for n in range(17)], 100)


_LEAKY = (
    FORWARDING
    + """
kept, run = [], real.InferenceSession.run
def leak(self, *arguments, **named):
    kept.append(b"x" * 100_000)
    return run(self, *arguments, **named)
real.InferenceSession.run = leak
"""
)


@pytest.mark.process
def test_a_planted_leak_is_measured(tmp_path: Path) -> None:
    """A runtime whose sessions keep 0.1 MB of each run."""
    (tmp_path / "site" / "onnxruntime").mkdir(parents=True)
    (tmp_path / "site" / "onnxruntime" / "__init__.py").write_text(_LEAKY)
    path = tmp_path / "transformer.onnx"
    sample_models.write("transformer", path)
    workload = generate(lineup_of([path], None, None).model, {})
    leak = measure_leak(path, SessionConfig(), workload, tmp_path / "site")
    assert isinstance(leak, Leak), leak
    assert leak.is_leak
    assert leak.kib_per_run == pytest.approx(100_000 / 1024, rel=0.15)


Cost = Callable[[int], Measurement | Failure]
"""What comes of the release of that minor version."""


class Releases(FakeSessions):
    """A measurer that computes by the release, with a hundredth of noise."""

    def __init__(self, cost: Cost) -> None:
        super().__init__(lambda *_: measurement(1.0))
        self._cost_of = cost
        self._noise = random.Random(1)

    def measure_session(self, *_: Any, site: Path | None = None, **__: Any) -> Outcome:
        assert site is not None
        outcome = self._cost_of(int(site.name.split(".")[1]))
        if isinstance(outcome, Failure):
            return outcome
        factor = self._noise.gauss(1, 0.01)
        ratio = replace(outcome.ratio, value=outcome.ratio.value * factor)
        return replace(outcome, ratio=ratio, latency_ms=outcome.latency_ms * factor)


def _bisect(
    tmp_path: Path, cost: Cost, leaking: set[int] | None = None, last: int = 6
) -> tuple[list[ReleaseChange], list[str]]:
    """Returns what changed from release 1.1.0 on, and the releases that were looked at."""
    path = tmp_path / "cnn.onnx"
    sample_models.write("cnn", path)
    lineup = lineup_of([path], None, None)
    releases = [Release("onnxruntime", f"1.{minor}.0") for minor in range(1, last + 1)]
    looked_at: list[str] = []

    def leak(*arguments: Any) -> Leak:
        minor = int(arguments[-1].name.split(".")[1])
        return LEAKING if minor in (leaking or ()) else STEADY

    measurer = Releases(cost)
    bisection = Bisection(
        subject_of(path),
        lineup,
        generate(lineup.model, {}),
        releases,
        lambda release: looked_at.append(release.version),
        lambda *_: None,
        lambda _: None,
        partial(compare, make_measurer=lambda *_, **__: cast(Any, measurer)),
        leak,
    )
    return bisection.changes(), looked_at


def test_a_slowdown_is_attributed_to_its_release(tmp_path: Path) -> None:
    """One of 5 %, of six releases; not all of them are measured."""
    changes, looked_at = _bisect(tmp_path, lambda n: measurement(10.5 if n >= 4 else 10.0))
    (change,) = changes
    assert (change.kind, change.before, change.release) == (
        SPEED,
        "onnxruntime==1.3.0",
        "onnxruntime==1.4.0",
    )
    assert change.confirmed
    assert change.speedup is not None
    assert change.speedup.high < 1
    assert len(set(looked_at)) < 6


def test_each_change_is_attributed_to_its_own_release(tmp_path: Path) -> None:
    changes, _ = _bisect(
        tmp_path,
        lambda n: measurement(10.0, error=0.2 if n >= 5 else 0.0),
        leaking={3, 4, 5, 6},
    )
    assert {change.kind: change.release for change in changes} == {
        LEAK: "onnxruntime==1.3.0",
        ANSWERS: "onnxruntime==1.5.0",
    }
    assert all(change.confirmed for change in changes)


def test_a_release_that_fails_is_found(tmp_path: Path) -> None:
    def cost(minor: int) -> Measurement | Failure:
        if minor >= 2:
            return Failure(kind="crashed", phase="open", message="SIGSEGV")
        return measurement(10.0)

    (change,) = _bisect(tmp_path, cost)[0]
    assert (change.kind, change.release, change.failure) == (
        FAILURE,
        "onnxruntime==1.2.0",
        "SIGSEGV",
    )


def test_equal_releases_raise_no_alarm(tmp_path: Path) -> None:
    """Twenty times over; a release beside itself is one of them."""
    for number in range(20):
        last = 1 if number == 0 else 2
        assert _bisect(tmp_path, lambda _: measurement(10.0), last=last)[0] == []


def test_a_wrong_range_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cnn.onnx"
    sample_models.write("cnn", path)
    for text, words in (
        ("1.2..1.3", "write the first and the last release"),
        ("onnxruntime==1.28.0..1.22.0", "is no later release"),
        ("onnxruntime==1.22.0..onnxruntime-gpu==1.28.0", "is no later release"),
    ):
        done = run(tmp_path, "bisect", path.name, "--runtimes", text)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    done = run(tmp_path, "compare", path.name, "b.json", "--runtimes", "onnxruntime==1.2.0")
    assert (done.returncode, "name one file" in done.stderr) == (2, True)


def test_releases_of_the_index_are_put_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    offered = ["1.9.0", "1.10.0", "1.11.0rc1", "1.11.0", "1.8.0", "1.12.0"]
    monkeypatch.setattr(environments, "versions", lambda *_: offered)
    first, last = Release("onnxruntime", "1.9.0"), Release("onnxruntime", "1.11.0")
    found = environments.releases_between(first, last)
    assert [release.version for release in found] == ["1.9.0", "1.10.0", "1.11.0"]
