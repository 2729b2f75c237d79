"""What a search begins with."""

import pytest
from small_spaces import machine, model

from autotune.facts import workload
from autotune.search.portfolio import portfolio
from autotune.space.candidate import BASELINE
from autotune.space.files import find_space
from autotune.space.resolve import resolve


@pytest.mark.parametrize(("features", "saturates"), [(("avx2",), True), (("avx_vnni",), False)])
def test_the_first_candidates_in_int8_do_not_saturate(
    features: tuple[str, ...], saturates: bool
) -> None:
    """On x86 without VNNI their weights are unsigned, and elsewhere they are as before."""
    described = model(operators={"Conv": 4, "MatMul": 4})
    inputs = workload.generate(described, {})
    space = resolve(find_space("default"), described, inputs, machine(4, features))
    first = portfolio(space)
    assert first[0] == BASELINE
    quantised = [
        candidate.to_json()
        for candidate in first
        if candidate.to_json().get("precision") in {"int8_static", "int8_dynamic"}
    ]
    assert len(quantised) == 3
    assert all(values.get("unsigned_weights", False) == saturates for values in quantised)
