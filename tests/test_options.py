"""What each option takes, and that every table is one that ONNX Runtime agrees with."""

from collections.abc import Mapping

import onnxruntime
import pytest

from autotune.deploy.options import (
    ARENA_OPTIONS,
    ATTRIBUTES,
    OPTIMIZERS,
    RUN_ENTRIES,
    SESSION_ENTRIES,
    Domain,
    unknown_option,
)
from autotune.deploy.providers import PROVIDERS


@pytest.mark.parametrize("value", [1, 0, "true", "1", None, 1.0], ids=repr)
def test_a_boolean_takes_nothing_but_booleans(value: object) -> None:
    """A number or a word is no boolean, although 1 equals true in Python."""
    problem = ATTRIBUTES["enable_mem_pattern"].problem(value)
    assert problem == f"must be one of True, False, not {value!r}"


@pytest.mark.parametrize("value", [True, False, "4", 4.0, None, [4]], ids=repr)
def test_a_whole_number_is_neither_a_boolean_nor_a_string(value: object) -> None:
    """An attribute that counts takes an integer and no look-alike of one."""
    problem = ATTRIBUTES["intra_op_num_threads"].problem(value)
    assert problem == f"must be a whole number, not {value!r}"


@pytest.mark.parametrize(
    "value",
    # digits of another script, a superscript, and what Python's int would take as well
    [4, True, "four", "-4", "4.0", " 4", "", "4" * 13, None, "\u0664", "\u00b2", "1_0"],
    ids=ascii,
)
def test_a_number_of_an_entry_is_a_string_of_digits(value: object) -> None:
    """A config entry that counts takes a short string of digits alone."""
    problem = SESSION_ENTRIES["session.dynamic_block_base"].problem(value)
    assert problem == f"must be a whole number written as a string, not {value!r}"


@pytest.mark.parametrize("value", [0, 1, True, "2", "", "on"], ids=repr)
def test_a_flag_of_an_entry_is_a_string(value: object) -> None:
    """A config entry that is a flag takes ``"0"`` and ``"1"`` alone."""
    problem = SESSION_ENTRIES["session.disable_prepacking"].problem(value)
    assert problem == f"must be one of '0', '1', not {value!r}"


@pytest.mark.parametrize("value", [True, False, "1", 2], ids=repr)
def test_a_listed_number_is_neither_a_boolean_nor_a_string(value: object) -> None:
    """An arena option that is listed as 0 and 1 refuses booleans and strings."""
    problem = ARENA_OPTIONS["arena_extend_strategy"].problem(value)
    assert problem == f"must be one of 0, 1, not {value!r}"


@pytest.mark.parametrize(
    ("domain", "inside", "outside"),
    [
        (ATTRIBUTES["intra_op_num_threads"], (0, 4096), (-1, 4097)),
        (SESSION_ENTRIES["session.intra_op.spin_backoff_max"], ("1", "64"), ("0", "65")),
        (
            SESSION_ENTRIES["mlas.nchwc_pointwise_conv_max_input_channel_batch"],
            ("8", "4096"),
            ("7", "4097"),
        ),
        (SESSION_ENTRIES["session.intra_op.spin_duration_us"], ("0", "1000000"), ("1000001",)),
    ],
)
def test_both_ends_of_a_range_belong_to_it(
    domain: Domain, inside: tuple[object, ...], outside: tuple[object, ...]
) -> None:
    """A range takes its ends, and the refusal of what lies beyond them tells both."""
    assert [domain.problem(value) for value in inside] == [None] * len(inside)
    for value in outside:
        assert domain.problem(value) == f"must be from {domain.low} to {domain.high}, not {value!r}"


@pytest.mark.parametrize("table", [ATTRIBUTES, SESSION_ENTRIES, RUN_ENTRIES, ARENA_OPTIONS])
def test_a_default_is_a_value(table: Mapping[str, Domain]) -> None:
    """Each default is taken, save the empty one that has no number of its own."""
    wrong = [
        name
        for name, domain in table.items()
        if domain.default != "" and domain.problem(domain.default)
    ]
    assert wrong == []


@pytest.mark.parametrize("table", [SESSION_ENTRIES, RUN_ENTRIES])
def test_values_of_entries_are_strings(table: Mapping[str, Domain]) -> None:
    """ONNX Runtime's entries map strings to strings, and so do the tables."""
    values = [value for domain in table.values() for value in (domain.default, *domain.choices)]
    assert {type(value) for value in values} == {str}


@pytest.mark.parametrize("name", sorted(ATTRIBUTES))
def test_a_default_is_the_runtimes_own(name: str) -> None:
    """The default of an attribute is what a fresh ``SessionOptions()`` has."""
    value = getattr(onnxruntime.SessionOptions(), name)
    assert getattr(value, "name", value) == ATTRIBUTES[name].default


def test_no_option_names_a_file() -> None:
    """No option lets a config read, write or load anything beside its model."""
    names = {*ATTRIBUTES, *SESSION_ENTRIES, *RUN_ENTRIES, *ARENA_OPTIONS}
    names |= {option for provider in PROVIDERS.values() for option in provider.options}
    hints = ("file", "path", "prefix", "library", "external", "context", "profil")
    assert [name for name in sorted(names) if any(hint in name.lower() for hint in hints)] == []


def test_optimizers_are_bare_names() -> None:
    """The names of optimizers are words, so that the long text was cut rightly."""
    assert all(name.isalnum() and name[0].isupper() for name in OPTIMIZERS)
    assert {"NchwcTransformer", "ConstantFolding", "MatMulAddFusion"} <= OPTIMIZERS


def test_an_unknown_option_comes_with_the_nearest() -> None:
    """A typo is named with the option that it resembles, and nonsense alone."""
    assert unknown_option("session.disable_prepackin", SESSION_ENTRIES) == (
        "'session.disable_prepackin' is not an option that may be set here. "
        "Did you mean 'session.disable_prepacking'?"
    )
    assert unknown_option("zzz", ATTRIBUTES) == "'zzz' is not an option that may be set here."
