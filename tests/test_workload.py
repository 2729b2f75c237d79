"""What a model is fed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from factories import model_of, tensor

from autotune.errors import DataError, RequestError
from autotune.facts import workload
from autotune.facts.generated import generate, one_sample
from autotune.facts.workload import Workload, read


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


X = model_of(tensor("x", "float32", "batch", 3))
DTYPES = ["float16", "float32", "float64", "int32", "int64", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (2,), (1, 0), (2, 3, 4)])
def test_generated_arrays_have_type_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    workload = generate(model_of(tensor("x", dtype, *shape)), {})
    for feed in workload.feeds:
        assert isinstance(feed["x"], np.ndarray)
        assert feed["x"].dtype == np.dtype(dtype)
        assert feed["x"].shape == shape


def test_open_dimensions_are_one_unless_named() -> None:
    plain = generate(X, {})
    assert plain.feeds[0]["x"].shape == (1, 3)
    assert any("--shape x=1,3" in note for note in plain.notes)
    shaped = generate(X, {"x": (4, 3)})
    assert shaped.feeds[0]["x"].shape == (4, 3)
    assert not any("--shape" in note for note in shaped.notes)


def test_shapes_must_fit_the_model() -> None:
    with pytest.raises(RequestError, match=r"no input 'X'.*inputs are x"):
        generate(X, {"X": (1, 3)})
    with pytest.raises(RequestError, match=r"x=1,3,1: the model takes rank 2: \[batch, 3\]"):
        generate(X, {"x": (1, 3, 1)})
    with pytest.raises(RequestError, match=r"x=1,4: the model takes \[batch, 3\]"):
        generate(X, {"x": (1, 4)})


def test_one_sample_needs_the_memory_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its shapes were recorded, so the user is told of no option to set others."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=20 << 20))
    shapes = {"x": (1 << 17, 3)}
    with pytest.raises(RequestError, match="--shape x="):
        generate(X, shapes)
    assert one_sample(X, {**shapes, "optional": (1,)}, 0)["x"].shape == shapes["x"]
    with pytest.raises(DataError, match="24 MiB, and 20 MiB are free; close") as refused:
        one_sample(X, {"x": (1 << 20, 3)}, 0)
    assert "--" not in str(refused.value)
    with pytest.raises(DataError, match=r"input x \[1, 4\]: the model takes \[batch, 3\]"):
        one_sample(X, {"x": (1, 4)}, 0)


def test_the_seed_decides() -> None:
    assert generate(X, {}, 1).signature() == generate(X, {}, 1).signature()
    assert generate(X, {}, 1).signature() != generate(X, {}, 2).signature()
    first, second, *_ = generate(X, {}).feeds
    assert not np.array_equal(first["x"], second["x"])


def test_reading_splits_along_the_first_axis(tmp_path: Path) -> None:
    model = model_of(tensor("x", "float32", "b", 3), tensor("k", "int64"))
    rows = np.arange(12, dtype=np.float32).reshape(4, 1, 3)
    file = save(tmp_path / "a.npz", x=rows, k=np.arange(4))
    workload = read(model, file)
    assert workload.source == "user"
    assert len(workload.feeds) == 4
    for i, feed in enumerate(workload.feeds):
        assert np.array_equal(feed["x"], rows[i])
        assert isinstance(feed["k"], np.ndarray)
        assert feed["k"].shape == ()
        assert feed["k"].item() == i


def test_a_folder_may_vary_shapes(tmp_path: Path) -> None:
    for size in (1, 2, 3):
        save(tmp_path / f"{size}.npz", x=np.full((size, 3), size, np.float32))
    workload = read(X, tmp_path)
    assert [feed["x"].shape[0] for feed in workload.feeds] == [1, 2, 3]
    assert not workload.one_shape
    assert workload.dimensions(X) == {}


def test_one_sample_is_pointed_out(tmp_path: Path) -> None:
    workload = read(X, save(tmp_path / "a.npz", x=np.ones((1, 2, 3), np.float32)))
    assert any("one sample" in note for note in workload.notes)
    assert workload.calibration == workload.validation == workload.feeds


def test_dimensions_are_those_with_one_size() -> None:
    model = model_of(
        tensor("x", "float32", "batch", "n", None), tensor("y", "float32", "batch", "n")
    )
    feed = {"x": np.ones((2, 5, 4), np.float32), "y": np.ones((2, 6), np.float32)}
    workload = Workload(feeds=(feed, feed), source="user", notes=())
    assert workload.dimensions(model) == {"batch": 2}


def workload_with(**arrays: Any) -> Workload:
    return Workload(feeds=(arrays,), source="user", notes=())


def test_the_signature_tells_workloads_apart() -> None:
    zeros = np.zeros((200, 200), np.float32)
    changed = zeros.copy()
    changed[123, 45] = 1e-30
    others = [
        workload_with(x=changed),
        workload_with(x=zeros.reshape(100, 400)),
        workload_with(x=zeros.view(np.int32)),
        workload_with(y=zeros),
        workload_with(x=zeros, y=zeros),
        Workload(feeds=({"x": zeros}, {"x": zeros}), source="user", notes=()),
    ]
    signatures = {workload_with(x=zeros).signature(), *(other.signature() for other in others)}
    assert len(signatures) == len(others) + 1
    assert workload_with(x=zeros.T.copy().T).signature() == workload_with(x=zeros).signature()


@pytest.mark.parametrize("count", [2, 3, 8, 31, 300])
def test_calibration_and_validation_are_disjoint(count: int) -> None:
    feeds = tuple({"x": np.full(1, i)} for i in range(count))
    workload = Workload(feeds=feeds, source="user", notes=())
    calibration, validation, timing = (
        {feed["x"].item() for feed in part}
        for part in (workload.calibration, workload.validation, workload.timing)
    )
    assert calibration
    assert validation
    assert timing
    assert calibration.isdisjoint(validation)
    assert len(calibration) <= 128
    assert len(validation) <= 16
    assert len(timing) <= 8


@pytest.mark.parametrize("count", [9, 15, 23, 300])
def test_samples_are_spread_over_all(count: int) -> None:
    """Data sorted by length are timed on long inputs too, and compared on all classes."""
    feeds = tuple({"x": np.full(1, i)} for i in range(count))
    workload = Workload(feeds=feeds, source="user", notes=())
    timing = [feed["x"].item() for feed in workload.timing]
    assert len(set(timing)) == 8
    assert (timing[0], timing[-1]) == (0, count - 1)
    assert max(np.diff(timing)) <= count / 7 + 1
    for part in (workload.calibration, workload.validation):
        assert part[-1]["x"].item() >= count - 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"X": np.ones((2, 1, 3), np.float32)}, r"no input 'X'.*inputs are x"),
        ({}, "no array for the input 'x'"),
        ({"x": np.ones((2, 1, 3))}, r"holds float64.*float32.*astype\('float32'\)"),
        (
            {"x": np.ones((2, 3), np.float32)},
            r"counts the samples.*, x=x\[:, None\]\) for 2 samples, or .*, x=x\[None\]\) for one",
        ),
        ({"x": np.ones((1, 3), np.float32)}, r"Type numpy.savez\(file, x=x\[None\]\) for one"),
        ({"x": np.ones(3, np.float32)}, r"Type numpy.savez\(file, x=x\[None, None\]\) for one"),
        ({"x": np.ones((2, 5), np.float32)}, r"shape \[5\].*rank 2: \[batch, 3\]"),
        ({"x": np.ones((2, 1, 4), np.float32)}, r"shape \[1, 4\].*\[batch, 3\]"),
        ({"x": np.ones((0, 1, 3), np.float32)}, "x: 0"),
        ({"x": np.float32(1)}, "x: 0"),
        ({"x": np.array([{}, []], object)}, "Python objects"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], words: str
) -> None:
    file = save(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=words) as caught:
        read(X, file)
    assert str(file) in str(caught.value)


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file or folder"):
        read(X, tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"holds no \.npz file"):
        read(X, tmp_path)
    text = tmp_path / "text.npz"
    text.write_text("text", encoding="ascii")
    with pytest.raises(DataError, match=r"text\.npz"):
        read(X, text)
    lone = tmp_path / "lone.npy"
    np.save(lone, np.ones(3))
    with pytest.raises(DataError, match=r"savez"):
        read(X, lone)
    whole = save(tmp_path / "whole.npz", x=np.ones((2, 1, 3), np.float32))
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"cut\.npz"):
        read(X, cut)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_inputs_may_be_missing_or_infinite(tmp_path: Path, value: float) -> None:
    """Trees take NaN for a missing value, masks hold -inf: the answers decide."""
    array = np.ones((2, 1, 3), np.float32)
    array[1, 0, 2] = value
    feeds = read(X, save(tmp_path / "inputs.npz", x=array)).feeds
    assert np.array_equal(feeds[1]["x"], array[1], equal_nan=True)


def test_optional_inputs_may_be_fed(tmp_path: Path) -> None:
    model = model_of(tensor("x", "float32", 3), optional=(tensor("gain", "float32", 1),))
    x = np.ones((2, 3), np.float32)
    with_gain = read(model, save(tmp_path / "a.npz", x=x, gain=np.ones((2, 1), np.float32)))
    assert set(with_gain.feeds[0]) == {"x", "gain"}
    assert set(read(model, save(tmp_path / "b.npz", x=x)).feeds[0]) == {"x"}
    with pytest.raises(DataError, match=r"'gain'.*takes \[1\]"):
        read(model, save(tmp_path / "c.npz", x=x, gain=np.ones((2, 2), np.float32)))
    with pytest.raises(DataError, match=r"no input 'gains'.*inputs are x; optional ones are gain"):
        read(model, save(tmp_path / "d.npz", x=x, gains=np.ones((2, 1), np.float32)))


def test_inputs_become_native(tmp_path: Path) -> None:
    """ONNX Runtime reads big-endian numbers as others, so they are converted."""
    given = np.asarray([[[2.0, 3.0, 4.0]]] * 2, ">f4")
    workload = read(X, save(tmp_path / "inputs.npz", x=np.asfortranarray(given)))
    for feed in workload.feeds:
        assert feed["x"].dtype == np.float32
        assert feed["x"].dtype.isnative
        assert feed["x"].flags.c_contiguous
        assert feed["x"].tolist() == [[2, 3, 4]]
    native = read(X, save(tmp_path / "native.npz", x=given.astype(np.float32)))
    assert workload.signature() == native.signature()


def test_a_model_without_inputs_takes_no_data(tmp_path: Path) -> None:
    model = model_of()
    assert [dict(feed) for feed in generate(model, {}).feeds] == [{}] * 8
    with pytest.raises(DataError, match=r"model\.onnx has no inputs; leave --data out"):
        read(model, save(tmp_path / "a.npz", x=np.ones(2)))


def test_samples_without_size_are_not_counted_for_ever(tmp_path: Path) -> None:
    model = model_of(tensor("x", "float32", 0))
    file = save(tmp_path / "a.npz", x=np.ones((10**9, 0), np.float32))
    with pytest.raises(DataError, match=r"holds 1000000000 samples; save from 1 to 100000"):
        read(model, file)


def test_a_folder_keeps_the_limit_of_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "LARGEST_BYTES", 150)
    for name in "abcd":
        save(tmp_path / f"{name}.npz", x=np.ones((1, 3), np.float32))
    with pytest.raises(DataError, match=r"b\.npz.*save fewer samples"):
        read(X, tmp_path)


def test_labels_go_with_their_samples(tmp_path: Path) -> None:
    x = np.arange(40, dtype=np.float32).reshape(40, 1, 1).repeat(3, axis=2)
    workload = read(X, save(tmp_path / "data.npz", x=x, labels=np.arange(40)))
    assert set(workload.feeds[0]) == {"x"}
    assert len(workload.judged) == 16
    assert all(feed["labels"] == feed["x"][0, 0] for feed in workload.judged)
    plain = read(X, save(tmp_path / "plain.npz", x=x))
    assert plain.judged == plain.validation
    assert plain.signature() != workload.signature()
    with pytest.raises(DataError, match="labels: 39"):
        read(X, save(tmp_path / "fewer.npz", x=x, labels=np.arange(39)))


def test_an_input_may_be_called_labels(tmp_path: Path) -> None:
    model = model_of(tensor("labels", "float32", 1))
    workload = read(model, save(tmp_path / "data.npz", labels=np.ones((2, 1), np.float32)))
    assert set(workload.feeds[0]) == {"labels"}
    assert workload.labels == ()


def test_labels_in_a_folder_belong_to_their_files(tmp_path: Path) -> None:
    x = np.ones((1, 3), np.float32)
    for i in range(2):
        save(tmp_path / f"{i}.npz", x=x, labels=np.asarray(i))
    assert [label.item() for label in read(X, tmp_path).labels] == [0, 1]
    save(tmp_path / "2.npz", x=x)
    with pytest.raises(DataError, match="2 of the 3 files"):
        read(X, tmp_path)


@pytest.mark.parametrize("dtype", [*DTYPES, "str"])
def test_every_type_is_read(tmp_path: Path, dtype: str) -> None:
    given = np.full((2, 3), "é") if dtype == "str" else np.ones((2, 3), dtype)
    model = model_of(tensor("x", dtype, 3), tensor("k", dtype))
    workload = read(model, save(tmp_path / "a.npz", x=given, k=given[:, 0]))
    for name, expected in (("x", given[1]), ("k", given[1, 0])):
        assert np.array_equal(workload.feeds[1][name], expected)
        assert workload.feeds[1][name].dtype == given.dtype
