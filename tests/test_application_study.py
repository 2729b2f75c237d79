"""The study of an application: what is replayed, searched together, selected and written."""

import json
import math
import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import command_line
import numpy as np
import onnx
import onnxruntime
import pytest
from fakes import MemoryStorage, in_memory
from test_applications import write_model
from test_config import make_config

from autotune.applications.confirm import (
    Confirmed,
    MemoryLimits,
    Today,
    confirm,
    joined,
    select,
)
from autotune.applications.joint import (
    TODAY,
    JointSearch,
    JointSession,
    JointTrial,
    choices_in_words,
    digest,
    joint_study,
)
from autotune.applications.layout import CALL
from autotune.applications.options import ApplicationOptions
from autotune.applications.own_study import trials_of, write_samples
from autotune.applications.recording import (
    InputShape,
    OpenedSession,
    Process,
    RecordedSession,
    Recording,
    Shape,
)
from autotune.applications.replay import Arrangement, Opening, Played, ReplayMeasurer
from autotune.applications.replies import Replayed
from autotune.applications.schedule import schedule_of
from autotune.applications.study import study_application
from autotune.applications.timing import difference, run_once
from autotune.applications.today import today_parameters, today_session
from autotune.applications.tunable import busiest_process, part_of
from autotune.deploy.application import TunedApplication
from autotune.deploy.config import Interval
from autotune.deploy.files import digest_files
from autotune.deploy.options import Value
from autotune.deploy.passed import Passed, PassedProvider, interface_of
from autotune.deploy.records import to_plain
from autotune.deploy.session import SessionConfig
from autotune.errors import (
    AutotuneError,
    CannotMeasureError,
    ConfigError,
    DataError,
    RequestError,
)
from autotune.facts.feeds import save_samples
from autotune.facts.generated import one_sample
from autotune.facts.model import describe
from autotune.process.child import ChildFailure
from autotune.process.durable import write_json
from autotune.report.application import outcome, view_application, view_recording
from autotune.report.page.application import render_application

PASSED = Passed(
    options={"intra_op_num_threads": 2, "enable_cpu_mem_arena": False},
    entries={"session.intra_op.allow_spinning": "0"},
    dimensions={},
    providers=(PassedProvider(name="CPUExecutionProvider", options={"arena": "kSame"}),),
    disabled_optimizers=(),
    foreign=(),
)
CALLS = np.dtype(
    [
        *(("shape", "<u4"), ("flags", "<u4"), ("thread", "<u8"), ("began_ns", "<u8")),
        *(("ended_ns", "<u8"), ("cpu_began_ns", "<u8"), ("cpu_ended_ns", "<u8")),
        ("own_ns", "<u8"),
    ]
)


def recorded_session(model: Path, name: str = "relu") -> RecordedSession:
    """Returns a session with two shapes: one row, called thrice, and four rows, called once."""
    opened = OpenedSession(
        kind="session",
        number=0,
        sha256=digest_files([model]),
        size_bytes=model.stat().st_size,
        path=str(model),
        is_copied=False,
        passed=PASSED,
        providers=("CPUExecutionProvider",),
        interface=interface_of(onnxruntime.InferenceSession(model)),
        load_ns=1,
        held_kib=0,
        events=0,
    )
    session = RecordedSession(name=name, opened=opened, count=1)
    for rows, calls in ((1, 3), (4, 1)):
        inputs = (InputShape(name="x", dtype="float32", shape=(rows, 64)),)
        session.shapes[inputs] = Shape(inputs=inputs, calls=calls, seconds=0.01 * calls * rows)
    return session


def process_of(session: RecordedSession) -> Process:
    """Returns a process: two threads whose second call waits for the first of the other one."""
    ms = 1_000_000
    rows = [
        (0, 0, 7, 0, 10 * ms, 0, 10 * ms, 0),
        (1, 0, 8, 20 * ms, 50 * ms, 0, 1 * ms, 0),
        (0, 0, 7, 25 * ms, 35 * ms, 14 * ms, 24 * ms, 0),
        (0, 0, 7, 60 * ms, 70 * ms, 24 * ms, 34 * ms, 0),
    ]
    shapes = [(session, shape) for shape in session.shapes.values()]
    return Process(
        program="app.py",
        onnxruntime="",
        calls=np.array(rows, CALLS),
        shapes=shapes,
        numbers=[0] * len(shapes),
    )


def test_a_schedule_keeps_order_threads_and_work(tmp_path: Path) -> None:
    """Calls know what came before them, and how much their thread worked in between."""
    model = write_model(tmp_path / "relu.onnx")
    session = recorded_session(model)
    schedule = schedule_of(process_of(session), {"relu": describe(model)}, lengths_s=[1.0])
    first, other, second, third = schedule.calls
    assert [call.thread for call in schedule.calls] == [0, 1, 0, 0]
    assert (first.after, other.after, second.after, third.after) == (-1, 0, -1, 1)
    assert second.work_s == pytest.approx(0.004)
    assert second.pause_s == pytest.approx(0.011)
    assert [schedule.feeds[call.feed]["x"].shape for call in (first, other)] == [(1, 64), (4, 64)]
    assert schedule.generated == 2
    several = replace(process_of(session), numbers=[0, 3])
    twice = schedule_of(several, {"relu": describe(model)}, lengths_s=[1.0])
    assert twice.sessions == (session, session), "they were open at one time"
    assert [call.session for call in twice.calls] == [0, 1, 0, 0]
    brief = schedule_of(process_of(session), {"relu": describe(model)}, lengths_s=[0.02])
    assert len(brief.calls) < 4
    with pytest.raises(RequestError, match="no call of a session"):
        schedule_of(process_of(session), {}, lengths_s=[1.0])


def test_tools_may_write_beside_a_model(tmp_path: Path) -> None:
    """Quantised models, which have more metadata, stay in the running; nothing may be lost."""
    model = onnx.load(write_model(tmp_path / "model.onnx"))
    plain = interface_of(onnxruntime.InferenceSession(model.SerializeToString()))
    model.metadata_props.add(key="onnx.infer", value="onnxruntime.quant")
    marked = interface_of(onnxruntime.InferenceSession(model.SerializeToString()))
    assert marked.shows(plain)
    assert not plain.shows(marked)
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    fixed = interface_of(onnxruntime.InferenceSession(model.SerializeToString()))
    assert not fixed.shows(marked), "the sizes of outputs are seen as well"


def test_what_an_application_passes_is_a_session(tmp_path: Path) -> None:
    """It is opened as the application opens it, or a sentence says why it cannot be."""
    opened = recorded_session(write_model(tmp_path / "relu.onnx")).opened
    here = ["OpenVINOExecutionProvider", "CPUExecutionProvider"]
    assert today_session(opened, here) == SessionConfig(
        options=PASSED.options, entries=PASSED.entries
    )
    unnamed = replace(opened, passed=replace(PASSED, providers=None), providers=tuple(here))
    assert [name for name, _ in today_session(unnamed, here).providers] == here
    with pytest.raises(ConfigError, match="runs on OpenVINOExecutionProvider, which this ONNX"):
        today_session(unnamed, here[1:])
    assert today_parameters(PASSED) == {
        "intra_op_num_threads": 2,
        "arena": "off",
        "spinning": "off",
    }
    strange = replace(PASSED, foreign=("register_custom_ops_library",))
    with pytest.raises(ConfigError, match="register_custom_ops_library"):
        today_session(replace(opened, passed=strange), here)


def test_samples_are_as_frequent_as_their_calls(tmp_path: Path) -> None:
    """A folder of samples has each shape as often as it was called."""
    model = write_model(tmp_path / "relu.onnx")
    session = recorded_session(model)
    shapes = list(session.shapes.values())
    assert write_samples(shapes, describe(model), tmp_path / "inputs", seed=0) == 4
    with_rows = [np.load(file)["x"].shape[0] for file in sorted((tmp_path / "inputs").iterdir())]
    assert with_rows == [1, 1, 1, 4]
    save_samples([], tmp_path / "empty.npz")
    shapes[0].files.append(tmp_path / "empty.npz")
    assert write_samples(shapes, describe(model), tmp_path / "inputs", seed=0) == 4
    assert trials_of([session], 70) == {"relu": 70}
    assert trials_of([session], 1) == {"relu": 4}, "the first two are the defaults and today's"


class FakeReplays:
    """Replays in which spinning costs half of the time, and an arena half of the memory."""

    baseline = Replayed(seconds=1.0, cpu_s=2.0, peak_mib=100.0, held_mib=80.0)

    def __init__(self, *_: Any) -> None:
        self.count = 0

    def measure(self, arrangement: Arrangement, turns: int, _: float = 0.0) -> Played | str:
        self.count += 1
        ratio, memory = 1.0, 100.0
        for opening in arrangement.openings.values():
            if opening.session.options.get("intra_op_num_threads") == 1:
                ratio *= 0.6
            if opening.session.env_allocator:
                memory *= 0.5
            if opening.session.options.get("enable_mem_pattern") is False:
                return "crashed: it did"
        ratios = tuple(ratio * (1 + 0.001 * turn) for turn in range(turns))
        return Played(
            ratios=ratios, seconds=ratio, cpu_s=1.0, peak_mib=memory, held_mib=memory, load_s=0.1
        )

    def renew(self) -> Replayed:
        return self.baseline

    def close(self) -> None:
        return


def test_the_joint_search_finds_what_helps(quiet: None) -> None:
    """Equal points are measured once, failures are told, and good values are found."""
    opening = Opening(model=Path("m.onnx"), session=SessionConfig())
    parts = [JointSession(name=name, members={TODAY: opening}) for name in ("a", "b")]
    search = JointSearch(parts=parts, cores=2, seed=1)
    measurer = FakeReplays()
    search.run(measurer, 40, lambda *_: None, joint_study(None, search, "test"))
    assert measurer.count == len(search.trials) == 40
    labels = [trial.label for trial in search.trials]
    named = ["own best without spinning", "own best in one arena", "own best on one pool"]
    assert labels[:4] == [*named, ""]
    played = [trial.played for trial in search.trials if trial.played]
    assert min(own.ratio for own in played) < 0.7
    assert min(own.peak_mib for own in played) <= 50
    assert any(trial.failure for trial in search.trials)
    waits = JointSession(name="a", members={TODAY: opening}, least_threads=2)
    assert 1 not in search._values(waits)["a.threads"], "run_async needs two"


def test_points_are_kept_where_members_come_and_go(quiet: None) -> None:
    """A model's own study that goes on may offer other members."""
    opening = Opening(model=Path("m.onnx"), session=SessionConfig())
    other = Opening(model=Path("n.onnx"), session=SessionConfig())
    storage = MemoryStorage()

    def searched(label: str) -> tuple[int, int]:
        members = {TODAY: opening, label: other}
        search = JointSearch(parts=[JointSession(name="a", members=members)], cores=1, seed=1)
        measurer = FakeReplays()
        study = joint_study(storage, search, "the same")
        search.run(measurer, 8, lambda *_: None, study)
        return measurer.count, len(search.trials)

    assert searched("trial 1") == (8, 8)
    count, trials = searched("trial 2")
    assert trials == 8
    assert count < 8, "points of today's member are not measured again"


def test_a_pool_has_no_choice_of_spinning() -> None:
    """ONNX Runtime does not read a session's choice there."""
    opening = Opening(model=Path("m.onnx"), session=SessionConfig())
    part = JointSession(name="a", members={TODAY: opening}, count=2)
    search = JointSearch(parts=[part], cores=2, seed=0)
    quiet: dict[str, Value] = {"a.spinning": "off"}
    on_pool = search.arrangement({"pool": 2})
    assert digest(search.arrangement({"pool": 2, **quiet})) == digest(on_pool)
    assert digest(search.arrangement(quiet)) != digest(search.arrangement({}))
    assert choices_in_words({"pool": 2, **quiet}, ["a"]) == "one pool of 2 threads"
    assert "pool" in search.space(), "one session, but open twice"


def test_a_session_that_a_fork_calls_keeps_its_threads() -> None:
    """The fork has none of the threads that its parent's sessions started."""
    parallel: dict[str, Value] = {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 2}
    sessions = {
        "trial 1": SessionConfig(options={**parallel, "enable_mem_pattern": False}),
        "trial 2": SessionConfig(providers=(("OpenVINOExecutionProvider", {}),)),
    }
    members = [
        SimpleNamespace(label=label, model=Path("m.onnx"), session=own)
        for label, own in sessions.items()
    ]
    item: Any = SimpleNamespace(
        session=SimpleNamespace(name="a", is_forked=True, is_asynchronous=False),
        model=SimpleNamespace(path=Path("m.onnx")),
        today=SessionConfig(options={"intra_op_num_threads": 1}),
        study=SimpleNamespace(members=members),
    )
    part = part_of(item, ApplicationOptions(recording=Path("app.rec")), 2)
    assert list(part.members) == [TODAY, "trial 1"]
    assert part.members["trial 1"].session.options == {
        "intra_op_num_threads": 1,
        "enable_mem_pattern": False,
    }
    search = JointSearch(parts=[part], cores=4, seed=0)
    assert search.space()["a.threads"] == [0]
    assert "pool" not in search.space()
    assert not any("pool" in point for point in search.starting_points().values())


def confirmed(low: float, high: float, peak_mib: float) -> Confirmed:
    """Returns an arrangement with these numbers."""
    value = (low + high) / 2
    return Confirmed(
        label="x",
        choices={},
        ratio=Interval(value=value, low=low, high=high),
        seconds=value,
        cpu_s=1.0,
        peak_mib=peak_mib,
        held_mib=peak_mib,
        peak_ratio=Interval(
            value=peak_mib / 100, low=0.99 * peak_mib / 100, high=1.01 * peak_mib / 100
        ),
    )


def test_nothing_within_the_noise_is_selected() -> None:
    """An arrangement is faster beyond its interval, or leaner and no slower; limits count."""
    today = Today(seconds=1.0, cpu_s=1.0, peak_mib=100.0, held_mib=100.0)
    none = MemoryLimits()
    noise, fast = confirmed(0.9, 1.05, 100), confirmed(0.7, 0.9, 100)
    lean, slow = confirmed(0.95, 1.05, 50), confirmed(1.3, 1.5, 10)
    assert select(today, [noise, slow], "latency", none) is None
    assert select(today, [confirmed(0.984, 0.986, 96)], "latency", none) is None, "below 2 and 5 %"
    as_fast = confirmed(0.71, 0.91, 90)
    assert select(today, [fast, as_fast], "latency", none) is as_fast, "leaner at equal speed"
    assert select(today, [noise, fast, lean], "latency", none) is fast
    assert select(today, [fast, lean], "memory", none) is lean
    assert select(today, [fast, slow], "memory", none) is slow
    assert select(today, [fast, lean], "latency", MemoryLimits(peak_mib=60)) is lean
    assert select(today, [fast, slow], "latency", MemoryLimits(held_mib=60)) is slow


@pytest.mark.parametrize("is_shared", [False, True])
def test_luck_is_seldom_selected(is_shared: bool) -> None:
    """Of 200 studies of six arrangements that are as today's, 5 % select one; not of a true gain.

    Today's process may be a lucky one as well, which all ratios of a round share.
    """
    random, scatter = np.random.default_rng(0), 0.03
    entrants = {str(n): Arrangement(openings={}, choices={}) for n in range(6)}
    orders: set[tuple[int, ...]] = set()

    class Luck(FakeReplays):
        """Replays that differ by chance alone, but for what the first entrant gains."""

        gain = 1.0

        def renew(self) -> Replayed:
            self.reference = math.exp(is_shared * random.normal(0, scatter))
            self.order: list[int] = []
            return replace(self.baseline, peak_mib=100 * math.exp(random.normal(0, scatter)))

        def measure(self, arrangement: Arrangement, turns: int, _: float = 0.0) -> Played:
            number = next(n for n, own in enumerate(entrants.values()) if own is arrangement)
            self.order.append(number)
            if len(self.order) == len(entrants):
                orders.add(tuple(self.order))
            lucky, peak = np.exp(random.normal(0, scatter, 2))
            ratio = lucky / self.reference / (1.0 if number else self.gain)
            mib = 100 * peak
            return Played(
                ratios=(ratio,), seconds=ratio, cpu_s=1.0, peak_mib=mib, held_mib=mib, load_s=0.1
            )

    def selected(studies: int) -> int:
        results = (confirm(measurer, entrants, lambda *_: None, 1) for _ in range(studies))
        return sum(select(*result, "latency", MemoryLimits()) is not None for result in results)

    measurer = Luck()
    assert selected(200) <= 10
    assert len(orders) > 1, "each round has an order of its own"
    measurer.gain = math.exp(6 * scatter)
    assert selected(50) >= 45


def measured(ratio: float, peak_mib: float, **choices: Value) -> JointTrial:
    """Returns a point of two sessions, ``a`` and ``b``, with what was measured of it."""
    played = Played(
        ratios=(ratio,), seconds=ratio, cpu_s=1.0, peak_mib=peak_mib, held_mib=1.0, load_s=0.1
    )
    own = {name.replace("_", "."): value for name, value in choices.items()}
    return JointTrial(label="", choices=own, played=played)


def two_sessions() -> JointSearch:
    """Returns a search of two sessions, each as it is today or as trial 1 has it."""
    members = {
        label: Opening(model=Path(label), session=SessionConfig()) for label in (TODAY, "trial 1")
    }
    parts = [JointSession(name=name, members=members) for name in ("a", "b")]
    return JointSearch(parts=parts, cores=2, seed=0)


def test_the_best_of_each_session_is_joined() -> None:
    """A member by the mean of its points, threads of the fastest, the arena of the leanest."""
    search = two_sessions()
    search.trials += [
        measured(0.5, 100, a_member="trial 1", b_member=TODAY, a_threads=1, b_arena="on"),
        measured(0.8, 100, a_member=TODAY, b_member="trial 1", a_threads=2, b_arena="on"),
        measured(1.0, 50, a_member=TODAY, b_member="trial 1", a_threads=2, b_arena="shared"),
        measured(1.4, 100, a_member=TODAY, b_member=TODAY, a_threads=2, b_arena="on"),
        measured(1.6, 10, a_member=TODAY, b_member="trial 1", a_threads=2, b_arena="off"),
    ]
    both = joined(search)
    assert both == {
        "a.member": "trial 1",
        "b.member": TODAY,
        "a.threads": 1,
        "b.arena": "shared",
    }
    search.trials.append(replace(search.trials[0], choices=both))
    assert joined(search) is None, "it was measured already"


def test_nothing_is_joined_where_nothing_was_measured() -> None:
    search = two_sessions()
    search.trials.append(replace(measured(1.0, 1.0), played=None, failure="crashed"))
    assert joined(search) is None


@dataclass(frozen=True)
class FakeStudy:
    """A model's own study that found nothing but the default."""

    folder: Path
    members: tuple[()] = ()
    notes: tuple[()] = ()

    def words(self, _: str) -> str:
        return "the default"

    def write(self, _: str, folder: Path) -> Any:
        folder.mkdir(parents=True, exist_ok=True)
        return make_config(), folder


def record(folder: Path, model: Path, process: str = "1-a", number: int = 0) -> None:
    """Appends a session to the recording of a process, with calls of one shape."""
    session = replace(recorded_session(model).opened, number=number)
    inputs = [{"name": "x", "dtype": "float32", "shape": [1, 64]}]
    shape = {"kind": "shape", "number": number, "session": number, "inputs": inputs}
    shape |= {"outputs": None, "run_options": {}, "fed": {}}
    with (folder / f"process-{process}.jsonl").open("a") as lines:
        lines.writelines(json.dumps(line) + "\n" for line in (to_plain(session), shape))
    calls = [(number + 1, 0, 1, begin, begin + 10**6, 0, 0, 0) for begin in (10**7, 2 * 10**7)]
    with (folder / f"calls-{process}-0.bin").open("ab") as file:
        file.writelines(CALL.pack(*call) for call in calls)


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of two calls of a model that is still there; its studies need no disk."""
    monkeypatch.setattr("autotune.applications.study.open_storage", in_memory)
    folder = tmp_path / "app.rec"
    folder.mkdir()
    settings = {"autotune": "0", "max_mib": 1, "keep_inputs": True, "began_ns": 0}
    text = json.dumps({"format": "autotune-recording/3"} | settings)
    (folder / "recording.json").write_text(text)
    process = {"kind": "process", "pid": 1, "parent": 0, "program": "app.py", "began_ns": 0}
    text = json.dumps(process | {"onnxruntime": "1.0.0", "available": []}) + "\n"
    (folder / "process-1-a.jsonl").write_text(text)
    record(folder, write_model(tmp_path / "relu.onnx"))
    return folder


@pytest.fixture
def empty_configs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuned session gets a folder without a config: its model was not studied."""
    monkeypatch.setattr(
        "autotune.applications.writing._write_config",
        lambda folder, *_: folder.mkdir(exist_ok=True),
    )


@pytest.mark.usefixtures("empty_configs")
def test_a_study_writes_a_tuned_application(recording: Path, tmp_path: Path) -> None:
    """The session that is replaced names its folder; a model that has changed is refused."""
    out = tmp_path / "app.tuned"
    out.mkdir()
    options = ApplicationOptions(recording=recording, trials=30, out=out)
    result = study_application(
        options,
        lambda _: None,
        measure=FakeReplays,
        study=lambda *_, **__: FakeStudy(tmp_path),  # type: ignore[arg-type]
    )
    assert result.best is not None
    assert result.best.ratio.value == pytest.approx(0.6, rel=0.01)
    (session,) = TunedApplication.read(out).sessions
    assert (session.folder, session.passed) == ("relu", PASSED)
    assert "1 thread" in result.sessions[0].changes
    assert any("uses ONNX Runtime 1.0.0" in note for note in result.notes)
    assert 0 < len(result.front) < len(result.searched)
    own = replace(result.sessions[0], name="</script><b>")
    page = render_application(replace(result, sessions=(own,)))
    assert "</script><b>" not in page
    for text in ("of 48 configurations", "1 thread", "chosen: the fastest", "x 1×64"):
        assert text in page
    assert "chosen: the fastest" in str(view_application(result).blocks)
    none_keeps = replace(result, selected=None, limits=MemoryLimits(peak_mib=1))
    assert "nothing that was compared keeps the limits" in outcome(none_keeps)
    assert "nothing was better by more" in outcome(replace(none_keeps, limits=MemoryLimits()))
    assert "a longer --timeout" in outcome(replace(none_keeps, confirmed=())), (
        "nothing was compared"
    )
    assert command_line.run(tmp_path, "report", "app.tuned").returncode == 0
    assert "chosen: the fastest" in (out / "report.html").read_text(encoding="utf-8")
    refused = command_line.run(tmp_path, "report", "app.tuned", "--study-name", "x")
    assert refused.returncode == 2
    assert "is a tuned application" in refused.stderr
    write_model(tmp_path / "relu.onnx", scale=2)
    with pytest.raises(RequestError, match="has changed since it was recorded"):
        study_application(options, lambda _: None)


@pytest.mark.parametrize("killed_at", ["best.json", "application.json"])
def test_a_kill_leaves_the_configs_that_were_in_use(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """A new set has folders of its own; the old one goes once the new one is in use."""
    out = tmp_path / "app.tuned"

    class Study(FakeStudy):
        """A study that writes a config as soon as it is asked to."""

        def write(self, label: str, folder: Path) -> Any:
            written = super().write(label, folder)
            (folder / "best.json").write_text("not confirmed", encoding="utf-8")
            return written

    def study() -> Path:
        options = ApplicationOptions(recording=recording, trials=30, out=out)
        study_application(options, lambda _: None, FakeReplays, lambda *_, **__: Study(tmp_path))  # type: ignore[arg-type]
        return folder_in_use()

    def folder_in_use() -> Path:
        (session,) = TunedApplication.read(out).sessions
        return out / str(session.folder)

    def kill(data: Any, path: Path) -> None:
        if path.name == killed_at:
            raise KeyboardInterrupt
        write_json(data, path)

    first = study()
    config = (first / "best.json").read_text(encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setattr("autotune.applications.writing.write_json", kill)
        with pytest.raises(KeyboardInterrupt):
            study()
    assert folder_in_use() == first
    assert (first / "best.json").read_text(encoding="utf-8") == config
    second = study()
    assert second != first
    assert (second / "best.json").read_text(encoding="utf-8") == config
    assert not first.exists()
    assert study() == first, "no third folder"
    assert not second.exists()


@pytest.mark.usefixtures("empty_configs")
def test_an_interrupted_study_goes_on(recording: Path, tmp_path: Path) -> None:
    class Interrupted(FakeReplays):
        """Replays that Ctrl-C ends after six."""

        def measure(self, arrangement: Arrangement, turns: int, give_up: float = 0.0) -> Any:
            played = super().measure(arrangement, turns, give_up)
            if self.count > 6:
                raise KeyboardInterrupt
            return played

    def study(out: str, measure: Any) -> Any:
        return study_application(
            ApplicationOptions(recording=recording, trials=100, out=tmp_path / out),
            lambda _: None,
            measure=measure,
            study=lambda *_, **__: FakeStudy(tmp_path / out),  # type: ignore[arg-type]
        )

    whole = study("whole.tuned", FakeReplays)
    with pytest.raises(KeyboardInterrupt):
        study("app.tuned", Interrupted)
    result = study("app.tuned", FakeReplays)
    assert result.searched[:6] == whole.searched[:6]
    assert len(result.searched) == len(whole.searched) == 11, "all that differ"
    again = FakeReplays()
    study("app.tuned", lambda *_: again)
    assert again.count == 5 * len(result.confirmed), "only the end is measured again"


@pytest.mark.usefixtures("empty_configs")
@pytest.mark.parametrize(("timeout_s", "points"), [(1e-3, 3), (60.0, 11)])
def test_the_time_of_a_study_bounds_each_part(
    recording: Path, tmp_path: Path, timeout_s: float, points: int
) -> None:
    """Without time points are tried until one can be measured, and two at most are compared."""
    limits: list[float] = []

    def study(*_: object, timeout_s: float, **__: object) -> Any:
        limits.append(timeout_s)
        return FakeStudy(tmp_path)

    asked = ApplicationOptions(
        recording=recording, trials=100, out=tmp_path / "app.tuned", timeout_s=timeout_s
    )
    measurer = FakeReplays()
    result = study_application(asked, lambda _: None, lambda *_: measurer, study)
    assert limits == [max(1.0, 0.4 * timeout_s)]
    assert len(result.searched) == points
    entrants, most_rounds = (2, 3) if points == 3 else (len(result.confirmed), 5)
    assert len(result.confirmed) == entrants
    # an entrant that fails leaves before the last round
    assert 3 * entrants <= measurer.count - points <= most_rounds * entrants


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            "--traffic a.json --storage sqlite:///a.db --set model=m.onnx",
            "takes no --storage, --traffic, --set model=...; its options are --max-drop",
        ),
        ("--runtimes onnxruntime-openvino", "record, study and run it there"),
    ],
)
def test_options_that_a_recording_cannot_take_are_refused(
    recording: Path, tmp_path: Path, options: str, words: str
) -> None:
    done = command_line.run(tmp_path, "study", recording.name, *options.split())
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_show_says_what_a_recording_holds(recording: Path, tmp_path: Path) -> None:
    done = command_line.run(tmp_path, "show", recording.name)
    assert done.returncode == 0
    assert "Next: autotune study" in done.stdout


def test_a_session_has_a_metric_of_its_own(recording: Path) -> None:
    """It is judged by that alone; the largest error is that of the others."""
    options = ApplicationOptions(recording=recording, max_error=1e-3, metric="reader=cer")
    judged = [
        (options.metric_of(name), options.max_error_of(name)) for name in ("reader", "finder")
    ]
    assert judged == [("cer", None), (None, 1e-3)]
    whole = replace(options, metric="top1")
    assert (whole.metric_of("finder"), whole.max_error_of("finder")) == ("top1", 1e-3)
    whole.check_sessions(["finder"])
    with pytest.raises(RequestError, match=r"has no session 'reader'.* It has finder"):
        options.check_sessions(["finder"])
    with pytest.raises(RequestError, match="name it with --metric"):
        ApplicationOptions(recording=recording, max_drop=0.002).check()
    with pytest.raises(RequestError, match="--max-memory must be more than 0"):
        ApplicationOptions(recording=recording, max_memory_mib=0.0).check()


@pytest.mark.process
def test_calls_are_replayed_in_turns(recording: Path, tmp_path: Path) -> None:
    """Both processes replay all calls; a model with another interface is not measured."""
    record(recording, tmp_path / "relu.onnx", number=1)
    own = Recording.read(recording)
    model = own.model_path(own.sessions[0])
    schedule = schedule_of(own.processes[0], {"relu": describe(model)}, lengths_s=[1.0])
    assert len(schedule.sessions) == 2, "two are open at one time"
    session = SessionConfig(options={"intra_op_num_threads": 1})
    today = Arrangement(openings={"relu": Opening(model=model, session=session)})
    measurer = ReplayMeasurer(schedule, today)
    try:
        pooled = Arrangement(openings=today.openings, pool_threads=2)
        played = measurer.measure(pooled, 2)
        assert isinstance(played, Played), played
        assert len(played.ratios) == 2
        assert played.ratio > 0
        other = onnx.load(model)
        other.metadata_props[0].value = "xyz"
        onnx.save(other, tmp_path / "other.onnx")
        changed = Opening(model=tmp_path / "other.onnx", session=session)
        refused = measurer.measure(Arrangement(openings={"relu": changed}), 1)
        assert "another interface" in str(refused)
        missing = Opening(model=tmp_path / "missing.onnx", session=session)
        assert "refused" in str(measurer.measure(Arrangement(openings={"relu": missing}), 1))
    finally:
        measurer.close()


@pytest.mark.process
def test_a_run_of_a_command_is_timed() -> None:
    """A run has its output, its exit code and the peak of its processes; or is refused."""
    script = "import time; x = bytearray(50 << 20); print('done'); time.sleep(0.3); exit(3)"
    done = run_once([sys.executable, "-c", script], os.environ)
    assert (done.exit_code, done.output) == (3, b"done\n")
    assert done.peak_mib > 50
    assert difference([b"a\n1\n", b"a\n2\n"], [b"a\n3\n"]) == "", "a line that always differs"
    assert difference([b"a\nb\n"], [b"a\nb\n", b"a\n"]) == "line 2 has '' instead of 'b'"
    with pytest.raises(RequestError, match="cannot start"):
        run_once(["/no/such/program"], {})


def test_a_damaged_recording_is_read_or_refused(recording: Path, tmp_path: Path) -> None:
    """Whatever the bytes of its files are, there is a recording or one sentence."""
    random = np.random.default_rng(0)
    refused = 0
    for turn in range(90):
        copy = tmp_path / f"{turn}.rec"
        shutil.copytree(recording, copy)
        file = sorted(path for path in copy.iterdir() if path.is_file())[turn % 3]
        data = bytearray(file.read_bytes())
        for place in random.integers(0, len(data), random.integers(1, 4)):
            data[place] = random.integers(0, 256)
        file.write_bytes(bytes(data[: random.integers(1, len(data) + 1)] if turn % 2 else data))
        try:
            read = Recording.read(copy)
        except AutotuneError:
            refused += 1
        else:
            assert read.wall_s >= 0
            view_recording(read)
    assert 10 < refused < 80


def test_a_session_whose_inputs_cannot_be_studied_stays(recording: Path, tmp_path: Path) -> None:
    """The study of its model refuses a recorded input; the others would go on."""

    def refuses(*_: object, **__: object) -> Any:
        raise DataError("mask holds infinities")

    notes: list[str] = []
    options = ApplicationOptions(recording=recording, trials=4, out=tmp_path / "app.tuned")
    with pytest.raises(RequestError, match=r"no session .* can be tuned: relu: mask holds"):
        study_application(options, lambda p: notes.append(p.note), FakeReplays, refuses)
    assert "relu stays as it is: mask holds infinities" in notes


@pytest.mark.parametrize(
    ("process", "number", "reason"),
    [("1-a", 1, "its calls cannot be replayed: too large"), ("2-b", 0, "another one calls it")],
)
def test_a_session_that_cannot_be_replayed_costs_no_trials(
    recording: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    process: str,
    number: int,
    reason: str,
) -> None:
    """It has no inputs, or another process than the one that is replayed calls it."""

    def generated(model: Any, *others: Any) -> Any:
        if model.path.name == "other.onnx":
            raise DataError("too large")
        return one_sample(model, *others)

    def study(_: object, session: RecordedSession, *__: object, **___: object) -> Any:
        studied.append(session.name)
        return FakeStudy(tmp_path)

    studied: list[str] = []
    monkeypatch.setattr("autotune.applications.schedule.one_sample", generated)
    monkeypatch.setattr("autotune.applications.writing._write_config", lambda *_: None)
    record(recording, write_model(tmp_path / "other.onnx", scale=2), process, number)
    options = ApplicationOptions(recording=recording, trials=4, out=tmp_path / "app.tuned")
    result = study_application(options, lambda _: None, FakeReplays, study)
    assert studied == ["relu"]
    assert reason in {item.name: item.reason for item in result.sessions}["other"]


def test_sessions_of_one_number_in_two_processes_are_a_fork(
    recording: Path, tmp_path: Path
) -> None:
    record(recording, tmp_path / "relu.onnx", number=1)
    (session,) = Recording.read(recording).sessions
    assert (session.count, session.is_forked) == (2, False)
    assert Recording.read(recording).processes[0].numbers == (0, 1)
    record(recording, tmp_path / "relu.onnx", "2-b")
    assert Recording.read(recording).sessions[0].is_forked


def test_the_busiest_process_with_a_tunable_session_is_replayed(tmp_path: Path) -> None:
    foreign, known = (
        process_of(recorded_session(write_model(tmp_path / "relu.onnx"), name))
        for name in ("foreign", "relu")
    )
    state: Any = SimpleNamespace(recording=SimpleNamespace(processes=(foreign, known)))
    assert busiest_process(state, {"relu"}) is known


def test_sessions_of_today_that_fail_later_end_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory may have become scarce by the last rounds."""

    def fails(*_: object) -> None:
        raise ChildFailure("memory", "out of memory")

    measurer: Any = object.__new__(ReplayMeasurer)
    measurer._start, measurer._today = lambda: None, None
    monkeypatch.setattr(ReplayMeasurer, "_open", fails)
    with pytest.raises(CannotMeasureError, match=r"cannot be replayed .memory.: out of memory"):
        measurer._start_reference()
