"""Parameters of a search space, and the entries behind those of the model's file."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_spaces import values_of

from autotune.graph.parameters import (
    GRAPH_PARAMETERS,
    OPTIONS,
    PRECISIONS,
    STEPS,
    graph_words,
    steps_of,
)
from autotune.space.configuration import Configuration
from autotune.space.files import presets
from autotune.space.needs import NEEDS
from autotune.space.parameters import PARAMETERS, parse_value
from autotune.space.session import COMPOSITES

_GRAPH_VALUES = [
    (name, value)
    for name, parameter in GRAPH_PARAMETERS.items()
    for value in parameter.domain.choices
]


@pytest.mark.parametrize(("name", "value"), _GRAPH_VALUES)
def test_every_need_of_a_value_has_a_name(name: str, value: Any) -> None:
    assert set(GRAPH_PARAMETERS[name].needs(value)) <= NEEDS.keys()


_NO_STEPS = {("embeddings", "float")}


@pytest.mark.parametrize(("name", "value"), _GRAPH_VALUES)
def test_every_value_of_a_step_is_planned(name: str, value: Any) -> None:
    half = Configuration.of({name: value}).to_json()
    steps = [step.name for step in steps_of(half)]
    if name in OPTIONS or not half or (name, value) in _NO_STEPS:
        assert steps == []
    elif name == "embeddings":
        assert steps == ["int8_embeddings"]
    elif name == "caches":
        assert steps == ["int8_caches"]
    elif name == "joined_products":
        assert steps == [name]
    else:
        assert steps == str(value).split("+")
        assert set(steps) <= STEPS.keys()


def test_steps_have_their_order() -> None:
    half: dict[str, Any] = {
        "weight_storage": "external_data",
        "pre_pass": "onnxslim+ort_extended",
        "precision": "int8_dynamic",
        "per_channel": True,
        "calibration": "percentile",
        "embeddings": "int8",
    }
    assert steps_of(half) == (
        ("onnxslim", {}),
        ("int8_dynamic", {"per_channel": True, "embeddings": "int8"}),
        ("int8_embeddings", {}),
        ("ort_extended", {}),
        ("external_data", {}),
    )


def test_a_combination_needs_what_its_parts_need() -> None:
    needs = GRAPH_PARAMETERS["pre_pass"].needs
    assert needs("onnxslim+ort_transformers") == ("onnxslim", "transformer")
    assert needs("onnxslim+ort_extended") == ("onnxslim",)
    assert needs("none") == ()


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_options_of_a_precision_exist(name: str) -> None:
    options = PRECISIONS[name].options
    assert options <= {*OPTIONS, "embeddings"}
    half = {option: OPTIONS[option].domain.choices[-1] for option in OPTIONS}
    (step,) = steps_of({"precision": name, "embeddings": "float", **half})
    assert step.options.keys() == options


@pytest.mark.parametrize(
    ("half", "words"),
    [
        ({"precision": "int8_static", "pre_pass": "onnxslim"}, "onnxslim; int8 static"),
        ({"kept_in_float": 1, "block_size": 64}, "1 node kept in float; blocks of 64"),
        (
            {"kept_in_float": 2, "calibration": "percentile", "unsigned_weights": True},
            "calibrated by percentile; unsigned weights; 2 nodes kept in float",
        ),
        ({"weight_storage": "prepacked"}, "weights pre-packed in external data"),
        ({"quantized_operators": "conv", "per_channel": True}, "per channel; convolutions alone"),
        ({"precision": "fp16_mixed"}, "fp16, sensitive nodes in fp32"),
        ({"embeddings": "int8"}, "embeddings in int8"),
        ({"pre_pass": "onnxslim+ort_extended"}, "onnxslim+ort_extended"),
        ({}, ""),
    ],
)
def test_a_graph_half_in_words(half: dict[str, Any], words: str) -> None:
    assert "; ".join(graph_words(half)) == words


def test_the_readme_of_the_spaces_names_every_need_and_parameter() -> None:
    text = (presets()["default"].parent / "README.md").read_text("utf-8")
    assert [
        name for name in (*NEEDS, *GRAPH_PARAMETERS, *COMPOSITES) if f"`{name}`" not in text
    ] == []


@given(data=st.data(), name=st.sampled_from(sorted(PARAMETERS)))
def test_a_value_survives_typing(data: st.DataObject, name: str) -> None:
    value = data.draw(values_of(PARAMETERS[name]))
    parsed = parse_value(name, str(value))
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        (
            "optimizer.NchwcTransformer",
            "no",
            "optimizer.NchwcTransformer must be one of 'on', 'off', not 'no'",
        ),
        ("intra_op_num_threads", "true", "must be a whole number, not 'true'"),
        ("intra_op_num_threads", "-1", "must be a whole number, not '-1'"),
        ("enable_mem_pattern", "1", "must be one of True, False, not '1'"),
        ("session.disable_prepacking", "true", "must be one of '0', '1', not 'true'"),
    ],
)
def test_a_typed_value_outside_the_domain_is_refused(name: str, text: str, fault: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_value(name, text)
    assert fault in str(caught.value)
    assert str(caught.value).startswith(name)


@pytest.mark.parametrize("text", ["\u00b2", "\u0664", "1_0", "+1", "9" * 5000], ids=ascii)
def test_numbers_are_typed_in_ascii_digits(text: str) -> None:
    with pytest.raises(ValueError, match="intra_op_num_threads must be"):
        parse_value("intra_op_num_threads", text)
