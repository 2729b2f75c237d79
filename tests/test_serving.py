"""Studies of several clients: what is sought, what is selected, and what is said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import optuna
import pytest
from fakes import FakeWorld, setting, thread_space
from views import words_of

from autotune.deploy.config import Serving, TunedConfig
from autotune.errors import RequestError
from autotune.report.page.front_figure import front_figure
from autotune.report.page.live import LivePage
from autotune.report.page.rows import conditions_of, rows_of
from autotune.report.page.state import read_state
from autotune.report.page.writing import answer_of
from autotune.report.result import view_ending, view_result
from autotune.results.result import StudyResult, choose_member
from autotune.space.configuration import Configuration
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.storage.identity import digest, identity_of

_SPACE = """
[parameters.intra_op_num_threads]
values = [0, 1]
default = 0
[parameters.sessions]
values = ["shared", "per_client"]
default = "shared"
needs = ["several_clients"]
"""


def _cost(configuration: Configuration) -> tuple[float, float]:
    """Returns the cost of a model that one thread for each client serves best."""
    values = configuration.to_json()
    latency_ms = 10.0 if values.get("intra_op_num_threads", 0) == 0 else 6.0
    fewer_ms, memory = (1.0, 150.0) if values.get("sessions") == "per_client" else (0.0, 100.0)
    return latency_ms - fewer_ms, memory


@pytest.fixture
def space(tmp_path: Path) -> str:
    file = tmp_path / "serving.toml"
    file.write_text(_SPACE, encoding="utf-8")
    return str(file)


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> StudyResult:
    """The result of a study of four clients."""
    folder = tmp_path_factory.mktemp("served")
    file = folder / "serving.toml"
    file.write_text(_SPACE, encoding="utf-8")
    return _tune(tiny_model, str(file), folder / "out", clients=4, max_latency_ms=50.0)


def _tune(model: Path, space: str, out: Path, **options: Any) -> StudyResult:
    return FakeWorld(_cost, on_disk=True).tune(model, space=space, out=out, trials=10, **options)


def test_several_clients_seek_throughput(served: StudyResult) -> None:
    result = served
    assert result.objectives == ("throughput_per_s", "peak_memory_mib")
    assert result.clients == 4
    assert result.best.configuration == {"intra_op_num_threads": 1, "sessions": "per_client"}
    assert result.best.evidence.values["throughput_per_s"] == pytest.approx(4e3 / 5)
    assert result.best.evidence.gains["throughput_per_s"].value == pytest.approx(2.0)
    throughputs = [member.evidence.values["throughput_per_s"] for member in result.members[1:]]
    assert throughputs == sorted(throughputs, reverse=True)
    assert StudyResult.read(result.folder) == result

    config = TunedConfig.read(result.folder / "best.json")
    assert config.serving == Serving(clients=4, sessions="per_client")
    assert config.evidence.throughput_per_s == pytest.approx(800.0)
    assert config.baseline.throughput_per_s == pytest.approx(400.0)
    assert config.evidence.p99_ms == pytest.approx(10.0)


def test_the_storage_maximises_throughput(served: StudyResult) -> None:
    with quiet_optuna(), open_storage(Place.of(None, served.folder)) as database:
        (frozen,) = database.get_all_studies()
        study = optuna.load_study(study_name=frozen.study_name, storage=database)
        directions = [direction.name for direction in study.directions]
        best = max(trial.values[0] for trial in study.trials)
    assert directions == ["MAXIMIZE", "MINIMIZE"]
    assert best == pytest.approx(800.0)
    assert frozen.user_attrs["clients"] == "4"


def test_the_longest_latency_bounds_the_tail(tiny_model: Path, space: str, tmp_path: Path) -> None:
    result = _tune(tiny_model, space, tmp_path / "out", clients=4, max_latency_ms=13.0)
    assert result.limits["max_p99_ms"] == 13.0
    assert result.limits["max_latency_ms"] is None
    assert not result.baseline.admitted
    assert result.best.admitted
    text = words_of(view_ending(result, ""))
    assert "With 4 clients: tuned: 800 samples/s, p99 10 ms; the default: " in text


def test_a_limit_that_nothing_keeps_is_said(tiny_model: Path, space: str, tmp_path: Path) -> None:
    result = _tune(tiny_model, space, tmp_path / "out", clients=4, max_latency_ms=2.0)
    assert result.best is result.baseline
    assert (
        "Nothing that was measured serves 4 clients with a 99th percentile of at most 2 ms."
        in words_of(view_ending(result, ""))
    )


def test_the_number_of_clients_may_be_in_the_space(tiny_model: Path, tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    file.write_text(f"clients = 2\n{_SPACE}", encoding="utf-8")
    assert _tune(tiny_model, str(file), tmp_path / "two").clients == 2
    assert _tune(tiny_model, str(file), tmp_path / "three", clients=3).clients == 3


def test_one_client_has_one_session(tiny_model: Path, space: str, tmp_path: Path) -> None:
    result = _tune(tiny_model, space, tmp_path / "out")
    assert result.objectives == ("latency_ms", "peak_memory_mib")
    assert "sessions" in result.left_out
    assert result.trials == 2
    assert json.loads((tmp_path / "out" / "best.json").read_text("utf-8"))["serving"] is None
    assert all("throughput_per_s" not in member.evidence.gains for member in result.members)


def test_throughput_of_one_client_is_refused(tiny_model: Path, space: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="--clients"):
        _tune(tiny_model, space, tmp_path / "out", objectives=["throughput_per_s"])


def test_another_number_of_clients_is_another_study() -> None:
    studies = [setting(thread_space(), clients=clients) for clients in (1, 2, 4)]
    assert len({digest(identity_of(ctx)) for ctx in studies}) == 3


def test_a_member_is_picked_by_the_tail(served: StudyResult) -> None:
    """`autotune pick --max-latency` bounds the 99th percentile of such a study as well."""
    member = choose_member(served, prefer="memory", max_memory_mib=None, max_latency_ms=13.0)
    assert member.configuration == {"intra_op_num_threads": 1}


def test_the_page_shows_throughput(served: StudyResult) -> None:
    state = read_state(served.folder)
    rows = rows_of(state)
    assert state.limits.max_p99_ms == 50.0
    figure = front_figure(state, rows)
    assert figure is not None
    assert "Lower right is better." in figure.caption
    assert figure.x.low < 400.0 < 800.0 < figure.x.high
    assert "With 4 clients: tuned: " in str(answer_of(state, rows).blocks)
    unfinished = replace(state, result=None)
    assert answer_of(unfinished, rows_of(unfinished)).trial == served.picked
    assert state.options is not None
    asked = conditions_of(state)["options"]
    assert "clients=4" in asked
    assert "max_latency_ms=50.0" in asked


def test_the_page_of_a_running_study_has_what_was_resolved(
    tiny_model: Path, space: str, tmp_path: Path
) -> None:
    live = LivePage(lambda _: None)
    asked = {"clients": 4, "max_latency_ms": 50.0, "on_progress": live}
    _tune(tiny_model, space, tmp_path / "out", **asked)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<dt>limits</dt><dd>error 0.05, 99th percentile 50 ms</dd>" in page
    assert "<dt>objectives</dt><dd>samples/s" in page


def test_the_end_of_a_study_has_throughput_and_tail() -> None:
    default = made_results.member(0, {})
    winner = made_results.member(3, {"intra_op_num_threads": 1}, 2.0)
    evidence = replace(winner.evidence, throughput_per_s=800.0, p99_ms=12.5)
    base = replace(default.evidence, throughput_per_s=400.0, p99_ms=None)
    shown = made_results.result(
        members=(replace(default, evidence=base), replace(winner, evidence=evidence)),
        picked=3,
        objectives=("throughput_per_s", "peak_memory_mib"),
        prefer="throughput",
        effects=(),
        clients=4,
    )
    ending = words_of(view_ending(shown, ""))
    assert "2.00× the throughput of the default (1.98–2.02) with 4 clients" in ending
    assert "With 4 clients: tuned: 800 samples/s, p99 12.5 ms; the default: 400 samples" in ending
    assert " 0 400 · " in ending
    assert "800" in words_of(view_result(shown))
    stays = replace(shown, picked=0)
    unknown = "With 4 clients: the default: 400 samples/s, p99 unknown from so few runs"
    assert unknown in words_of(view_ending(stays, ""))


def _batch_cost(configuration: Configuration) -> tuple[float, float]:
    """Returns the cost of a model that takes 9 ms, and 1 ms more for each sample of a batch."""
    batch = configuration.batch(1)
    return 9.0 + batch, 100.0 + batch


@pytest.mark.parametrize(
    ("max_latency_ms", "size", "throughput_per_s"), [(None, 8, 8 / 17e-3), (26.0, 4, 4 / 13e-3)]
)
def test_the_batch_that_serves_most_within_the_limit_is_emitted(
    tiny_model: Path,
    tmp_path: Path,
    max_latency_ms: float | None,
    size: int,
    throughput_per_s: float,
) -> None:
    """Throughput counts samples; the limit is that of a whole batch, at the 99th percentile."""
    world = FakeWorld(_batch_cost)
    out = tmp_path / "out"
    result = world.tune(
        tiny_model,
        space="session",
        trials=12,
        batch=(1, 2, 4, 8),
        max_latency_ms=max_latency_ms,
        out=out,
    )
    (measurer,) = world.measurers
    first = (measurer.searched or measurer.compared)[1:4]  # a limit makes every measurement longer
    assert [configuration.to_json() for configuration in first] == [{"batch": n} for n in (2, 4, 8)]
    evidence = result.best.evidence
    assert evidence.throughput_per_s == pytest.approx(throughput_per_s)
    assert evidence.speedup.value == pytest.approx(throughput_per_s / 100)
    assert evidence.latency_ms == pytest.approx(9.0 + size)
    config = TunedConfig.read(out / "best.json")
    assert config.serving == Serving(clients=1, batch=size, baseline_batch=1)
    assert StudyResult.read(out) == result
