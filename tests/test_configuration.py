"""A configuration is canonical, has a key and words, and falls into two halves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_spaces import VALUES

from autotune.deploy.options import Value
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import PARAMETERS


@given(values=VALUES, data=st.data())
def test_a_configuration_does_not_depend_on_order(
    values: dict[str, Value], data: st.DataObject
) -> None:
    shuffled = dict(data.draw(st.permutations(list(values.items()))))
    assert Configuration.of(shuffled) == Configuration.of(values)
    assert Configuration.of(shuffled).key == Configuration.of(values).key


@given(values=VALUES)
def test_a_configuration_holds_only_what_differs_from_the_default(values: dict[str, Value]) -> None:
    kept = Configuration.of(values).to_json()
    assert kept == {n: v for n, v in values.items() if v != PARAMETERS[n].default}
    assert Configuration.of(kept) == Configuration.of(values)


@given(one=VALUES, other=VALUES)
def test_keys_tell_configurations_apart(one: dict[str, Value], other: dict[str, Value]) -> None:
    first, second = Configuration.of(one), Configuration.of(other)
    assert (first.key == second.key) == (first == second)
    assert len(first.key) == 16


@given(values=VALUES)
def test_the_halves_make_the_whole(values: dict[str, Value]) -> None:
    whole = Configuration.of(values)
    assert Configuration.of({**whole.graph.to_json(), **whole.session.to_json()}) == whole


def test_defaults_are_the_baseline() -> None:
    defaults = {name: domain.default for name, domain in PARAMETERS.items()}
    assert Configuration.of(defaults) == BASELINE
    assert BASELINE.in_words() == "the default"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"intra_op_num_threads": 1}, "1 thread"),
        (
            {"intra_op_num_threads": 4, "optimizer.NchwcTransformer": "off"},
            "4 threads, no NCHWc layout",
        ),
        ({"inter_op_num_threads": 2}, "2 inter-op threads"),
        ({"graph_optimization_level": "ORT_ENABLE_BASIC"}, "graph level basic"),
        ({"graph_optimization_level": "ORT_DISABLE_ALL"}, "graph level disable_all"),
        ({"session.dynamic_block_base": "4"}, "dynamic_block_base=4"),
    ],
)
def test_a_configuration_in_words(values: dict[str, Value], words: str) -> None:
    assert Configuration.of(values).in_words() == words
