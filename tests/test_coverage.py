"""How much a comparison of answers proves."""

import numpy as np

from autotune.deploy.config import Coverage
from autotune.measure.coverage import coverage_of, incomparable
from autotune.measure.flatten import flatten
from autotune.report.coverage import coverage_remarks


def _coverage(*values: object) -> Coverage:
    """Returns the coverage of one output with these values, sample by sample."""
    return coverage_of([{"y": np.asarray(value)} for value in values], 0.0)


def _remarks(coverage: Coverage | None) -> list[str]:
    return [remark.plain for remark in coverage_remarks(coverage)]


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
    """One output that is NaN everywhere is enough; an empty one is not."""
    good, bad = np.ones(2), np.full(2, np.nan)
    assert incomparable([{"a": good, "b": good}]) is None
    assert incomparable([{"a": good, "b": bad}, {"a": good, "b": good}]) is None
    assert incomparable([{"a": good, "b": bad}] * 2) == (
        "all numbers of the output 'b' are NaN or infinite"
    )
    assert incomparable([{"a": np.ones(0)}]) is None
    assert incomparable([{"a": np.asarray([1, 2])}]) is None
    assert incomparable([{}]) == "it has no outputs"


def test_each_weakness_is_a_sentence() -> None:
    """A comparison that proves what it should has no remark."""
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
    assert _remarks(many)[0].startswith("The outputs 'a', 'b', 'c' and 2 more are the same")
