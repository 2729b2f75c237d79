"""A run's outputs as plain arrays."""

import numpy as np

from autotune.measure.flatten import flatten


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
