"""What each option takes, and that every table is one that ONNX Runtime agrees with."""

from collections.abc import Mapping
from pathlib import Path

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
from autotune.runtimes.library import unknown_names

_RELEASE = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
_ON_ARM = "mlas.enable_gemm_fastmath_arm64_bfloat16"


@pytest.mark.parametrize(
    ("domain", "words", "values"),
    [
        (
            ATTRIBUTES["enable_mem_pattern"],
            "must be one of True, False",
            (1, 0, "true", "1", None, 1.0),
        ),
        (
            ATTRIBUTES["intra_op_num_threads"],
            "must be a whole number",
            (True, False, "4", 4.0, None, [4]),
        ),
        (
            SESSION_ENTRIES["session.dynamic_block_base"],
            "must be a whole number written as a string",
            # digits of another script, a superscript, and what Python's int would take as well
            (4, True, "four", "-4", "4.0", " 4", "", "4" * 13, None, "\u0664", "\u00b2", "1_0"),
        ),
        (
            SESSION_ENTRIES["session.disable_prepacking"],
            "must be one of '0', '1'",
            (0, 1, True, "2", "", "on"),
        ),
        (ARENA_OPTIONS["arena_extend_strategy"], "must be one of 0, 1", (True, False, "1", 2)),
    ],
)
def test_look_alikes_are_refused(domain: Domain, words: str, values: tuple[object, ...]) -> None:
    """A boolean is no number, and a number no string, although Python takes 1 for True."""
    for value in values:
        assert domain.problem(value) == f"{words}, not {value!r}"


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
    assert [domain.problem(value) for value in inside] == [None] * len(inside)
    for value in outside:
        assert domain.problem(value) == f"must be from {domain.low} to {domain.high}, not {value!r}"


@pytest.mark.parametrize("table", [ATTRIBUTES, SESSION_ENTRIES, RUN_ENTRIES, ARENA_OPTIONS])
def test_a_default_is_a_value(table: Mapping[str, Domain]) -> None:
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


@pytest.mark.skipif(_RELEASE < (1, 32), reason="some options are newer")
def test_onnx_runtime_knows_every_name() -> None:
    names = {*SESSION_ENTRIES, *RUN_ENTRIES, *OPTIMIZERS, "no.such_key"} - {_ON_ARM}
    assert unknown_names(names, Path(onnxruntime.__file__).parent) == ("no.such_key",)


def test_no_option_names_a_file() -> None:
    names = {*ATTRIBUTES, *SESSION_ENTRIES, *RUN_ENTRIES, *ARENA_OPTIONS}
    names |= {option for provider in PROVIDERS.values() for option in provider.options}
    hints = ("file", "path", "prefix", "library", "external", "context", "profil")
    assert [name for name in sorted(names) if any(hint in name.lower() for hint in hints)] == []


def test_an_unknown_option_comes_with_the_nearest() -> None:
    assert unknown_option("session.disable_prepackin", SESSION_ENTRIES) == (
        "'session.disable_prepackin' is not an option that may be set here. "
        "Did you mean 'session.disable_prepacking'?"
    )
    assert unknown_option("zzz", ATTRIBUTES) == "'zzz' is not an option that may be set here."
