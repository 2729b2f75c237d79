"""Chains: sessions that are fed what sessions returned, recorded, replayed and rated."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import decoder_models
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from test_application_study import FakeReplays, FakeStudy
from test_config import make_config
from test_recorder_faults import runtime

from autotune.applications import recorder, start, watching
from autotune.applications.chains import ChainAnswers, chained, samples_of_chains
from autotune.applications.command import record
from autotune.applications.options import ApplicationOptions
from autotune.applications.recording import Recording
from autotune.applications.replay import Arrangement, Opening
from autotune.applications.replay_child import Replayer
from autotune.applications.replies import Saved
from autotune.applications.returned import Returned
from autotune.applications.schedule import Schedule, schedule_of
from autotune.applications.study import study_application
from autotune.applications.tunable import _broken_chains
from autotune.deploy import hook, passed
from autotune.deploy.session import SessionConfig
from autotune.errors import RequestError
from autotune.facts.feeds import Feed
from autotune.facts.model import describe
from autotune.report.application import view_recording

_Array = NDArray[Any]


class _Step:
    """A session that appends the token to its cache, and returns it behind the sum."""

    def __init__(self, path_or_bytes: Any, sess_options: Any = None, providers: Any = None) -> None:
        self.model = path_or_bytes
        self._enable_fallback = True

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[_Array]:
        token, cache = input_feed["token"], input_feed["cache"]
        grown = np.concatenate([cache, token]) if cache.ndim == 2 else cache + token.sum()
        return [token.sum(keepdims=True), grown]

    def get_providers(self) -> list[str]:
        return ["CPUExecutionProvider"]

    def get_inputs(self) -> list[Any]:
        return []

    get_outputs = get_overridable_initializers = get_inputs

    def get_modelmeta(self) -> Any:
        return type("Meta", (), {"custom_metadata_map": {}})


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Any], Any]]:
    """Records what a function does with a session class of its own."""
    module: Any = runtime()
    methods = {name: item for name, item in vars(_Step).items() if callable(item)}
    module.InferenceSession = type("InferenceSession", (), methods)
    monkeypatch.setitem(sys.modules, hook.MODULE, module)
    monkeypatch.setitem(sys.modules, "onnxruntime", ModuleType("onnxruntime"))
    (tmp_path / "net.onnx").write_bytes(b"a model")
    passed.watch.cache_clear()
    start.make_folder(tmp_path / "app.rec", max_mib=64, keep_inputs=True)
    own = recorder.Recorder(tmp_path / "app.rec")
    own.begin()
    passed.watch(module)
    watching.patch_sessions(module, own)

    def play(application: Callable[[Any], None]) -> Recording:
        application(module.InferenceSession(str(tmp_path / "net.onnx")))
        return Recording.read(tmp_path / "app.rec")

    yield play
    passed.watch.cache_clear()


def _kept_kib(recording: Recording) -> float:
    return sum(file.stat().st_size for file in (recording.folder / "inputs").iterdir()) / 1024


def _generate(session: Any, steps: int, change: Callable[[_Array], _Array]) -> None:
    cache = np.zeros((1, 256), np.float32)
    for number in range(steps):
        token = np.full((1, 256), number, np.float32)
        _, cache = session.run(None, {"token": token, "cache": cache})
        cache = change(cache)


def test_a_growing_cache_is_kept_once(recorded: Callable[[Any], Recording]) -> None:
    """200 steps of a cache of up to 200 KiB leave 20 KiB of inputs, and two shapes."""
    recording = recorded(lambda session: _generate(session, 200, lambda cache: cache))
    assert not recording.unknown
    assert _kept_kib(recording) < 30
    said = str(view_recording(recording).blocks)
    assert "(0.0 MiB) were kept" in said
    assert "net is fed arrays that earlier calls returned (1 in a call)" in said
    (session,) = recording.sessions
    first, step = session.shapes.values()
    assert (first.calls, step.calls) == (1, 199)
    assert first.fed == {}
    assert {name: item.place for name, item in step.fed.items()} == {"cache": 1}
    whole, *others = step.feeds()
    assert whole["cache"].shape == (2, 256), "the first call keeps a copy"
    assert all(own.keys() == {"token"} for own in others)


@pytest.mark.parametrize("is_in_place", [True, False])
def test_a_cache_that_the_application_changes_is_copied(
    recorded: Callable[[Any], Recording], is_in_place: bool
) -> None:
    """It is the array that was returned, with other bytes; or a new one."""

    def change(cache: _Array) -> _Array:
        if not is_in_place:
            return np.array(cache)
        cache[-1] *= 2
        return cache

    recording = recorded(lambda session: _generate(session, 20, change))
    (session,) = recording.sessions
    feeds = [feed for shape in session.shapes.values() for feed in shape.feeds()]
    assert [feed["cache"].shape[0] for feed in feeds] == list(range(1, 21))
    assert not any(shape.fed for shape in session.shapes.values())
    assert feeds[-1]["cache"][-1, 0] == (2 * 18 if is_in_place else 18)


def test_a_state_of_one_shape_is_an_input_like_others(
    recorded: Callable[[Any], Recording],
) -> None:
    """Copies of a few calls stand for all; a replay may begin anywhere."""

    def application(session: Any) -> None:
        state = np.zeros(8, np.float32)
        for _ in range(20):
            _, state = session.run(None, {"token": np.ones(8, np.float32), "cache": state})

    (session,) = recorded(application).sessions
    assert [shape.fed for shape in session.shapes.values()] == [{}, {}]
    assert [len(shape.files) for shape in session.shapes.values()] == [1, 5]
    assert all("cache" in feed for shape in session.shapes.values() for feed in shape.feeds())


def test_nothing_that_was_returned_is_kept_alive() -> None:
    """An array at the address of one that is gone is another array."""
    returned = Returned()
    for _ in range(2000):
        returned.note(0, {}, {}, [np.zeros(4), [1, 2], "text"])
    assert len(returned._notes) < 600
    assert not [note for note in returned._notes.values() if note[0]() is not None]
    last = np.zeros(4)
    returned.note(0, {}, {}, [last])
    assert returned.places(1, {"x": last}) == {"x": (0, 0)}
    returned.note(1, {"x": (0, 0)}, {"x": last}, [])
    assert returned.places(1, {"x": last}) == {"x": (1, "x")}, "fed again"
    returned.note(1, {}, {}, [])
    assert returned.places(1, {"x": last}) == {}, "it is not in the latest call"


# An encoder, and a decoder with caches of its own and of what the encoder made.
_TRANSLATE = """
import sys
import numpy as np, onnxruntime
encoder, decoder = (onnxruntime.InferenceSession(path) for path in sys.argv[1:3])
names = [item.name for item in decoder.get_outputs()]
pasts = [item for item in decoder.get_inputs() if item.name.startswith("past")]
for sentence in range(3):
    ids = np.arange(5 + sentence)[None] % 64
    states = encoder.run(None, {"input_ids": ids})[0]
    cache = {item.name: np.zeros((1, 2, 0, 16) if item.shape[1] == 2 else (1, 0, 32), np.float32)
             for item in pasts}
    text = [0]
    while len(text) < 20:
        feed = {"input_ids": np.array([text[-1:]]), "encoder_hidden_states": states}
        feed |= cache | {"use_cache_branch": np.array([len(text) > 1])}
        made = dict(zip(names, decoder.run(None, feed)))
        text.append(int(made.pop("logits")[0, -1].argmax()))
        if len(text) > 2:
            made = {name: array for name, array in made.items() if "encoder" not in name}
        cache |= {name.replace("present", "past_key_values"): a for name, a in made.items()}
    print(*text)
"""


def _write_pair(folder: Path) -> tuple[Path, Path]:
    """Writes an encoder and a merged decoder; returns both."""
    decoder = decoder_models.write("crossed", folder / "decoder.onnx")
    return decoder_models.write_encoder(folder / "encoder.onnx"), decoder


@pytest.fixture(scope="module")
def translated(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """The recording of an application that translates three sentences."""
    folder = tmp_path_factory.mktemp("translated")
    command = [sys.executable, "-c", _TRANSLATE, *map(str, _write_pair(folder))]
    assert record(command, folder / "app.rec", max_mib=1, keep_inputs=True) == 0
    return Recording.read(folder / "app.rec")


def _schedule(recording: Recording) -> Schedule:
    models = {s.name: describe(recording.model_path(s)) for s in recording.sessions}
    return schedule_of(recording.processes[0], models)


def _today(schedule: Schedule) -> Arrangement:
    return Arrangement(
        openings={
            session.name: Opening(model=Path(session.opened.path), session=SessionConfig())
            for session in schedule.sessions
        }
    )


def play_here(
    schedule: Schedule,
    arrangement: Arrangement,
    folder: Path,
    inputs: Sequence[int],
    answers: Sequence[int],
) -> Saved:
    """Makes all calls in this process."""
    schedule.save(folder / "feeds.npz")
    openings = [arrangement.openings[session.name].to_json() for session in schedule.sessions]
    replayer = Replayer()
    calls = [vars(call) for call in schedule.calls]
    feeds = str(folder / "feeds.npz")
    message = {"sessions": openings, "calls": calls, "feeds": feeds, "blocks_per_s": 0.0}
    replayer.open({**message, "pool_threads": None})
    return replayer.save({"folder": str(folder), "inputs": inputs, "answers": answers})


@pytest.mark.process
def test_a_pair_is_recorded_replayed_and_rated(translated: Recording, tmp_path: Path) -> None:
    """The replay feeds each step what it made itself, and that is what the application had."""
    assert _kept_kib(translated) < 40
    schedule = _schedule(translated)
    assert len(schedule.calls) == 3 * (1 + 19), "all of them"
    assert chained(schedule).keys() == {"decoder"}
    samples = samples_of_chains(schedule, _today(schedule), play_here)["decoder"]
    assert [sample["past_key_values.0.key"].shape[2] for sample in samples][-1] == 18
    assert _tokens(schedule, samples[-1])
    again = samples_of_chains(schedule, _today(schedule))["decoder"]
    for mine, its in zip(samples, again, strict=True):
        assert all(np.allclose(mine[name], its[name], atol=1e-5) for name in mine)


@pytest.mark.process
def test_a_stretch_begins_where_a_chain_does(translated: Recording) -> None:
    """Of a step whose chain began before, or in a session that stays as it is, nothing is known."""
    process = translated.processes[0]
    models = {s.name: describe(translated.model_path(s)) for s in translated.sessions}
    calls = process.calls
    names = [process.shapes[int(place)][0].name for place in calls["shape"]]
    second = names.index("encoder", 1)
    whole = schedule_of(process, models)
    rest = schedule_of(replace(process, calls=calls[second - 5 :]), models)
    assert (whole.runs, rest.runs) == (60, 40), "five steps without their beginning are left out"
    brief = schedule_of(process, models, lengths_s=[1e-9])
    assert [brief.sessions[call.session].name for call in brief.calls] == ["encoder"]
    with pytest.raises(RequestError, match="fed what sessions return that cannot be tuned"):
        schedule_of(process, {"decoder": models["decoder"]})
    decoder = next(session for session in translated.sessions if session.name == "decoder")
    state: Any = SimpleNamespace(tunable=[SimpleNamespace(session=decoder)])
    assert _broken_chains(state, whole) == []
    assert _broken_chains(state, brief) == ["decoder"]


def _tokens(schedule: Schedule, sample: Feed) -> bool:
    """Returns whether a step's sample has what the decoder takes."""
    decoder = next(s for s in schedule.sessions if s.name == "decoder")
    session = onnxruntime.InferenceSession(decoder.opened.path)
    return bool(np.isfinite(session.run(None, dict(sample))[0]).all())


@pytest.mark.process
def test_what_a_changed_encoder_does_to_the_decoder_is_rated(
    translated: Recording, tmp_path: Path
) -> None:
    """The decoder stays as it is: only its caches show what the encoder gives now."""
    schedule = _schedule(translated)
    today = _today(schedule)
    answers = ChainAnswers(schedule=schedule, today=today, limits={"decoder": 0.05}, play=play_here)
    other = decoder_models.write_encoder(tmp_path / "encoder.onnx", seed=1)
    opening = replace(today.openings["encoder"], model=other)
    changed = replace(today, openings={**today.openings, "encoder": opening})
    assert answers.problem(today) == ""
    assert not answers.is_refused(changed)
    assert "the answers of decoder have an error of" in answers.problem(changed)
    assert answers.is_refused(changed)
    same = replace(opening, session=SessionConfig(options={"intra_op_num_threads": 1}))
    threads = replace(today, openings={**today.openings, "encoder": same})
    assert answers.is_refused(threads), "threads change no answers"


@pytest.mark.process
def test_the_study_of_a_pair_gets_steps_with_their_caches(
    translated: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model's own study gets a few steps, from the shortest context to the longest."""
    seen: dict[str, Sequence[Feed]] = {}

    def study(_: Any, session: Any, *__: Any, samples: Sequence[Feed], **___: Any) -> Any:
        seen[session.name] = samples
        return FakeStudy(tmp_path)

    monkeypatch.setattr("autotune.applications.writing._write_config", lambda *_: None)
    options = ApplicationOptions(recording=translated.folder, trials=6, out=tmp_path / "app.tuned")
    result = study_application(options, lambda _: None, FakeReplays, study, play_here)
    assert result.replayed_calls == 60
    sizes = [sum(array.nbytes for array in sample.values()) for sample in seen["decoder"]]
    assert sizes == sorted(sizes)
    lengths = [sample["past_key_values.0.key"].shape[2] for sample in seen["decoder"]]
    assert (lengths[0], lengths[-1], len(lengths)) == (0, 18, 32)
    assert not seen["encoder"], "its inputs are those of the recording"
    assert json.loads((tmp_path / "app.tuned" / "application-front.json").read_text())


_CALLS = {
    "words": lambda _: "the default",
    "write": lambda _, folder: (make_config(), folder),
}


@pytest.mark.process
@pytest.mark.parametrize(("limit", "is_left_out"), [(0.05, True), (10.0, False)])
def test_what_gives_wrong_answers_in_a_chain_is_left_out(
    translated: Recording,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: float,
    is_left_out: bool,
) -> None:
    """An encoder that its own study admits may be wrong for the decoder."""
    member = SimpleNamespace(
        label="trial 1",
        model=decoder_models.write_encoder(tmp_path / "encoder.onnx", seed=1),
        session=SessionConfig(options={"intra_op_num_threads": 1}),
    )

    def study(_: Any, session: Any, *__: Any, **___: Any) -> Any:
        members = (member,) if session.name == "encoder" else ()
        return SimpleNamespace(members=members, notes=(), folder=tmp_path, **_CALLS)

    monkeypatch.setattr("autotune.applications.writing._write_config", lambda *_: None)
    options = ApplicationOptions(
        recording=translated.folder, trials=20, out=tmp_path / "app.tuned", max_error=limit
    )
    result = study_application(options, lambda _: None, FakeReplays, study, play_here)
    assert result.best is not None or is_left_out
    chosen = [item.choices or {} for item in result.confirmed]
    has_member = any(own.get("encoder.member") == "trial 1" for own in chosen)
    assert has_member != is_left_out
    notes = " ".join(result.notes)
    assert ("is left out: the answers of decoder have an error of" in notes) == is_left_out
    assert "where it is fed what the tuned sessions return" in notes
