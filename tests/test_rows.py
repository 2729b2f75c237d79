"""The configurations of a study as the page lists them."""

from dataclasses import replace

import pages
import pytest
from fakes import measurement

from autotune.report.page.rows import conditions_of, rows_of
from autotune.results.result import StudyResult
from autotune.study.options import StudyOptions


def test_every_configuration_has_its_state() -> None:
    states = [row.state for row in rows_of(pages.state(pages.result()))]
    assert states == ["default", "chosen", "front", "stopped", "rejected", "failed"]


def test_only_the_final_comparison_confirms() -> None:
    rows = rows_of(pages.state(pages.result()))
    assert [row.confirmed for row in rows] == [True, True, True, False, False, False]
    assert rows[1].values["latency_ms"] == 5.5
    assert rows[1].measurement is not None
    assert rows[1].measurement.latency_ms == 5.0


@pytest.mark.parametrize("made", [None, pages.result(complete=False)], ids=["runs", "cut short"])
def test_nothing_is_confirmed_without_a_final_comparison(made: StudyResult | None) -> None:
    assert not any(row.confirmed for row in rows_of(pages.state(made)))


def test_estimates_are_on_the_scale_of_the_final_comparison() -> None:
    slow = [
        replace(t, outcome=measurement(2 * t.measurement.latency_ms, 99.0))
        for t in pages.trials()
        if t.measurement is not None
    ]
    rows = rows_of(pages.state(pages.result(), trials=tuple(slow)))
    assert rows[0].values["latency_ms"] == pages.BASE_MS
    assert rows[3].values["latency_ms"] == pytest.approx(30.0)
    assert rows[3].speedup is not None
    assert rows[3].speedup.value == pytest.approx(1 / 3)


def test_reasons_are_given() -> None:
    reasons = [row.reason for row in rows_of(pages.state(pages.result()))]
    assert reasons == [
        "",
        "",
        "",
        "clearly dominated by others",
        "error 0.2, limit 0.05",
        "refused: no <b>kernel</b>",
    ]


def test_what_the_final_comparison_measured_besides_is_confirmed() -> None:
    made = pages.result(others=(pages.member(3, {"arena": "off"}, 20.0, 99.0),))
    row = rows_of(pages.state(made))[3]
    assert (row.state, row.confirmed, row.values["latency_ms"]) == ("compared", True, 20.0)


def test_the_conditions_name_what_was_asked_for() -> None:
    """What differs from the default, and never the password of the storage."""
    options = StudyOptions.of("/models/tiny.onnx", trials=20, clients=4, metric="judge:top1")
    asked = replace(options, storage="postgresql://me:s3cr3t@host/name")
    conditions = conditions_of(pages.state(options=asked))
    assert conditions["options"] == "trials=20, prefer=throughput, clients=4, metric=judge:top1"
    assert "s3cr3t" not in str(conditions)
