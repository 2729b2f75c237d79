"""Transformed models: made once, found again, and every fault an outcome."""

import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from factories import normal, save_onnx
from small_models import distance, write

import autotune
from autotune.deploy.files import digest_files
from autotune.deploy.options import Value
from autotune.facts.feeds import save_samples
from autotune.facts.generated import generate
from autotune.facts.model import Model, describe
from autotune.graph import calibration, float_model, prepare, prepare_child, sensitivity, smoothing
from autotune.graph.float_model import FloatModel
from autotune.graph.intermediates import Intermediates
from autotune.graph.prepare import PreparationError, Preparer
from autotune.process import child
from autotune.process.child import Child, ChildFailure

_SHRUNK: dict[str, Value] = {"weight_storage": "external_data"}
_INT8: dict[str, Value] = {"precision": "int8_static", "per_channel": True}
_NARROW: dict[str, Value] = {**_INT8, "reduce_range": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path, _ = write("transformer", tmp_path_factory.mktemp("model"))
    return describe(path)


def _preparer(model: Model, folder: Path, *, samples: bool = True) -> Preparer:
    workload = generate(model, {})
    signature = workload.signature()
    return Preparer(model, folder, workload=workload if samples else None, signature=signature)


@pytest.fixture
def preparer(model: Model, tmp_path: Path) -> Preparer:
    return _preparer(model, tmp_path)


@pytest.mark.process
def test_an_empty_graph_half_is_the_users_file(model: Model, tmp_path: Path) -> None:
    prepared = _preparer(model, tmp_path / "cache").prepare({})
    assert prepared.path == model.path.absolute()
    assert prepared.steps == ()
    assert not (tmp_path / "cache").exists()


def test_an_option_without_its_precision_is_the_users_file(
    preparer: Preparer, model: Model
) -> None:
    """A user may fix scales for each channel for all configurations, those in float among them."""
    assert preparer.prepare({"per_channel": True}).path == model.path.absolute()
    looked_at = preparer.looked_at({"per_channel": True})
    assert looked_at == preparer.looked_at({})
    assert looked_at.graph_digest is not None


def test_a_model_is_made_once(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _preparer(model, tmp_path).prepare(_SHRUNK)
    assert first.steps == ("external data",)
    assert [file.name for file in first.data_files] == ["best.onnx.data"]
    monkeypatch.setattr(prepare, "_CHILD", "no.such.module")
    assert _preparer(model, tmp_path).prepare(_SHRUNK) == first
    feeds = generate(model, {}).feeds
    assert distance(model.path, first.path, feeds) < 1e-4


def test_the_same_graph_has_the_same_digest(preparer: Preparer) -> None:
    source = preparer.looked_at({}).graph_digest
    assert source is not None
    assert preparer.looked_at(_SHRUNK).graph_digest == source
    assert preparer.looked_at(_INT8).graph_digest != source


def test_weights_of_branches_count(tmp_path: Path) -> None:
    body = (
        "z = If (flag) <then_branch = t () => (float[2] p) { p = Add (x, w) }, "
        "else_branch = e () => (float[2] q) { q = Sub (x, w) }>"
    )
    digests = set()
    for weight in (1.0, 2.0):
        constants = {"w": np.full(2, weight, np.float32)}
        path = tmp_path / f"{weight}.onnx"
        save_onnx(path, body, constants, x="bool flag, float[2] x", y="float[2] z")
        digests.add(_preparer(describe(path), tmp_path / "cache").looked_at({}).graph_digest)
    assert None not in digests
    assert len(digests) == 2


def test_a_model_that_changed_meanwhile_is_not_prepared(tmp_path: Path) -> None:
    path, _ = write("cnn", tmp_path)
    model = describe(path)
    path.write_bytes(path.read_bytes() + b"\x00")
    with pytest.raises(PreparationError, match="changed"):
        _preparer(model, tmp_path / "cache").prepare({"pre_pass": "ort_basic"})


def test_a_relative_folder_will_do(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert _preparer(model, Path("cache")).prepare(_INT8).path.is_file()


def test_a_refusal_is_remembered(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = write("lstm", tmp_path)
    lstm = describe(path)
    refused = {"pre_pass": "ort_transformers"}
    with pytest.raises(PreparationError, match=r"ort_transformers: no pattern") as first:
        _preparer(lstm, tmp_path / "cache").prepare(refused)
    assert first.value.kind == "refused"
    # every pre-pass of which it is a part is refused, and its values need not be tried
    assert "algebra+ort_transformers" in first.value.unfit["pre_pass"]
    monkeypatch.setattr(prepare, "_CHILD", "no.such.module")
    with pytest.raises(PreparationError, match="no pattern") as second:
        _preparer(lstm, tmp_path / "cache").prepare(refused)
    assert second.value.unfit == first.value.unfit


def test_without_samples_nothing_is_calibrated(model: Model, tmp_path: Path) -> None:
    """A later command has the samples that the study left, or says that they are gone."""
    with pytest.raises(PreparationError, match="calibration samples"):
        _preparer(model, tmp_path / "none", samples=False).prepare(_INT8)
    made = _preparer(model, tmp_path / "left").prepare(_INT8)
    shutil.rmtree(made.path.parent)
    again = _preparer(model, tmp_path / "left", samples=False).prepare(_INT8)
    assert again.sha256 == made.sha256


_SLEEPER = """
import os, time
from autotune.process.child_end import serve
serve({"convert": lambda message: time.sleep(600)})
"""
_KILLED = """
import os, signal
from autotune.process.child_end import serve
serve({"convert": lambda message: os.kill(os.getpid(), signal.SIGKILL)})
"""


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
@pytest.mark.parametrize(("script", "kind"), [(_SLEEPER, "timeout"), (_KILLED, "killed")])
def test_a_step_that_hangs_or_dies(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kind: str
) -> None:
    """A tool that hangs costs its time limit; one that was killed may be tried again."""
    (tmp_path / "hostile_child.py").write_text(script, encoding="utf-8")
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
        patched.setattr(prepare, "_CHILD", "hostile_child")
        patched.setattr(prepare, "_TIME_LIMIT_S", 2.0)
        with pytest.raises(PreparationError) as failure:
            _preparer(model, tmp_path / "cache").prepare(_SHRUNK)
    assert failure.value.kind == kind
    if kind == "killed":
        assert _preparer(model, tmp_path / "cache").prepare(_SHRUNK).path.is_file()


def _undescribed(path: Path, model: Model) -> Model:
    """Returns the facts of `model` for a file that nobody looked at."""
    digest = digest_files([path])
    return Model(**{**vars(model), "path": path, "sha256": digest, "data_names": ()})


@pytest.mark.process
@pytest.mark.parametrize("name", ["onnxslim", "onnxsim"])
def test_a_decompression_bomb_is_an_outcome(model: Model, tmp_path: Path, name: str) -> None:
    bomb = save_onnx(
        tmp_path / "bomb.onnx",
        "huge = ConstantOfShape (size) sum = ReduceSum <keepdims = 0> (huge) y = Add (x, sum)",
        {"size": np.asarray([2**38], np.int64)},
        x="float[1] x",
        y="float[1] y",
    )
    preparer = _preparer(_undescribed(bomb, model), tmp_path / "cache")
    try:
        prepared = preparer.prepare({"pre_pass": name})
    except PreparationError as error:
        kind = error.kind
    else:
        kind = "left alone" if prepared.path.stat().st_size < 10_000 else "folded"
    assert kind in {"refused", "out_of_memory", "crashed", "killed", "left alone"}


@pytest.mark.parametrize("kind", ["timeout", "failed", "out_of_memory"])
def test_what_may_go_well_another_time_is_tried_again(
    preparer: Preparer, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A refusal is kept; a timeout or a lost file says nothing about the model."""

    def fail(*_: Any) -> Any:
        raise ChildFailure(kind, "not this time")

    with monkeypatch.context() as patched:
        patched.setattr(Child, "request", fail)
        with pytest.raises(PreparationError, match="not this time"):
            preparer.prepare(_SHRUNK)
    assert preparer.prepare(_SHRUNK).path.is_file()


def test_a_shared_file_that_was_evicted_is_no_refusal(model: Model, tmp_path: Path) -> None:
    """The folder of what files share goes while a child works; the next attempt makes it again."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Preparer, "_shared", lambda *_: [str(tmp_path / "evicted")])
        with pytest.raises(PreparationError) as failure:
            _preparer(model, tmp_path).prepare(_INT8)
    assert failure.value.kind == "failed"
    assert _preparer(model, tmp_path).prepare(_INT8).path.is_file()


def test_a_file_of_another_version_of_autotune_is_made_again(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = _preparer(model, tmp_path).prepare(_SHRUNK)
    monkeypatch.setattr(autotune, "__version__", "99.0")
    assert _preparer(model, tmp_path).prepare(_SHRUNK).path != first.path


def test_a_damaged_entry_is_made_again(model: Model, tmp_path: Path) -> None:
    made = _preparer(model, tmp_path).prepare(_SHRUNK)
    facts = made.path.parent / "facts.json"
    content = json.loads(facts.read_text("utf-8"))
    facts.write_text(json.dumps({**content, "graph_digest": 1}), "utf-8")
    assert _preparer(model, tmp_path).prepare(_SHRUNK).graph_digest == made.graph_digest


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[::-1]])
def test_a_file_that_is_not_the_one_that_was_kept_is_made_again(
    model: Model, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    """A loss of power left it empty, or some of its bits turned."""
    made = _preparer(model, tmp_path).prepare(_SHRUNK)
    data = made.path.read_bytes()
    made.path.write_bytes(damage(data))
    assert _preparer(model, tmp_path).prepare(_SHRUNK).sha256 == made.sha256
    assert made.path.read_bytes() == data


def _counted(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, counts: dict[str, int]
) -> None:
    """Makes `counts` say how often the function of this name is called."""
    function = getattr(module, name)

    def counting(*arguments: Any, **options: Any) -> Any:
        counts[name] = counts.get(name, 0) + 1
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, counting)


def test_what_is_costly_is_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: dict[str, int] = {}
    _counted(monkeypatch, float_model, "make_ready", counts)
    _counted(monkeypatch, calibration, "activation_ranges", counts)
    _counted(monkeypatch, smoothing, "largest_inputs", counts)
    _counted(monkeypatch, sensitivity, "ranked", counts)
    source, feeds = write("transformer", tmp_path)
    save_samples(feeds, tmp_path / "samples.npz")
    (tmp_path / "shared").mkdir()

    def make(name: str, **options: Value) -> None:
        prepare_child.convert(
            {
                "source": str(source),
                "folder": tempfile.mkdtemp(dir=tmp_path),
                "samples": str(tmp_path / "samples.npz"),
                "shared": [str(tmp_path / "shared")],
                "steps": [[name, options]],
            }
        )

    make("int8_static", kept_in_float=1)
    once = {"make_ready": 1, "activation_ranges": 1, "ranked": 1}
    assert counts == once
    make("int8_static", kept_in_float=2, per_channel=True, quantized_operators="products")
    make("int8_static", symmetric=True)
    make("int8_dynamic", kept_in_float=2)
    assert counts == once
    make("int8_static", calibration="percentile")
    assert counts == {**once, "activation_ranges": 2}
    make("int8_dynamic", smoothing="0.5")
    make("int8_dynamic", smoothing="0.7")
    assert counts == {**once, "activation_ranges": 2, "largest_inputs": 1}
    make("int8_static", smoothing="0.5")
    assert counts == {**once, "activation_ranges": 3, "largest_inputs": 1}


@pytest.mark.filterwarnings("ignore")
def test_passes_that_leave_the_products_leave_their_ranking(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: dict[str, int] = {}
    _counted(monkeypatch, sensitivity, "ranked", counts)
    feeds, v, w = [{"x": normal(i, 2, 4)} for i in (0, 1)], normal(2, 4, 4), normal(3, 4, 4)

    def most_sensitive(name: str, body: str, **constants: np.ndarray) -> list[int]:
        """Returns the number of the product that is kept in float, without smoothing and with."""
        source = save_onnx(tmp_path / f"{name}.onnx", body, constants, x="float[2,4] x")
        (tmp_path / name).mkdir()
        ready = FloatModel.ready(source, feeds, Intermediates(tmp_path / name, tmp_path))
        products = sensitivity.quantisable(ready.load())
        models = (ready, ready.smoothed("0.5"))
        return [products.index(model.most_sensitive((), 1, [])[0]) for model in models]

    body = "m = MatMul (x, v) r = Relu (m) y = MatMul (r, w)"
    first = most_sensitive("first", body, v=v, w=w)
    assert most_sensitive("copied", f"{body} z = Relu (m)", v=v, w=w) == first
    assert counts == {"ranked": 2}
    most_sensitive("other", body, v=w, w=v)
    assert counts == {"ranked": 4}


@pytest.mark.process
def test_a_pass_before_other_steps_runs_once(
    preparer: Preparer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = preparer.prepare({"pre_pass": "onnxslim", "precision": "int8_dynamic"})
    asked: list[list[Any]] = []
    send = Child.send

    def noting(child: Child, message: Any) -> None:
        asked.append([name for name, _ in message["steps"]])
        send(child, message)

    monkeypatch.setattr(Child, "send", noting)
    second = preparer.prepare(
        {"pre_pass": "onnxslim", "precision": "int8_dynamic", "per_channel": True}
    )
    assert asked == [["int8_dynamic"]]
    assert preparer.prepare({"pre_pass": "onnxslim"}).steps == ("onnxslim",)
    assert len(asked) == 1
    preparer.prepare({"pre_pass": "onnxslim", **_SHRUNK})
    assert asked[1:] == [["external_data"]]
    assert first.steps == ("onnxslim", "int8 dynamic")
    assert second.sha256 != first.sha256


@pytest.mark.parametrize("precision", ["int8_dynamic", "int8_static"])
def test_products_between_fused_operators_are_quantised(tmp_path: Path, precision: str) -> None:
    """Types that shape inference does not know, behind such operators, are those of the session."""
    body = (
        "a = com.microsoft.Gelu (x) b = MatMul (a, w0) c = com.microsoft.Gelu (b) "
        "d = MatMul (c, w1) y = com.microsoft.Gelu (d)"
    )
    constants = {f"w{seed}": normal(seed, 32, 32) / 6 for seed in range(2)}
    path = tmp_path / "fused.onnx"
    model = describe(save_onnx(path, body, constants, x="float[4,32] x", y="float[4,32] y"))
    half: dict[str, Value] = {"precision": precision, "per_channel": True, "reduce_range": True}
    prepared = _preparer(model, tmp_path / "cache").prepare(half)
    counts = Counter(node.op_type for node in onnx.load(prepared.path).graph.node)
    assert counts["MatMulInteger"] == 2 or counts["QuantizeLinear"] >= 2
    assert distance(model.path, prepared.path, generate(model, {}).feeds) < 0.1


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    children: list[Child] = []

    def start(*arguments: Any) -> Child:
        children.append(Child(*arguments))
        return children[-1]

    monkeypatch.setattr(child, "Child", start)
    return children


@pytest.mark.process
def test_a_child_makes_one_file_after_another(
    preparer: Preparer, model: Model, tmp_path: Path, started: list[Child]
) -> None:
    with preparer.child.kept():
        first = preparer.prepare(_INT8)
        (child,) = started
        assert child.is_running()
        assert [path.name for path in child.folder.iterdir()] == ["stderr.txt"]
        second = preparer.prepare(_NARROW)
        assert started == [child]
    assert not child.is_running()
    assert not child.folder.exists()
    alone = _preparer(model, tmp_path / "alone")
    assert alone.prepare(_INT8).sha256 == first.sha256
    assert alone.prepare(_NARROW).sha256 == second.sha256
    assert len(started) == 3
    assert not any(child.is_running() or child.folder.exists() for child in started)


@pytest.mark.process
def test_a_child_that_refused_or_has_grown_is_not_kept(
    preparer: Preparer, started: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What failed may leave things behind; memory is needed for what is measured."""
    with preparer.child.kept():
        with pytest.raises(PreparationError):
            preparer.prepare({"precision": "int8_weight_only", "block_size": 7})
        assert not started[0].is_running()
        monkeypatch.setattr(child, "_MOST_KEPT_MIB", 1)
        preparer.prepare(_INT8)
        assert [child.is_running() for child in started] == [False, False]


@pytest.mark.process
def test_a_child_whose_files_stay_is_not_kept(
    preparer: Preparer, started: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next file must not be made of what the last one left."""
    monkeypatch.setattr(Child, "empty_folder", lambda _: False)
    with preparer.child.kept():
        preparer.prepare(_INT8)
        assert not started[0].is_running()
        assert preparer.prepare(_NARROW).path.is_file()


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_kept_child_that_died_is_replaced(preparer: Preparer, started: list[Child]) -> None:
    with preparer.child.kept():
        preparer.prepare(_INT8)
        os.kill(started[0].pid, signal.SIGKILL)
        while started[0].is_running():
            time.sleep(0.01)
        assert preparer.prepare(_NARROW).path.is_file()
    assert len(started) == 2
    assert not any(child.folder.exists() for child in started)


@pytest.mark.process
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
def test_a_kept_child_is_suspended(preparer: Preparer, started: list[Child]) -> None:
    """Threads that a tool left behind must not run beside a measurement."""
    with preparer.child.kept():
        preparer.prepare(_INT8)
        process = psutil.Process(started[0].pid)
        while process.status() != psutil.STATUS_STOPPED:  # the system takes its time
            time.sleep(0.01)
        assert preparer.prepare(_NARROW).path.is_file()
    assert len(started) == 1


@pytest.mark.process
def test_an_interrupted_wait_leaves_no_child_that_answers_late(
    preparer: Preparer, started: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After Ctrl-C the best so far is prepared, by a child that was asked nothing before."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with preparer.child.kept():
        monkeypatch.setattr(Child, "receive", interrupt)
        with pytest.raises(KeyboardInterrupt):
            preparer.prepare(_INT8)
        monkeypatch.undo()
        assert not any(child.is_running() for child in started)
        assert preparer.prepare(_INT8).path.is_file()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source, _ = write("cnn", tmp_path)
    message = {"source": str(source), "folder": str(tmp_path), "samples": None, "shared": None}
    refusal = prepare_child.convert({**message, "steps": [["onnxslim", {}]]}).refusal
    assert refusal is not None
    assert refusal.message.startswith("onnxslim: the package")
    assert not refusal.of_model
