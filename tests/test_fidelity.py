"""How far answers are from other answers."""

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.fidelity import compare, flatten
from autotune.measure.outcome import Fidelity

Array = NDArray[np.generic]


def _compare(reference: object, output: object) -> Fidelity:
    return compare([{"y": np.asarray(reference)}], [{"y": np.asarray(output)}])


def test_equal_answers_have_no_error() -> None:
    """The same numbers are no error, and all classes agree."""
    numbers = np.random.default_rng(1).standard_normal((4, 10)).astype(np.float32)
    found = _compare(numbers, numbers.copy())
    assert found.error == 0
    assert found.max_difference == 0
    assert found.cosine == pytest.approx(1)
    assert found.agreement == 1


def test_a_scale_is_a_relative_error() -> None:
    """Answers ten per cent too large are an error of a tenth in the same direction."""
    numbers = np.random.default_rng(1).standard_normal((4, 10))
    found = _compare(numbers, numbers * 1.1)
    assert found.error == pytest.approx(0.1)
    assert found.cosine == pytest.approx(1)
    assert found.agreement == 1


def test_opposite_answers_point_the_other_way() -> None:
    """Answers of the other sign have cosine -1 and other classes."""
    found = _compare([[1.0, 2.0]], [[-1.0, -2.0]])
    assert found.cosine == pytest.approx(-1)
    assert found.error == pytest.approx(2)
    assert found.agreement == 0
    assert found.max_difference == pytest.approx(4)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_wrong(wrong: float) -> None:
    """A number that is none is an infinite error, whatever the others are."""
    assert _compare([1.0, 2.0, 3.0], [1.0, wrong, 3.0]).error == np.inf


def test_nan_and_inf_of_the_reference_are_right() -> None:
    """The same NaN and Inf at the same places are no error; elsewhere or of other sign they are."""
    reference = [np.nan, np.inf, 1.0]
    assert _compare(reference, reference).error == 0
    assert _compare(reference, [np.nan, -np.inf, 1.0]).error == np.inf
    assert _compare(reference, [np.inf, np.nan, 1.0]).error == np.inf
    assert _compare(reference, [0.0, np.inf, 1.0]).error == np.inf


def test_zeros_that_are_not_zero_are_an_infinite_error() -> None:
    """No relative error exists of nothing; equal zeros are equal."""
    assert _compare([0.0, 0.0], [0.0, 0.0]).error == 0
    assert _compare([0.0, 0.0], [0.0, 0.1]).error == np.inf


def test_other_shapes_and_names_are_wrong() -> None:
    """Answers of another form cannot be compared and are an infinite error."""
    assert _compare([1.0, 2.0], [[1.0, 2.0]]).error == np.inf
    assert compare([{"y": np.ones(2)}], [{"z": np.ones(2)}]).error == np.inf
    assert compare([{"y": np.ones(2)}], [{"y": np.ones(2), "z": np.ones(2)}]).error == np.inf
    assert compare([{"y": np.ones(2)}], []).error == np.inf
    assert _compare([1.0, 2.0], ["one", "two"]).error == np.inf
    assert _compare([1, 2], [1.0, 2.0]).error == np.inf


def test_integers_count_what_differs() -> None:
    """Of integers the share that differs is the error."""
    found = _compare([1, 2, 3, 4], [1, 2, 3, 5])
    assert found.error == 0.25
    assert found.agreement is None


def test_texts_count_what_differs() -> None:
    """Of strings the share that differs is the error, whatever their lengths."""
    assert _compare(["cat", "dog"], ["cat", "horse"]).error == 0.5
    assert _compare(["cat", "dog"], ["cat", "dog"]).error == 0


def test_the_worst_output_decides() -> None:
    """One good output does not excuse a bad one."""
    good, bad = np.ones((1, 2)), np.full((1, 2), 2.0)
    found = compare([{"a": good, "b": good}], [{"a": good, "b": bad}])
    assert found.error == pytest.approx(1)


def test_the_samples_are_averaged() -> None:
    """The error is the mean over the samples, the difference the largest."""
    one = {"y": np.ones(4)}
    found = compare([one, one], [one, {"y": np.full(4, 1.5)}])
    assert found.error == pytest.approx(0.25)
    assert found.max_difference == pytest.approx(0.5)


def test_half_precision_does_not_overflow() -> None:
    """Large half-precision answers are compared in double precision."""
    large = np.full(1000, 60000, np.float16)
    assert _compare(large, large).error == 0
    assert _compare(large, -large).error == pytest.approx(2)


def test_empty_answers_are_equal() -> None:
    """A detector that finds nothing agrees with one that finds nothing."""
    empty = np.zeros((0, 4), np.float32)
    assert _compare(empty, empty).error == 0
    assert _compare(np.zeros(0, np.int64), np.zeros(0, np.int64)).error == 0


def test_sequences_and_maps_are_flattened() -> None:
    """Sequences become arrays by index, maps keys and values, missing optionals nothing."""
    values: list[object] = [
        [np.ones(2), np.zeros(3)],
        [{"b": 0.25, "a": 0.75}],
        None,
        np.array(["x", "yy"], dtype=object),
        7,
    ]
    flat = flatten(["s", "m", "o", "t", "n"], values)
    assert list(flat) == [
        "s.length",
        "s[0]",
        "s[1]",
        "m.length",
        "m[0].keys",
        "m[0].values",
        "t",
        "n",
    ]
    assert flat["s.length"] == 2
    assert flat["m[0].keys"].tolist() == ["a", "b"]
    assert flat["m[0].values"].tolist() == [0.75, 0.25]
    assert flat["t"].dtype.kind == "U"
    assert all(array.dtype != object for array in flat.values())


def test_sequences_of_another_length_are_wrong() -> None:
    """A sequence with more elements than the reference's is an infinite error."""
    short: list[object] = [[np.ones(2)]]
    long: list[object] = [[np.ones(2), np.ones(2)]]
    assert compare([flatten(["s"], short)], [flatten(["s"], long)]).error == np.inf
    both = [flatten(["s"], short), flatten(["s"], long)]
    assert compare(both, both).error == 0
