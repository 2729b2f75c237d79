"""Search spaces: conditions, configurations and their neighbours, for any parameters."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_spaces import resolved

from autotune.deploy.options import Value
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.parameters import PARAMETERS
from autotune.space.space import Parameter, Space


def test_configurations_are_canonical() -> None:
    space = resolved("memory")
    assert space.configurations is not None
    assert len(set(space.configurations)) == len(space.configurations)
    for configuration in space.configurations:
        values = configuration.to_json()
        assert all(value != PARAMETERS[name].default for name, value in values.items())
        if values.get("arena") == "off":
            assert "arena_shrinkage" not in values


def test_conditions() -> None:
    """One thread has no spinning, and inter-op threads come only with parallel execution."""
    space = resolved()
    assert space.nearest({"intra_op_num_threads": 1, "spinning": "off"}) == Configuration.of(
        {"intra_op_num_threads": 1}
    )
    assert space.nearest({"inter_op_num_threads": 2}) == BASELINE
    both: dict[str, Value] = {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 2}
    assert space.nearest(both) == Configuration.of(both)


def test_digest_follows_the_configurations() -> None:
    assert resolved().digest() == resolved().digest()
    assert resolved().digest() != resolved(cores=2).digest()


def _foreign(name: str, *values: Any, **conditions: Any) -> Parameter:
    return Parameter(name=name, values=values, default=values[0], **conditions)


def _foreign_space() -> Space:
    """Returns a space as a plain Optuna study has it: names and values of its own, a condition."""
    return Space(
        name="foreign",
        description="",
        parameters=(
            _foreign("optimizer", "sgd", "adam", None),
            _foreign("rate", 0.1, 0.01, when={"optimizer": ("sgd",)}),
            _foreign("spinning", 1, 2, unless={"rate": (0.01,)}),
            _foreign("nowhere", 1, 2, when={"absent": (1,)}),
        ),
        left_out={},
        impossible=({"optimizer": ("adam",), "spinning": (2,)},),
    )


def test_a_space_may_have_names_and_values_of_its_own() -> None:
    listed = [configuration.to_json() for configuration in _foreign_space().configurations or ()]
    assert listed == [
        {},
        {"spinning": 2},
        {"rate": 0.01},
        {"optimizer": "adam"},
        {"optimizer": None},
        {"optimizer": None, "spinning": 2},
    ]


@pytest.mark.parametrize("space", [resolved(), _foreign_space()], ids=["resolved", "foreign"])
@given(data=st.data())
def test_any_choice_is_in_the_space(data: st.DataObject, space: Space) -> None:
    configuration = space.configuration(lambda p: data.draw(st.sampled_from(p.values)))
    assert space.nearest(space.assignment(configuration)) == configuration
    assert space.nearest(configuration.to_json()) == configuration
    neighbours = space.neighbours(configuration)
    assert neighbours
    assert configuration not in neighbours
    if space.configurations is not None:
        assert {configuration, *neighbours} <= set(space.configurations)


def test_a_condition_sees_the_default_of_a_parameter_that_is_left_out() -> None:
    waiting = Parameter(name="x", values=(1, 2), default=1, when={"arena": ("on",)})
    chosen: Mapping[str, Value] = {"arena": "off"}
    assert waiting.is_active({})
    assert not waiting.is_active(chosen)
