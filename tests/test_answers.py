"""How far answers are from other answers."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.deploy.config import Coverage
from autotune.errors import RequestError
from autotune.facts.output_parts import UNKNOWN, Origins, Producer
from autotune.measure.answers import (
    OutputJudge,
    OutputMismatchError,
    Outputs,
    compare,
    coverage_of,
    uncompared,
)
from autotune.measure.flatten import flatten
from autotune.measure.outcome import Fidelity
from autotune.report.remarks import coverage_remarks

Array = NDArray[np.generic]


def _compare(reference: object, output: object) -> Fidelity:
    return compare([{"y": np.asarray(reference)}], [{"y": np.asarray(output)}])


def _mismatch(reference: object, output: object) -> str:
    """Returns why the output cannot be compared with the reference."""
    return _mismatch_of([{"y": np.asarray(reference)}], [{"y": np.asarray(output)}])


def _mismatch_of(references: list[Outputs], outputs: list[Outputs]) -> str:
    with pytest.raises(OutputMismatchError) as caught:
        compare(references, outputs)
    return str(caught.value)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_are_wrong(wrong: float) -> None:
    assert _mismatch([1.0, 2.0, 3.0], [1.0, wrong, 3.0]) == (
        "the output 'y' has NaN or infinite values where the unoptimised model has numbers"
    )


def test_nan_and_inf_of_the_reference_are_right() -> None:
    reference = [np.nan, np.inf, 1.0]
    assert _compare(reference, reference).error == 0
    for other in ([np.nan, -np.inf, 1.0], [np.inf, np.nan, 1.0], [0.0, np.inf, 1.0]):
        assert "lacks NaN or infinite values" in _mismatch(reference, other)


def _samples(*arrays: Sequence[float]) -> list[Outputs]:
    return [{"y": np.asarray(array)} for array in arrays]


def test_zeros_are_compared_with_the_size_of_the_other_samples() -> None:
    """A rounding error in a sample of zeros is none; one as large as the other samples is."""
    references = _samples([0.0, 0.0], [1.0, 1.0])
    assert compare(references, references).error == 0
    assert compare(references, _samples([0.0, 1e-9], [1.0, 1.0])).error < 1e-7
    assert compare(references, _samples([1.0, 1.0], [1.0, 1.0])).error > 1


def test_the_users_metric_is_asked_of_both() -> None:

    def first_value(outputs: object, references: object, inputs: object) -> float:
        assert inputs == []
        return float(outputs[0]["y"][0])  # type: ignore[index]

    judge = OutputJudge([{"y": np.asarray([3.0, 4.0])}], [], first_value)
    fidelity = judge.compare([{"y": np.asarray([2.5, 4.0])}])
    assert (fidelity.metric, fidelity.drop) == (2.5, 0.5)
    assert fidelity.error == pytest.approx(0.1)


def test_the_worst_output_decides() -> None:
    good, bad = np.array([[1.0, 2.0]]), np.array([[2.0, 1.0]])
    fidelity = compare([{"a": good, "b": good}], [{"a": good, "b": bad}])
    assert fidelity.error == pytest.approx((2 / 5) ** 0.5)
    assert fidelity.agreement == 0


def test_one_bad_sample_is_not_averaged_away() -> None:
    """Of one sample at 0.6 among fifteen at 0.01 an eighth counts, more than a limit of 0.05."""
    outputs = _samples(*[[1.01, 1.01]] * 15, [1.6, 1.6])
    fidelity = compare(_samples(*[[1.0, 1.0]] * 16), outputs)
    assert fidelity.error == pytest.approx(0.075)
    assert fidelity.worst_error == pytest.approx(0.6)


def test_one_bad_sequence_of_tokens_is_not_averaged_away() -> None:
    tokens = [{"y": np.zeros(100, np.int64)}] * 16
    wrong = {"y": np.where(np.arange(100) < 61, 1, 0)}
    assert compare(tokens, [*tokens[1:], wrong]).error == pytest.approx(0.075)
    classes = [{"y": np.asarray(0)}] * 16
    assert compare(classes, [*classes[1:], {"y": np.asarray(1)}]).error == pytest.approx(1 / 16)


def test_rows_of_nan_are_no_agreement() -> None:
    reference = [[np.nan, 1.0], [2.0, 3.0], [4.0, 3.0]]
    assert _compare(reference, [[np.nan, 1.0], [3.0, 2.0], [4.0, 3.0]]).agreement == 0.5
    masked = [[-np.inf, 1.0], [2.0, -np.inf]]
    assert _compare(masked, masked).agreement == 1
    assert _compare([[np.nan, 1.0]], [[np.nan, 1.0]]).agreement is None


def test_only_classes_have_an_agreement() -> None:
    """The last axis of a detector is one of boxes; that of probabilities or logits is not."""
    scores = _NUMBERS.reshape(1, 4, 10)
    assert _compare(scores, scores).agreement is None
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert _compare(shares, shares[..., ::-1]).agreement == 0
    assert _compare(_NUMBERS, _NUMBERS[:, ::-1]).agreement == 0
    assert compare([{"logits": scores}], [{"logits": scores}]).agreement == 1


def _coverage(*values: object) -> Coverage:
    """Returns the coverage of one output with these values, sample by sample."""
    return coverage_of([{"y": np.asarray(value)} for value in values], 0.0)


def _remarks(coverage: Coverage | None) -> list[str]:
    return [remark.text for remark in coverage_remarks(coverage)]


def test_samples_and_numbers_are_counted() -> None:
    """NaN and infinite values of the reference are not compared; the share of the others is."""
    assert _coverage([1.0, 2.0], [3.0, 4.0]) == Coverage(
        samples=2, share=1.0, constant_outputs=(), repeat_error=0.0
    )
    assert _coverage([1.0, np.nan], [np.inf, 4.0]).share == 0.5
    assert _coverage([1, 2], [3, 4]).share == 1.0


def test_an_output_that_never_varies_is_named() -> None:
    """What is the same for all samples may as well be a constant; so may what is empty."""
    assert _coverage([1.0, 2.0], [1.0, 2.0]).constant_outputs == ("y",)
    assert _coverage([1.0, np.nan], [1.0, np.nan]).constant_outputs == ("y",)
    assert _coverage(["cat"], ["cat"]).constant_outputs == ("y",)
    assert _coverage([], []).constant_outputs == ("y",)
    assert _coverage([1.0, 2.0], [1.0, 2.5]).constant_outputs == ()
    assert _coverage([1.0], [1.0, 1.0]).constant_outputs == ()


def test_one_sample_shows_no_constant() -> None:
    """With one sample nobody can say what varies."""
    assert _coverage([1.0, 2.0]).constant_outputs == ()


def test_lengths_and_keys_are_no_answers() -> None:
    """How many elements a sequence has and which classes a map names hardly ever varies."""
    values = [[[np.ones(1) * i], {"cat": 0.1 * i}] for i in range(2)]
    references = [flatten(["s", "m"], value) for value in values]
    assert coverage_of(references, 0.0).constant_outputs == ()


def test_outputs_without_a_number_cannot_be_compared() -> None:
    """One output that is NaN everywhere, empty in all samples or an empty sequence is enough."""
    good, bad = np.ones(2), np.full(2, np.nan)
    assert uncompared([{"a": good, "b": good}]) == ()
    assert uncompared([{"a": good, "b": bad}, {"a": good, "b": good}]) == ()
    assert uncompared([{"a": good, "b": bad}] * 2) == ("b",)
    assert uncompared([{"a": np.ones(0)}]) == ("a",)
    assert uncompared([{"a": np.asarray([1, 2])}]) == ()
    assert uncompared([flatten(["s", "m"], [[], {"cat": 0.1}])]) == ("s",)
    assert coverage_of([{"a": np.ones(0)}], 0.0).share == 0


def test_without_a_comparison_only_an_unchanged_graph_is_right() -> None:
    empty: list[Outputs] = [{"a": np.ones(0)}]
    assert (
        "nothing can be compared in the output 'a'" in OutputJudge(empty, [], None).only_unchanged
    )
    assert OutputJudge(empty, [], lambda *_: 1.0).only_unchanged == ""
    assert OutputJudge([{"a": np.ones(1)}], [], None).only_unchanged == ""


def test_each_weakness_is_a_sentence() -> None:
    sound = Coverage(samples=8, share=1.0, constant_outputs=(), repeat_error=0.0)
    assert _remarks(sound) == _remarks(None) == []
    weak = Coverage(samples=8, share=0.75, constant_outputs=("y",), repeat_error=0.01)
    constant, partial, varying = _remarks(weak)
    assert constant == (
        "The output 'y' is the same for all 8 samples, so the comparison of the answers proves "
        "little. Give other inputs with --data."
    )
    assert partial == (
        "25 % of the numbers in the outputs were not compared: they are NaN or infinite in the "
        "unoptimised model."
    )
    assert varying == (
        "The answers of the model differ from run to run: error 0.01 between two runs on the same "
        "inputs."
    )
    many = Coverage(samples=8, share=1.0, constant_outputs=tuple("abcde"), repeat_error=0.0)
    nothing = Coverage(
        samples=8,
        share=0.0,
        constant_outputs=("y",),
        repeat_error=0.0,
        uncompared_outputs=("y",),
    )
    (words,) = _remarks(nothing)
    assert words.startswith("Nothing could be compared in 'y': empty, or without a finite number")
    assert _remarks(many)[0].startswith("The outputs 'a', 'b', 'c' and 2 more are the same")


_TWO = np.ones(2)


@pytest.mark.parametrize(
    ("reference", "output", "words"),
    [
        ({"y": _TWO, "z": _TWO}, {"y": _TWO}, "the output 'z' is missing"),
        ({"y": _TWO}, {"z": _TWO}, "the output 'y' is missing"),
        ({"y": _TWO}, {"y": _TWO, "z": _TWO}, "the unoptimised model has no output 'z'"),
        (
            {"y": _TWO},
            {"y": np.ones((1, 2))},
            "the output 'y' has the shape [1, 2], and the unoptimised model's has [2]",
        ),
        (
            {"y": _TWO},
            {"y": np.array(["one", "two"])},
            "the output 'y' has the type <U3, and the unoptimised model's has float64",
        ),
        (
            {"y": np.array([1, 2])},
            {"y": _TWO},
            "the output 'y' has the type float64, and the unoptimised model's has int64",
        ),
    ],
)
def test_other_outputs_are_named(reference: Outputs, output: Outputs, words: str) -> None:
    assert _mismatch_of([reference], [output]) == words
    assert _mismatch_of([reference, reference], [reference, output]) == words
    assert _mismatch_of([reference], []) == "0 samples have outputs, and not 1"


_NUMBERS = np.random.default_rng(1).standard_normal((4, 10)).astype(np.float32)


_LARGE = np.full(1000, 60000, np.float16)


@pytest.mark.parametrize(
    ("reference", "output", "error", "agreement"),
    [
        (_NUMBERS, _NUMBERS, 0.0, 1.0),
        # ten per cent too large, in the same direction
        (_NUMBERS, _NUMBERS * np.float32(1.1), 0.1, 1.0),
        # of zeros alone a difference counts as it is
        (np.zeros(2), np.full(2, 1e-9), 1e-9, None),
        (np.zeros(2), np.ones(2), 1.0, None),
        # classes are few small values; the share that differs counts
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), 0.25, None),
        # half precision is compared in double precision
        (_LARGE, _LARGE, 0.0, None),
        (_LARGE, -_LARGE, 2.0, None),
        # a detector that finds nothing agrees with one that finds nothing
        (np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32), 0.0, None),
        (np.zeros(0, np.int64), np.zeros(0, np.int64), 0.0, None),
    ],
    ids=["equal", "scaled", "tiny", "zeros", "whole", "half", "overflow", "empty", "no classes"],
)
def test_the_error_of_answers(
    reference: Array, output: Array, error: float, agreement: float | None
) -> None:
    fidelity = _compare(reference, output)
    assert fidelity.error == pytest.approx(error, rel=1e-5)
    assert fidelity.agreement == agreement


def _origins(**outputs: Sequence[Producer]) -> Origins:
    return Origins(outputs, {})


def _made_by(operator: str) -> Origins:
    return _origins(y=[Producer(number=1, tensor="t", operator=operator)])


_DRAWN = np.random.default_rng(2)
# the boxes of a detector in pixels, and the scores of four classes
_BOXES = _DRAWN.uniform(50, 600, (8, 1, 4, 60))
_SCORES = _DRAWN.uniform(0, 1, (8, 1, 4, 60)) ** 8


def _detector(scores: Array, boxes: Array = _BOXES, *, rows_last: bool = False) -> list[Outputs]:
    joined = np.concatenate([boxes, scores], axis=2)
    return [{"y": array.transpose(0, 2, 1) if rows_last else array} for array in joined]


_JOINED = (
    Producer(number=1, tensor="boxes", operator="Mul"),
    Producer(number=2, tensor="scores", operator="Sigmoid"),
)


def _joined(rows_last: bool) -> Origins:
    numbers = np.repeat([1, 2], 4)[None, :, None] * np.ones((1, 1, 60), np.int32)
    numbers = numbers.transpose(0, 2, 1) if rows_last else numbers
    return Origins({"y": _JOINED}, {("y", numbers.shape): numbers})


@pytest.mark.parametrize("rows_last", [False, True])
def test_scores_beside_boxes_are_judged_by_themselves(rows_last: bool) -> None:
    """By the producers, and without them by the scales; one distance over all hides the scores."""
    right = _detector(_SCORES, rows_last=rows_last)
    none = _detector(0 * _SCORES, rows_last=rows_last)
    for origins in (_joined(rows_last), UNKNOWN):
        fidelity = compare(right, none, origins)
        assert fidelity.error >= 1
        place = "y[:, :, 4:8]" if rows_last else "y[:, 4:8]"
        assert fidelity.worst_part.startswith(place)
    noisy = _detector(_SCORES + 0.001, _BOXES + 1, rows_last=rows_last)
    assert compare(right, noisy, _joined(rows_last)).error < 0.02


def test_producers_that_lie_in_no_rows_are_parts() -> None:
    """As where levels of a pyramid are joined anchor by anchor, one after the other."""
    numbers = _DRAWN.integers(1, 3, (1, 8, 60)).astype(np.int32)
    origins = Origins({"y": _JOINED}, {("y", numbers.shape): numbers})
    right = [{"y": np.where(numbers == 1, 400.0, each)} for each in _SCORES.repeat(2, 2)]
    lost = [{"y": np.where(numbers == 1, 400.0, 0.1)} for _ in right]
    fidelity = compare(right, lost, origins)
    assert fidelity.error >= 1
    assert fidelity.worst_part == "y (scores): the same everywhere"


def test_massive_channels_hide_no_others() -> None:
    states = _DRAWN.standard_normal((8, 1, 12, 96)) * np.where(np.arange(96) < 2, 3000, 1)
    wrong = np.where(np.arange(96) < 2, states, 0.0)
    fidelity = compare([{"y": a} for a in states], [{"y": a} for a in wrong])
    assert fidelity.error >= 1
    assert fidelity.worst_part == "y[:, :, 2:96]: the same everywhere"


@pytest.mark.parametrize("shape", [(1, 14, 8, 8), (1, 8, 8, 14), (1, 14, 5, 7), (1, 2, 8, 8, 7)])
def test_channels_of_a_head_are_parts_wherever_they_lie(shape: tuple[int, ...]) -> None:
    """Boxes and scores of each anchor out of one convolution, in more channels than columns."""
    axis = next(i for i, size in enumerate(shape) if size in (7, 14))
    scale = np.where(np.arange(shape[axis]) % 7 < 4, 100.0, 0.3)
    scale = scale.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    right = _DRAWN.standard_normal((8, *shape)) * scale
    lost = np.where(scale > 1, right, 0)
    assert compare([{"y": a} for a in right], [{"y": a} for a in lost]).error >= 1
    noisy = right * (1 + 0.002 * _DRAWN.standard_normal(right.shape))
    assert compare([{"y": a} for a in right], [{"y": a} for a in noisy]).error < 0.01


def test_positions_of_a_picture_are_no_columns() -> None:
    """Where there is nothing in most of a picture, what is there decides."""
    picture = np.zeros((8, 1, 1, 40, 40)) + 1e-3 * _DRAWN.standard_normal((8, 1, 1, 40, 40))
    for i, each in enumerate(picture):
        each[..., 3 * i : 3 * i + 10, 5 : 5 + 3 * i + 5] += 1
    noisy = picture + 1e-3 * _DRAWN.standard_normal(picture.shape)
    assert compare([{"y": a} for a in picture], [{"y": a} for a in noisy]).error < 0.01


def test_one_lost_class_is_wrong_however_rare_it_is() -> None:
    """Its share of the norm is small; that of a class which is absent from all samples is none."""
    scores = np.full((8, 1, 40, 100), 1e-6)
    scores[:, 0, :39, :30] = _DRAWN.uniform(0.3, 0.9, (8, 39, 30))
    scores[3, 0, 38], scores[:, 0, 39] = 1e-6, 1e-6 * _DRAWN.uniform(0.5, 1.5, (8, 100))
    scores[5, 0, 39, 2], lost = 1e-5, scores.copy()
    lost[:, 0, 39] = 0
    sigmoid = _made_by("Sigmoid")
    right, given = ([{"y": a} for a in each] for each in (scores, lost))
    assert compare(right, given, sigmoid).error < 1e-3
    lost[:, 0, 7] = 1e-6
    fidelity = compare(right, given, sigmoid)
    assert fidelity.error >= 1
    assert fidelity.worst_part == "y: the same everywhere at place 7 of axis 1"


def test_small_scores_that_all_become_zero_are_wrong() -> None:
    scores = _DRAWN.uniform(0.002, 0.015, (8, 1, 4, 60))
    right, lost = [{"y": a} for a in scores], [{"y": 0 * a} for a in scores]
    assert compare(right, lost, _made_by("Sigmoid")).error >= 1


def test_whole_numbers_are_classes_only_where_they_are() -> None:
    picture = _DRAWN.integers(0, 256, (16, 16)).astype(np.uint8)
    brighter = np.where(picture < 255, picture + 1, picture).astype(np.uint8)
    assert _compare(picture, brighter).error < 0.01
    assert _compare(picture, brighter).max_difference == 1
    assert compare([{"token_ids": picture}], [{"token_ids": brighter}]).error > 0.9
    argmax = compare([{"y": picture}], [{"y": brighter}], _made_by("ArgMax"))
    assert argmax.error > 0.9
    boxes = np.array([[10, 20, 200, 300]], np.int32)
    assert _compare(boxes, boxes + 1).error < 0.01


def test_the_metric_decides_about_the_number_of_boxes() -> None:
    found, one_less = [{"y": np.ones((100, 4))}], [{"y": np.ones((99, 4))}]
    assert "bring --metric" in _mismatch_of(list(found), list(one_less))
    fidelity = OutputJudge(found, [], lambda o, *_: len(o[0]["y"]) / 100).compare(one_less)
    assert (fidelity.metric, fidelity.error) == (0.99, 1)
    assert fidelity.coverage is None


def test_a_metric_without_a_number_is_the_configurations_failure() -> None:
    judge = OutputJudge([{"y": np.ones(1)}], [], lambda o, *_: 1 / float(o[0]["y"][0]) ** 2)
    with pytest.raises(OutputMismatchError, match="finite"):
        judge.compare([{"y": np.full(1, np.nan)}])
    with pytest.raises(RequestError, match="finite"):
        OutputJudge([{"y": np.ones(1)}], [], lambda *_: float("nan"))


def test_absent_classes_of_a_softmax_are_no_part() -> None:
    """However the softmax was written: what no sample shows is small, and no other unit."""
    logits = _DRAWN.standard_normal((16, 1, 40))
    logits[:, 0, 20:] -= 12
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    rough = np.exp(logits * 1.02)
    rough /= rough.sum(-1, keepdims=True)
    assert compare([{"y": a} for a in shares], [{"y": a} for a in rough]).error < 0.05
