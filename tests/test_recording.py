"""Recorded tables, and the measurer that answers from them."""

import gzip
import itertools
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from fakes import measurement, refusal, thread_cost, thread_space
from recording import Header, Numbers, read
from replay import ReplayMeasurer

from autotune.deploy.config import Environment
from autotune.deploy.records import to_plain
from autotune.measure.outcome import FINAL_COMPARISON, SEARCH, Effort, Failure, Measurement
from autotune.space.configuration import BASELINE, Configuration

ARENA = Configuration.of({"arena": "off"})
OTHER = Configuration.of({"arena": "same_as_requested"})
ONE = Configuration.of({"intra_op_num_threads": 1})

TABLES = sorted(Path(__file__).parent.parent.glob("benchmarks/dev/tables/**/*.jsonl.gz"))


def _header() -> Header:
    return Header(
        model="tiny.onnx",
        model_sha256="0" * 64,
        workload="w",
        recorded="2026-11-21",
        environment=Environment(
            autotune="0.1.0", onnxruntime="1.0", cpu="a cpu", cores=2, fingerprint="f"
        ),
        machine="a machine",
        reference_ms=10.0,
        max_error=0.05,
        space=thread_space(),
    )


def _line(configuration: Configuration, **values: object) -> str:
    return json.dumps({"configuration": configuration.to_json(), **values})


def _numbers(latency_ms: float, memory_mib: float = 100.0, error: float = 0.0) -> dict[str, float]:
    return asdict(Numbers.of(measurement(latency_ms, memory_mib, error)))


def _write(path: Path, *lines: str, end: str = "\n") -> Path:
    text = "\n".join([json.dumps(_header().to_json()), *lines]) + end
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["table.jsonl", "table.jsonl.gz"])
def test_a_recording_is_read(tmp_path: Path, name: str) -> None:
    path = _write(
        tmp_path / name,
        _line(BASELINE, numbers=_numbers(10.0)),
        *(_line(ARENA, numbers=_numbers(v)) for v in (8.0, 9.0, 30.0)),
        _line(ONE, failure=to_plain(refusal())),
        _line(OTHER, same_as=ARENA.to_json()),
    )
    recording = read(path)
    assert recording.header.to_json() == _header().to_json()
    assert recording.space.configurations == thread_space().configurations
    assert recording.truth[ARENA].latency_ms == 9.0
    assert recording.failed == {ONE: refusal()}
    assert recording.duplicates == {OTHER: ARENA}
    assert len(recording) == 4


def _table(path: Path) -> Path:
    """Writes a table of the whole thread space with some scatter and wrong answers."""
    lines = []
    lucks = itertools.cycle([0.97, 0.99, 1.01, 1.03])
    for configuration in thread_space().configurations or ():
        cost = thread_cost(configuration)
        assert not isinstance(cost, Failure)
        wrong = 0.3 if configuration == OTHER else 0.0
        lines += [
            _line(configuration, numbers=_numbers(cost[0] * luck, cost[1], wrong))
            for luck in (next(lucks), 0.99, 1.0, 1.0, 1.01)
        ]
    return _write(path, *lines)


def test_a_replay_has_the_luck_that_was_recorded(tmp_path: Path) -> None:
    recording = read(_table(tmp_path / "table.jsonl"))

    def latencies(seed: int, effort: Effort = SEARCH) -> list[float]:
        measurer = ReplayMeasurer(recording, seed)
        outcomes = [measurer.measure(ARENA, effort) for _ in range(50)]
        return [m.latency_ms for m in outcomes if isinstance(m, Measurement)]

    latencies_ms = latencies(0)
    assert latencies_ms == latencies(0) != latencies(1)
    assert len(set(latencies_ms)) > 3
    assert sum(latencies_ms) / 50 == pytest.approx(recording.truth[ARENA].latency_ms, rel=0.01)
    longer = latencies(0, FINAL_COMPARISON)
    assert max(longer) - min(longer) < 0.5 * (max(latencies_ms) - min(latencies_ms))


@pytest.mark.parametrize("path", TABLES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_table_is_one_of_its_whole_space(path: Path) -> None:
    """Its parameters are those of today, so that `search.py` can search it."""
    recording = read(path)
    assert recording.space.configurations is not None
    assert len(recording) == len(recording.space.configurations)
