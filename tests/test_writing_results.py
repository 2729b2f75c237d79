"""What a study writes: names of its own, whole files, and the last check of what it wrote."""

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import numpy as np
import onnx
import onnxruntime
import pytest
from factories import onnx_model, save_onnx
from fakes import FakeMeasurer, FakeWorld, thread_cost
from onnx import external_data_helper, numpy_helper

import autotune
from autotune.deploy.config import Evidence, TunedConfig
from autotune.deploy.files import digest_files
from autotune.deploy.loader import check_files
from autotune.errors import CannotMeasureError, StorageError, StudyError
from autotune.facts.model import describe
from autotune.graph.data_names import RenamingError, copy_with_data_names
from autotune.graph.graph_facts import ProcessorFacts
from autotune.graph.prepare import PreparationError, PreparedModel, Preparer
from autotune.measure.outcome import Failure, Fidelity
from autotune.results import writing
from autotune.results.result import StudyResult, choose_member
from autotune.results.writing import agrees, answers_check, pick_member, repair, write
from autotune.search.trial import Limits

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.fixture(autouse=True)
def without_a_child() -> Iterator[None]:
    """What a file needs of a processor is told by a child, which takes a second."""
    facts = ProcessorFacts(overflows=False, exactness_reaches=True, has_blocks=False, float16=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(writing, "processor_facts", lambda _: facts)
        yield


_FEED = {"x": np.asarray([[1.0, 2.0]], np.float32), "flag": np.asarray(True)}


def _outside(graph: onnx.GraphProto, places: dict[str, tuple[str, float]], folder: Path) -> None:
    """Puts the weights of a graph, of that size, into external data files."""
    for name, (file, value) in places.items():
        tensor = numpy_helper.from_array(np.full((2, 2), value, np.float32), name)
        path = folder / file
        offset = path.stat().st_size if path.exists() else 0
        with path.open("ab") as stream:
            stream.write(tensor.raw_data)
        external_data_helper.set_external_data(tensor, file, offset, len(tensor.raw_data))
        tensor.ClearField("raw_data")
        constants = [node for node in graph.node if name in node.output]
        if constants:
            constants[0].attribute[0].t.CopyFrom(tensor)
        else:
            graph.initializer.append(tensor)


def _model(folder: Path, files: Sequence[str]) -> Path:
    """Writes a model with weights outside: in its graph, in a branch, and in a constant."""
    nodes = "{ k = Constant <value = float {0}> () p = MatMul (m, v) b = MatMul (p, k) }"
    branch = f"branch () => (float[1,2] b) {nodes}"
    model = onnx_model(
        f"m = MatMul (x, w) y = If (flag) <then_branch = {branch}, else_branch = {branch}>",
        x="float[1,2] x, bool flag",
        y="float[1,2] y",
    )
    for attribute, file, value in zip(
        model.graph.node[1].attribute, (files[0], files[-1]), (2.0, 3.0), strict=True
    ):
        _outside(attribute.g, {"k": (file, 0.25), "v": (file, value)}, folder)
    _outside(model.graph, {"w": (files[-1], 0.5)}, folder)
    path = folder / "net.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _answers(session: onnxruntime.InferenceSession) -> list[float]:
    answers: list[float] = np.asarray(session.run(None, _FEED)[0]).ravel().tolist()
    return answers


@pytest.mark.parametrize(
    "files",
    [
        ["best.json"],
        ["study.db", "front.json"],
        ["best-01234567.onnx", "best.json"],
        ["best-01234567.onnx.data2", "best-01234567.onnx.data"],
    ],
)
def test_data_files_of_any_name_are_written(tmp_path: Path, files: list[str]) -> None:
    (tmp_path / "source").mkdir()
    model = _model(tmp_path / "source", files)
    out = tmp_path / "out"
    result = FakeWorld(thread_cost).tune(model, trials=1, space="session", out=out)
    name = f"best-{describe(model).sha256[:8]}.onnx"
    names = [name, f"{name}.data", f"{name}.data2"][: len(files) + 1]
    assert list(result.files) == ["best.json", *names, "front.json"]
    config = TunedConfig.read(out / "best.json")
    assert list(config.model.names) == names
    json.loads((out / "front.json").read_text("utf-8"))
    session = autotune.load(out / "best.json", strict=True)
    source = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert _answers(session) == _answers(source)
    picked = pick_member(StudyResult.read(out), 0)
    assert picked.files == result.files
    assert _answers(autotune.load(out / "best.json", strict=True)) == _answers(source)


def test_a_data_file_without_a_new_name_is_refused(tmp_path: Path) -> None:
    model = _model(tmp_path, ["a", "b"])
    with pytest.raises(RenamingError, match="its data file 'b'"):
        copy_with_data_names(model, {"a": "best.onnx.data"}, tmp_path / "copy.onnx")
    assert not (tmp_path / "copy.onnx").exists()


def test_a_model_that_changed_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    model = _model(tmp_path / "source", ["w"])
    out = tmp_path / "out"
    FakeWorld(thread_cost).tune(model, trials=1, space="session", out=out)

    class Changing(FakeMeasurer):
        def renew(self) -> None:
            (model.parent / "w").write_bytes(bytes(len((model.parent / "w").read_bytes())))

    class World(FakeWorld):
        def measurer(self, *_: object) -> FakeMeasurer:
            return Changing(self.cost)

    with pytest.raises(StudyError, match="was changed while the study ran"):
        World(thread_cost).tune(model, trials=3, space="session", out=out)
    autotune.load(out / "best.json", strict=True)


class Doubting(FakeMeasurer):
    """A measurer that has its own opinion of what was written."""

    verdict: Fidelity | Failure = Failure(kind="refused", phase="answers", message="it is broken")

    def answers_of(self, config: Path) -> Fidelity | Failure:
        assert config.is_file()
        return self.verdict


def _judged(folder: Path, error: float, metric: float | None = None) -> None:
    """Verifies the result in `folder`, whose answers now have this error."""
    measurer = Doubting(thread_cost)
    measurer.verdict = Fidelity(
        error=error, cosine=1.0, max_difference=error, agreement=None, metric=metric
    )
    answers_check(measurer, StudyResult.read(folder), Limits(max_error=math.inf))(
        folder / "best.json"
    )


def test_a_result_that_does_not_load_is_removed(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    model = _model(tmp_path / "source", ["w"])

    class World(FakeWorld):
        def measurer(self, *_: object) -> FakeMeasurer:
            self.measurers.append(Doubting(self.cost))
            return self.measurers[-1]

    with pytest.raises(CannotMeasureError, match="it is broken") as failure:
        World(thread_cost).tune(model, trials=2, space="session", out=tmp_path / "out")
    assert failure.value.exit_code == 4
    for name in ("best.json", "front.json"):
        assert not (tmp_path / "out" / name).exists()
    world = FakeWorld(thread_cost)
    result = world.tune(model, trials=2, space="session", out=tmp_path / "out")
    assert result.trials == 2
    assert world.searched == []
    assert (tmp_path / "out" / "best.json").is_file()


def test_answers_that_differ_from_those_of_the_trial_are_refused(tmp_path: Path) -> None:
    """Right answers are as near as they were, whatever the limit allows; all others are wrong."""
    (tmp_path / "source").mkdir()
    model = _model(tmp_path / "source", ["w"])
    out = tmp_path / "out"
    result = FakeWorld(thread_cost).tune(model, trials=1, space="session", out=out)
    far = replace(result.best.evidence, error=0.02)
    _rewrite(result, far, model)
    _judged(out, 0.023)  # other kernels round elsewhere
    with pytest.raises(CannotMeasureError, match=r"error 0\.04, and trial 0 had error 0\.02"):
        _judged(out, 0.04)
    _rewrite(result, replace(far, metric=0.5), model)
    _judged(out, 0.02, metric=0.5)
    with pytest.raises(CannotMeasureError, match=r"metric 0\.4, and trial 0 had .* metric 0\.5"):
        _judged(out, 0.02, metric=0.4)


def _rewrite(result: StudyResult, evidence: Evidence, model: Path) -> None:
    """Writes the result again, its default with this evidence."""
    preparer = Preparer(describe(model), result.folder / "cache", workload=None, signature="")
    member = replace(result.best, evidence=evidence)
    write(replace(result, members=(member,)), preparer)


def _made(folder: Path, value: float) -> PreparedModel:
    """Returns a model of one addition, as a study's cache holds it."""
    path, weight = folder / f"{value}.onnx", np.full((1, 2), value, np.float32)
    save_onnx(path, "y = Add (x, w)", {"w": weight}, x="float[1,2] x", y="float[1,2] y")
    return PreparedModel(path=path, data_files=(), sha256=digest_files([path]), steps=())


class _Made:
    """A preparer that has one model."""

    def __init__(self, model: PreparedModel) -> None:
        self._model = model

    def prepare(self, _: object) -> PreparedModel:
        return self._model


def _answer(folder: Path, name: str = "best.json") -> float:
    config = folder / name
    check_files(config, TunedConfig.read(config), read_all=True)
    session = onnxruntime.InferenceSession(folder / TunedConfig.read(config).model.file)
    return float(np.asarray(session.run(None, {"x": np.zeros((1, 2), np.float32)})[0])[0, 0])


def _write(folder: Path, made: PreparedModel, trial: int) -> StudyResult:
    result = made_results.result(
        made_results.member(7, {"optimizer.NchwcTransformer": "off"}, 1.5), folder=folder
    )
    return write(replace(result, picked=trial), _Made(made))  # type: ignore[arg-type]


class _KilledError(BaseException):
    """The process ends here."""


def test_a_kill_between_any_two_steps_leaves_a_whole_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step that changes a file is the last one in turn; best.json loads, old or new.

    The next start finds a front that says the same, and leaves no other file.
    """
    old, new = (_made(tmp_path, value) for value in (1.0, 2.0))
    folder = tmp_path / "out"
    folder.mkdir()
    left = 0

    def killing(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise _KilledError
            return function(*arguments, **named)

        return step

    answers = []
    for steps in range(100):
        monkeypatch.undo()
        for file in folder.iterdir():
            file.unlink()
        _write(folder, old, 0)
        left = steps
        for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "touch"), (os, "fsync")):
            monkeypatch.setattr(owner, name, killing(getattr(owner, name)))
        monkeypatch.setattr(shutil, "copyfile", killing(shutil.copyfile))
        try:
            _write(folder, new, 7)
        except _KilledError:
            monkeypatch.undo()
            answers.append(_answer(folder))
            repair(folder)
            result = StudyResult.read(folder)
            assert agrees(result)
            assert result.picked == (0 if _answer(folder) == 1.0 else 7)
            assert {file.name for file in folder.iterdir()} == set(result.files)
        else:
            break
    monkeypatch.undo()
    assert _answer(folder) == 2.0
    assert len(answers) > 10
    assert answers == sorted(answers)
    assert set(answers) == {1.0, 2.0}


def test_a_copy_of_a_config_keeps_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    old = _write(folder, _made(tmp_path, 1.0), 0)
    shutil.copy(folder / "best.json", folder / "fast.json")
    _write(folder, _made(tmp_path, 2.0), 7)
    assert (folder / old.files[1]).is_file()
    assert _answer(folder, "fast.json") == 1.0
    (folder / "fast.json").unlink()
    _write(folder, _made(tmp_path, 2.0), 0)
    assert not (folder / old.files[1]).exists()


def test_a_front_follows_the_config_in_its_folder(tmp_path: Path) -> None:
    """Someone put an older best.json with its model back, and left front.json as it was."""
    folder, kept = tmp_path / "out", tmp_path / "kept"
    folder.mkdir()
    _write(folder, _made(tmp_path, 1.0), 0)
    shutil.copytree(folder, kept)
    _write(folder, _made(tmp_path, 2.0), 7)
    shutil.copytree(kept, folder, ignore=lambda *_: ["front.json"], dirs_exist_ok=True)
    assert not agrees(StudyResult.read(folder))
    repair(folder)
    result = StudyResult.read(folder)
    assert agrees(result)
    assert result.picked == 0
    # a config of another study is left alone, and does not count
    data = json.loads((folder / "best.json").read_text("utf-8"))
    data["model"]["source_sha256"] = "another"
    (folder / "best.json").write_text(json.dumps(data), "utf-8")
    repair(folder)
    assert not agrees(StudyResult.read(folder))
    assert json.loads((folder / "best.json").read_text("utf-8")) == data


def test_a_model_that_was_not_measured_is_written_with_its_own_answers(tmp_path: Path) -> None:
    """A cache was lost, and the model was made again by another version of a tool."""
    folder, made = tmp_path / "out", _made(tmp_path, 1.0)
    folder.mkdir()
    member = replace(made_results.member(7, {}, 1.5), files_sha256="another")
    result = replace(made_results.result(member, folder=folder), picked=7)
    with pytest.raises(CannotMeasureError, match="another file than the one that was measured"):
        write(result, _Made(made))  # type: ignore[arg-type]
    assert list(folder.iterdir()) == []
    now = Fidelity(error=0.03, cosine=1.0, max_difference=0.1, agreement=0.9)
    written = write(result, _Made(made), lambda _: now)  # type: ignore[arg-type]
    assert written.best.files_sha256 == made.sha256
    assert TunedConfig.read(folder / "best.json").evidence.error == 0.03
    assert "compared again" in written.notes[-1]


def test_a_config_that_the_check_refuses_leaves_the_old_one(tmp_path: Path) -> None:
    old, new = (_made(tmp_path, value) for value in (1.0, 2.0))
    folder = tmp_path / "out"
    folder.mkdir()
    result = _write(folder, old, 0)
    before = sorted(file.name for file in folder.iterdir())

    def refuse(config: Path) -> None:
        assert config.name != "best.json"
        raise CannotMeasureError("wrong answers")

    with pytest.raises(CannotMeasureError, match="wrong answers"):
        write(result, _Made(new), refuse)  # type: ignore[arg-type]
    assert sorted(file.name for file in folder.iterdir()) == before
    assert _answer(folder) == 1.0


@pytest.mark.parametrize(
    ("code", "words"),
    [(errno.ENOSPC, "make room on its disk"), (errno.EACCES, "let this user write to it")],
)
def test_a_fault_of_the_disk_names_the_folder_and_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    """It names no temporary file, and leaves none."""
    made, folder = _made(tmp_path, 1.0), tmp_path / "out"
    folder.mkdir()

    def fail(_: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code), str(target))

    monkeypatch.setattr(shutil, "copyfile", fail)
    with pytest.raises(StorageError, match=words) as fault:
        _write(folder, made, 7)
    assert f"cannot write the result to {folder}: {os.strerror(code)}" in str(fault.value)
    assert "It came to trial 7" in str(fault.value)
    assert "1.50 times as fast" in str(fault.value)
    assert list(folder.iterdir()) == []


def test_a_model_that_cannot_be_made_again_is_no_traceback(tmp_path: Path) -> None:
    class Broken:
        def prepare(self, _: object) -> PreparedModel:
            raise PreparationError("crashed", "onnxslim crashed")

    with pytest.raises(CannotMeasureError, match=r"cannot be made again \(onnxslim crashed\)"):
        write(made_results.result(folder=tmp_path), Broken())  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_a_member_that_broke_a_limit_is_not_picked(tmp_path: Path) -> None:
    broken = made_results.member(3, {"arena": "off"}, 2.0, 20.0, admitted=False)
    fine = made_results.member(4, {"optimizer.NchwcTransformer": "off"}, 1.2, 80.0)
    result = made_results.result(broken, fine, folder=tmp_path)
    for prefer in ("latency", "memory"):
        chosen = choose_member(result, prefer=prefer, max_memory_mib=None, max_latency_ms=None)
        assert chosen.trial == 4
    with pytest.raises(StudyError, match="trial 3 broke a limit"):
        pick_member(result, 3)
