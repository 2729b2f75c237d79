"""The parsers of the command line: quantities with units, pairs, shapes."""

from collections.abc import Callable

import pytest
import typer

from autotune.cli import parsing


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parsing.duration_s, "45s", 45.0),
        (parsing.duration_s, "10m", 600.0),
        (parsing.duration_s, "10 min", 600.0),
        (parsing.duration_s, "0.5H", 1800.0),
        (parsing.memory_mib, "300MiB", 300.0),
        (parsing.memory_mib, "1.5 gib", 1536.0),
        (parsing.memory_mib, "1GB", 1e9 / 2**20),
        (parsing.latency_ms, "10ms", 10.0),
        (parsing.latency_ms, "250us", 0.25),
        (parsing.latency_ms, "2s", 2000.0),
        (parsing.error, "0.05", 0.05),
        (parsing.error, ".5", 0.5),
        (parsing.error, "1e-3", 0.001),
        (parsing.error, 0.02, 0.02),
        (parsing.pair, "arena=off", ("arena", "off")),
        (parsing.pair, " a = b=c ", ("a", "b=c")),
        (parsing.named_shape, "x=1,3,224,224", ("x", (1, 3, 224, 224))),
        (parsing.named_shape, "x = 1, 3", ("x", (1, 3))),
        (parsing.batch_sizes, "8", (8,)),
        (parsing.batch_sizes, "1, 2,4", (1, 2, 4)),
    ],
)
def test_values_have_the_unit_of_their_parser(
    parse: Callable[[object], object], text: object, value: object
) -> None:
    assert parse(text) == value


WRONG_QUANTITIES = [
    "",
    "lots",
    "-1",
    "0",
    "0.0",
    "1,5",
    "5 parsecs",
    "1e3",
    "nan",
    "inf",
    "9" * 400,
]


@pytest.mark.parametrize("parse", [parsing.duration_s, parsing.memory_mib, parsing.latency_ms])
@pytest.mark.parametrize("text", [*WRONG_QUANTITIES, "３", "٣"])
def test_quantities_are_finite_and_above_zero(parse: Callable[[str], float], text: str) -> None:
    with pytest.raises(typer.BadParameter) as refusal:
        parse(text)
    assert f"'{text}' is not a " in refusal.value.message
    assert "one of the units" in refusal.value.message
    assert "such as" in refusal.value.message


@pytest.mark.parametrize("parse", [parsing.duration_s, parsing.memory_mib, parsing.latency_ms])
def test_a_number_without_a_unit_is_refused_everywhere(parse: Callable[[str], float]) -> None:
    with pytest.raises(typer.BadParameter, match="'40' has no unit"):
        parse("40")


_PAIR = "not of the form KEY=VALUE, such as arena=off"


_SHAPE = r"not of the form NAME=1,3,224,224"


@pytest.mark.parametrize(
    ("parse", "words", "texts"),
    [
        (
            parsing.error,
            r"is not a number above 0, such as 0\.05",
            ["", "x", "-0.1", "0", "nan", "inf", "1e400", "５", "5 %%", "%"],
        ),
        (parsing.pair, _PAIR, ["", "arena", "arena=", "=off", " = "]),
        (parsing.named_shape, _SHAPE, ["", "x", "x=", "=1,3"]),
        # digits of other scripts are none, although Python reads them
        (
            parsing.named_shape,
            "is not a list of sizes",
            ["x=1,x", "x=1,,3", "x=0,3", "x=-1", "x=1.5", "x=３", "x=" + "9" * 19],
        ),
        (
            parsing.batch_sizes,
            "not a list of batch sizes",
            ["", "1,", "1;2", "-1", "1.5", "two", "1,٣", "²", "1" * 10],
        ),
    ],
)
def test_other_texts_are_refused(
    parse: Callable[[str], object], words: str, texts: list[str]
) -> None:
    for text in texts:
        with pytest.raises(typer.BadParameter, match=words):
            parse(text)
