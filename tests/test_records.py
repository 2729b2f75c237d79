"""Records as JSON and back, and what is refused on the way back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.deploy.options import Value
from autotune.deploy.records import (
    Amount,
    BareName,
    MeasuredAmount,
    MeasuredPositive,
    Positive,
    PositiveWhole,
    Several,
    Text,
    Whole,
    from_plain,
    read,
    to_plain,
)
from autotune.errors import FormatError


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A record in a record."""

    share: Amount
    name: str = "none"


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Every kind of field."""

    text: str
    whole: int
    flag: bool
    number: Positive
    maybe: float | None
    values: Mapping[str, Value]
    limits: Mapping[str, float | None]
    several: tuple[Inner, ...]
    path: Path


_NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
_WHOLE = st.integers(-(2**64), 2**64)
_VALUES: st.SearchStrategy[Value] = st.one_of(st.booleans(), _WHOLE, st.text())
_INNER = st.builds(Inner, share=st.floats(0, 1e300), name=st.text())
_OUTER = st.builds(
    Outer,
    text=st.text(),
    whole=_WHOLE,
    flag=st.booleans(),
    number=st.floats(min_value=1e-300, max_value=1e300),
    maybe=st.none() | _NUMBERS,
    values=st.dictionaries(st.text(), _VALUES),
    limits=st.dictionaries(st.text(), st.none() | _NUMBERS),
    several=st.lists(_INNER).map(tuple),
    path=st.just(Path("a/b.onnx")),
)


@given(record=_OUTER)
def test_what_is_written_is_what_is_read(record: Outer) -> None:
    again = from_plain(Outer, json.loads(json.dumps(to_plain(record))))
    assert again == record
    assert [type(v) for v in again.values.values()] == [type(v) for v in record.values.values()]


def _data(**changes: Any) -> dict[str, Any]:
    data = {
        "text": "a",
        "whole": 1,
        "flag": True,
        "number": 2,
        "maybe": None,
        "values": {"threads": 2},
        "limits": {},
        "several": [{"share": 0.5}],
        "path": "x",
    }
    return {**data, **changes}


def test_a_whole_number_is_a_number_and_a_default_may_be_missing() -> None:
    """JSON writes 2.0 as 2 in other hands."""
    record = from_plain(Outer, _data())
    assert record.several == (Inner(share=0.5, name="none"),)
    assert type(record.number) is float


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"text": 1}, "here.text must be a string, not 1"),
        ({"whole": 1.0}, "here.whole must be a whole number"),
        ({"whole": True}, "here.whole must be a whole number"),
        ({"flag": 1}, "here.flag must be true or false"),
        ({"number": 0}, "here.number must be more than 0"),
        ({"number": 10**400}, "here.number must be a finite number"),
        ({"maybe": float("nan")}, "here.maybe must be a finite number"),
        ({"maybe": "1"}, "here.maybe must be a number"),
        ({"values": {"a": 1.5}}, "here.values.a must be true or false or a whole number or"),
        ({"values": [1]}, "here.values must be an object"),
        ({"several": {}}, "here.several must be a list"),
        ({"several": [{"share": -1, "name": "a"}]}, r"here.several\[0\].share must be at least 0"),
        ({"several": [{"shar": 1}]}, "here.several.0..shar'. Did you mean 'share'"),
        ({"several": [3]}, r"here.several\[0\] must be an object"),
        ({"path": None}, "here.path must be a string"),
        ({"other": 1}, "unknown key 'here.other'"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=words):
        from_plain(Outer, _data(**changes), "here")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(FormatError, match=r"'here\.several\[0\]\.share' is missing"):
        from_plain(Outer, _data(several=[{"name": "x"}]), "here")
    data = _data()
    del data["whole"]
    with pytest.raises(FormatError, match=r"'here\.whole' is missing"):
        from_plain(Outer, data, "here")


@pytest.mark.parametrize(
    ("hint", "data", "words"),
    [
        (MeasuredAmount, -0.5, "x must be from 0 to 1e18"),
        (MeasuredAmount, 1e300, "x must be from 0 to 1e18"),
        (MeasuredAmount, True, "x must be a number"),
        (MeasuredPositive, 0.0, "x must be more than 0"),
        (Whole, 2**61, "x must be from 0 to 1e18"),
        (int, 10**400, "x must be a whole number of at most 64 bits"),
        (int | str, -(10**400), "x must be a whole number of at most 64 bits"),
        (Whole, 1.0, "x must be a whole number"),
        (PositiveWhole, 0, "x must be more than 0"),
        (Several[PositiveWhole], [], "x must not be empty"),
        (Several[PositiveWhole], [1, 2, 0], "x[2] must be more than 0"),
        (Several[PositiveWhole], [1, 1e300], "x[1] must be a whole number"),
        (Text, "a" * 100_001, "x must have at most 100000 characters"),
        (Text | None, 1, "x must be a string"),
        (Whole | Text | None, 1.5, "x must be a whole number or a string"),
        (Whole | Text | None, -1, "x must be from 0 to 1e18"),
        (
            Mapping[str, tuple[Whole, ...]],
            {"a": [1], "b": [0, -1]},
            "x.b[1] must be from 0 to 1e18",
        ),
    ],
)
def test_a_constraint_is_refused_by_name(hint: Any, data: object, words: str) -> None:
    with pytest.raises(FormatError) as caught:
        read(hint, data, "x")
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("hint", "data", "value"),
    [
        (MeasuredAmount, 0, 0.0),
        (MeasuredPositive, 1e18, 1e18),
        (Several[PositiveWhole], [1, 10**18], (1, 10**18)),
        (Whole | Text | None, 3, 3),
        (Whole | Text | None, "batch", "batch"),
        (Whole | Text | None, None, None),
        (BareName, "weights.onnx.data", "weights.onnx.data"),
        (Text, "a" * 100_000, "a" * 100_000),
    ],
)
def test_a_bound_itself_is_taken(hint: Any, data: object, value: object) -> None:
    assert read(hint, data, "x") == value


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "C:a", "a\0b", "\ud800"])
def test_a_bare_name_leads_nowhere(name: str) -> None:
    with pytest.raises(FormatError, match="must be a bare file name"):
        read(BareName, name, "file")
