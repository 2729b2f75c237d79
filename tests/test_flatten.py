"""A run's outputs as plain arrays."""

import itertools

import numpy as np

from autotune.measure.flatten import flatten


def test_sequences_and_maps_are_flattened() -> None:
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


def test_no_two_outputs_have_one_name() -> None:
    ends = ("", "[0]", "[1]", ".length", ".keys", ".values", "[0]'", "''")
    names = ["".join(parts) for parts in itertools.product(("y",), ends, ends)]
    names = list(dict.fromkeys(names))
    kinds: list[object] = [np.ones(1), [np.ones(1), np.ones(1)], {"a": 1.0}, [[np.ones(1)]]]
    counts = [1, 3, 2, 3]
    for pair in itertools.permutations(names, 2):
        for (first, count), (second, more) in itertools.product(
            zip(kinds, counts, strict=True), repeat=2
        ):
            assert len(flatten(pair, [first, second])) == count + more, pair
