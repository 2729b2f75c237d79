"""The published JSON Schema takes what the loader takes, and refuses what the loader refuses."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_config import SESSIONS, make_config

import autotune
from autotune.deploy.config import FORMATS, TunedConfig
from autotune.deploy.options import Domain
from autotune.deploy.schema import _domain, config_schema
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, RequestError

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

DATA = Path(__file__).parent / "data"
PUBLISHED = [
    Path(autotune.__file__).parent / "deploy" / "schemas",
    Path(__file__).parent.parent / "docs" / "schemas",
]
# Of every kind, and at the ends of ranges; strings that look like numbers, and numbers like flags.
VALUES = [
    *(None, True, False, 0, 1, -1, 2, 65, 2**63, 0.5, -0.5, 1.0, 1e300),
    *("", "0", "1", "064", "65", "x", "ORT_PARALLEL", "NchwcTransformer", "cpu:0", "٤"),
    *("../best.onnx", "a/b", "C:\\b", "C:b", "..", ".", "best.onnx", "\ud800", "\udc80", "a\0"),
    *([], {}, [1], {"x": 1}, {"": 1}, {"\ud800": 1}, {"batch": 0}, ["", {}]),
    [["CPUExecutionProvider", {}]],
    [["CPUExecutionProvider", {}], ["CPUExecutionProvider", {}]],
    [["CPUExecutionProvider"]],
    [["CPUExecutionProvider", {}, {}]],
    [["CPUExecutionProvider", {"x": "1"}]],
]


def _validator(config_format: str) -> Any:
    """Returns a validator for which 1.0 is no integer: JSON Schema leaves this to the program."""

    def is_integer(_checker: Any, value: object) -> bool:
        return type(value) is int

    plain = jsonschema.Draft202012Validator
    checker = plain.TYPE_CHECKER.redefine("integer", is_integer)
    strict = jsonschema.validators.extend(plain, type_checker=checker)
    return strict(config_schema(config_format))


VALIDATORS = {name: _validator(name) for name in FORMATS}


def _loader_takes(data: object) -> bool:
    try:
        TunedConfig.from_json(data)
    except ConfigError:
        return False
    return True


def _assert_agreement(data: Any, config_format: str, what: str) -> None:
    by_schema = VALIDATORS[config_format].is_valid(data)
    assert by_schema == _loader_takes(data), f"{what}: the schema says {by_schema}"


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the way to each value inside, and to the value itself."""
    yield place
    if not isinstance(value, dict | list):
        return
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _places(item, (*place, key))


def _holder(data: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        data = data[key]
    return data


def _full_config(config_format: str) -> dict[str, Any]:
    """Returns the frozen config of a format, which uses every part of it."""
    folder = {"autotune/1": "config", "autotune/2": "config_2"}[config_format]
    config: dict[str, Any] = json.loads((DATA / folder / "best.json").read_text("utf-8"))
    session = config["session"]
    # attributes and entries of each kind of domain
    session["options"] |= {"enable_mem_pattern": False, "execution_mode": "ORT_PARALLEL"}
    session["entries"] |= {"session.intra_op.spin_backoff_max": "8", "mlas.use_lut_gemm": "0"}
    return config


@pytest.mark.parametrize("config_format", FORMATS)
def test_the_published_files_are_the_schema_of_the_code(config_format: str) -> None:
    """`autotune check --schema FORMAT` writes them anew."""
    name = f"{config_format.replace('/', '-')}.json"
    for folder in PUBLISHED:
        published = json.loads((folder / name).read_text(encoding="utf-8"))
        assert published == config_schema(config_format), f"{folder / name} is out of step"


@pytest.mark.parametrize("config_format", FORMATS)
def test_the_schema_is_a_schema(config_format: str) -> None:
    """It keeps the rules of draft 2020-12."""
    jsonschema.Draft202012Validator.check_schema(config_schema(config_format))


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*/best.json")), ids=lambda path: path.parent.name
)
def test_frozen_configs_are_valid(path: Path) -> None:
    """Every format that was ever written keeps its schema."""
    data = json.loads(path.read_text(encoding="utf-8"))
    assert list(VALIDATORS[data["format"]].iter_errors(data)) == []


@pytest.mark.slow
@pytest.mark.parametrize("config_format", FORMATS)
def test_a_replaced_value_is_refused_by_both_or_by_none(config_format: str) -> None:
    """At every place of the config, values of every kind."""
    original = _full_config(config_format)
    _assert_agreement(original, config_format, "the original")
    refused = 0
    for place in _places(original):
        for value in VALUES:
            data = copy.deepcopy(original)
            if place:
                _holder(data, place)[place[-1]] = value
            else:
                data = value  # type: ignore[assignment]
            _assert_agreement(data, config_format, f"{place} = {value!r}")
            refused += not _loader_takes(data)
    assert refused > 1000


@pytest.mark.parametrize("config_format", FORMATS)
def test_a_missing_or_added_key_is_refused_by_both_or_by_none(config_format: str) -> None:
    """Each key left out, and unknown keys in each object."""
    original = _full_config(config_format)
    for place in _places(original):
        if not place:
            continue
        data = copy.deepcopy(original)
        holder = _holder(data, place)
        if isinstance(holder, dict):
            del holder[place[-1]]
            _assert_agreement(data, config_format, f"without {place}")
            for name in ("extra", "optimized_model_filepath", "ep.context_file_path"):
                holder[name] = "x"
                _assert_agreement(data, config_format, f"{name} beside {place}")
                del holder[name]
        else:
            holder.append(copy.deepcopy(holder[place[-1]]))
            _assert_agreement(data, config_format, f"{place} twice")


@given(session=SESSIONS)
def test_what_the_whitelist_allows_is_valid(session: SessionConfig) -> None:
    """All options with all their values are in the schema."""
    data = json.loads(json.dumps(make_config(session=session).to_json()))
    assert list(VALIDATORS["autotune/2"].iter_errors(data)) == []


@given(
    low=st.integers(0, 5000),
    length=st.integers(0, 5000),
    value=st.one_of(st.integers(0, 12000).map(str), st.from_regex("0{0,13}[0-9]{0,5}")),
)
def test_the_pattern_of_a_range_is_the_range(low: int, length: int, value: str) -> None:
    """Numbers that are written as strings are limited by a pattern, which says just the same."""
    domain = Domain(low=low, high=low + length, default=str(low))
    value = value.rstrip("\n")  # Python's $ ignores it, which no other reader does
    valid = jsonschema.Draft202012Validator(_domain(domain)).is_valid(value)
    assert valid == (domain.problem(value) is None)


def test_there_are_no_other_formats() -> None:
    """An unknown format is refused with the names of the known ones."""
    with pytest.raises(RequestError, match="autotune/2"):
        config_schema("autotune/3")
