"""A candidate is canonical, has a key and words, and falls into two halves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_spaces import VALUES

from autotune.deploy.options import Value
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.parameters import PARAMETERS


@given(values=VALUES, data=st.data())
def test_a_candidate_does_not_depend_on_order(
    values: dict[str, Value], data: st.DataObject
) -> None:
    """The same values in another order are the same candidate with the same key."""
    shuffled = dict(data.draw(st.permutations(list(values.items()))))
    assert Candidate.of(shuffled) == Candidate.of(values)
    assert Candidate.of(shuffled).key == Candidate.of(values).key


@given(values=VALUES)
def test_a_candidate_holds_only_what_differs_from_the_default(values: dict[str, Value]) -> None:
    """Values that equal their default are dropped, and all others are kept."""
    kept = Candidate.of(values).to_json()
    assert kept == {n: v for n, v in values.items() if v != PARAMETERS[n].default}
    assert Candidate.of(kept) == Candidate.of(values)


@given(one=VALUES, other=VALUES)
def test_keys_tell_candidates_apart(one: dict[str, Value], other: dict[str, Value]) -> None:
    """Two candidates share a key only where they are equal."""
    first, second = Candidate.of(one), Candidate.of(other)
    assert (first.key == second.key) == (first == second)
    assert len(first.key) == 16


@given(values=VALUES)
def test_the_halves_make_the_whole(values: dict[str, Value]) -> None:
    """A candidate is the sum of the half for the file and the half for the session."""
    whole = Candidate.of(values)
    assert Candidate.of({**whole.graph.to_json(), **whole.session.to_json()}) == whole


def test_defaults_are_the_baseline() -> None:
    """A candidate of nothing but defaults is the baseline."""
    defaults = {name: domain.default for name, domain in PARAMETERS.items()}
    assert Candidate.of(defaults) == BASELINE
    assert BASELINE.in_words() == "the default"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"intra_op_num_threads": 1}, "1 thread"),
        ({"intra_op_num_threads": 4, "nchwc": "off"}, "4 threads, no NCHWc layout"),
        ({"inter_op_num_threads": 2}, "2 inter-op threads"),
        ({"graph_optimization_level": "ORT_ENABLE_BASIC"}, "graph level basic"),
        ({"graph_optimization_level": "ORT_DISABLE_ALL"}, "graph level disable_all"),
        ({"session.dynamic_block_base": "4"}, "dynamic_block_base=4"),
    ],
)
def test_a_candidate_in_words(values: dict[str, Value], words: str) -> None:
    """A person reads what differs from the default, in the order of the names."""
    assert Candidate.of(values).in_words() == words


def test_key_does_not_depend_on_order() -> None:
    """A candidate is its values, in any order."""
    one = Candidate.of({"arena": "off", "nchwc": "off"})
    other = Candidate.of({"nchwc": "off", "arena": "off", "spinning": "on"})
    assert one == other
    assert one.key == other.key
    assert one.in_words() == "no arena, no NCHWc layout"
