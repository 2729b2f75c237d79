"""A candidate is canonical, and each of its values does to a session what its name says."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.deploy.options import Domain, Value
from autotune.deploy.session import SessionConfig
from autotune.space.candidate import (
    BASELINE,
    COMPOSITES,
    PARAMETERS,
    Candidate,
    parse_value,
    session_config,
)


def values_of(domain: Domain) -> st.SearchStrategy[Value]:
    """Returns a strategy of the values that `domain` takes."""
    if domain.choices:
        return st.sampled_from(domain.choices)
    numbers = st.integers(domain.low, domain.high)
    return numbers.map(str) if isinstance(domain.default, str) else numbers


VALUES: st.SearchStrategy[dict[str, Value]] = st.fixed_dictionaries(
    {}, optional={name: values_of(domain) for name, domain in PARAMETERS.items()}
)


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
def test_any_candidate_opens_a_session_within_the_schema(values: dict[str, Value]) -> None:
    """The session config of any candidate is one that the closed schema takes."""
    session = session_config(Candidate.of(values), {"batch": 4})
    assert SessionConfig.from_json(session.to_json()) == session


@given(values=VALUES)
def test_the_halves_make_the_whole(values: dict[str, Value]) -> None:
    """A candidate is the sum of the half for the file and the half for the session."""
    whole = Candidate.of(values)
    assert Candidate.of({**whole.graph.to_json(), **whole.session.to_json()}) == whole


def test_defaults_are_the_baseline() -> None:
    """A candidate of nothing but defaults is the baseline, which opens a default session."""
    defaults = {name: domain.default for name, domain in PARAMETERS.items()}
    assert Candidate.of(defaults) == BASELINE
    assert BASELINE.in_words() == "the default"
    assert session_config(BASELINE, {"batch": 4}) == SessionConfig()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("nchwc", "off", SessionConfig(disabled_optimizers=("NchwcTransformer",))),
        (
            "spinning",
            "stop_after_run",
            SessionConfig(entries={"session.force_spinning_stop": "1"}),
        ),
        (
            "spinning",
            "off",
            SessionConfig(entries={"session.intra_op.allow_spinning": "0"}),
        ),
        ("arena", "off", SessionConfig(options={"enable_cpu_mem_arena": False})),
        (
            "arena",
            "same_as_requested",
            SessionConfig(
                entries={"session.use_env_allocators": "1"},
                env_allocator={"arena_extend_strategy": 1},
            ),
        ),
        (
            "arena_shrinkage",
            True,
            SessionConfig(run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"}),
        ),
        ("fixed_dimensions", True, SessionConfig(free_dimensions={"batch": 4})),
        ("intra_op_num_threads", 3, SessionConfig(options={"intra_op_num_threads": 3})),
        (
            "session.disable_prepacking",
            "1",
            SessionConfig(entries={"session.disable_prepacking": "1"}),
        ),
    ],
)
def test_what_a_value_does(name: str, value: Value, expected: SessionConfig) -> None:
    """Each kind of parameter turns into the options of ONNX Runtime that it stands for."""
    assert session_config(Candidate.of({name: value}), {"batch": 4}) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [(n, v) for n, d in COMPOSITES.items() for v in d.choices if v != d.default],
)
def test_every_composite_does_something(name: str, value: Value) -> None:
    """No value of a composite parameter opens the default session."""
    assert session_config(Candidate.of({name: value}), {"batch": 4}) != SessionConfig()


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


@given(data=st.data(), name=st.sampled_from(sorted(PARAMETERS)))
def test_a_value_survives_typing(data: st.DataObject, name: str) -> None:
    """Every value of every parameter can be typed and reads as itself, type included."""
    value = data.draw(values_of(PARAMETERS[name]))
    found = parse_value(name, str(value))
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("nchwc", "no", "nchwc must be one of 'on', 'off', not 'no'"),
        ("intra_op_num_threads", "true", "must be a whole number, not 'true'"),
        ("intra_op_num_threads", "-1", "must be a whole number, not '-1'"),
        ("enable_mem_pattern", "1", "must be one of True, False, not '1'"),
        ("session.disable_prepacking", "true", "must be one of '0', '1', not 'true'"),
    ],
)
def test_a_typed_value_outside_the_domain_is_refused(name: str, text: str, told: str) -> None:
    """What a parameter does not take is refused with what it takes."""
    with pytest.raises(ValueError) as caught:
        parse_value(name, text)
    assert told in str(caught.value)
    assert str(caught.value).startswith(name)
