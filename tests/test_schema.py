"""The published JSON Schema takes what the loader takes, and refuses what the loader refuses."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from test_config import SESSIONS, make_config

from autotune.deploy.config import TunedConfig
from autotune.deploy.schema import config_schema
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")

DATA = Path(__file__).parent / "data"
# Of every kind, and beyond the ends of ranges.
VALUES = [
    *(None, True, 0, -1, 65, 2**63, 0.5, 1.0, 1e300),
    *("", "0", "x", "ORT_PARALLEL", "NchwcTransformer", "../best.onnx", "C:b", "\ud800"),
    *([], {}, [1], {"x": 1}, {"\ud800": 1}, ["", {}]),
    [["CPUExecutionProvider", {}]],
    [["CPUExecutionProvider"]],
    [["CPUExecutionProvider", {"x": "1"}]],
]


def _validator() -> Any:
    """Returns a validator for which 1.0 is no integer: JSON Schema leaves this to the program."""

    def is_integer(_checker: Any, value: object) -> bool:
        return type(value) is int

    plain = jsonschema.Draft202012Validator
    checker = plain.TYPE_CHECKER.redefine("integer", is_integer)
    strict = jsonschema.validators.extend(plain, type_checker=checker)
    return strict(config_schema())


VALIDATOR = _validator()


def _loader_takes(data: object) -> bool:
    try:
        TunedConfig.from_json(data)
    except ConfigError:
        return False
    return True


def _assert_agreement(data: Any, what: str, *, may_be_left: bool = False) -> None:
    """Compares schema and loader; what the schema leaves to the loader it may take alone."""
    by_schema, by_loader = VALIDATOR.is_valid(data), _loader_takes(data)
    agree = by_schema >= by_loader if may_be_left else by_schema == by_loader
    assert agree, f"{what}: the schema says {by_schema}"


def _may_be_left(value: object) -> bool:
    """Returns whether a value is a number written as a string, or names a provider twice."""
    if isinstance(value, list):
        names = [str(item[:1]) for item in value if isinstance(item, list)]
        return len(set(names)) < len(names)
    return isinstance(value, str) and value.isdecimal()


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


def _full_config() -> dict[str, Any]:
    """Returns the frozen config, which uses every part of the format."""
    config: dict[str, Any] = json.loads((DATA / "config" / "best.json").read_text("utf-8"))
    session = config["session"]
    # attributes and entries of each kind of domain
    session["options"] |= {"enable_mem_pattern": False, "execution_mode": "ORT_PARALLEL"}
    session["entries"] |= {"session.intra_op.spin_backoff_max": "8", "mlas.use_lut_gemm": "0"}
    return config


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(config_schema())


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*/best.json")), ids=lambda path: path.parent.name
)
def test_frozen_configs_are_valid(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    assert list(VALIDATOR.iter_errors(data)) == []


@pytest.mark.slow
def test_a_replaced_value_is_refused_by_both_or_by_none() -> None:
    original = _full_config()
    _assert_agreement(original, "the original")
    refused = 0
    for place in _places(original):
        for value in VALUES:
            data = copy.deepcopy(original)
            if place:
                _holder(data, place)[place[-1]] = value
            else:
                data = value  # type: ignore[assignment]
            left = _may_be_left(value)
            _assert_agreement(data, f"{place} = {value!r}", may_be_left=left)
            refused += not _loader_takes(data)
    assert refused > 1000


def test_a_missing_or_added_key_is_refused_by_both_or_by_none() -> None:
    original = _full_config()
    for place in _places(original):
        if not place:
            continue
        data = copy.deepcopy(original)
        holder = _holder(data, place)
        if isinstance(holder, dict):
            del holder[place[-1]]
            _assert_agreement(data, f"without {place}")
            for name in ("extra", "optimized_model_filepath", "ep.context_file_path"):
                holder[name] = "x"
                _assert_agreement(data, f"{name} beside {place}")
                del holder[name]
        else:
            holder.append(copy.deepcopy(holder[place[-1]]))
            _assert_agreement(data, f"{place} twice", may_be_left=_may_be_left(holder))


@given(session=SESSIONS)
def test_what_the_whitelist_allows_is_valid(session: SessionConfig) -> None:
    data = json.loads(json.dumps(make_config(session=session).to_json()))
    assert list(VALIDATOR.iter_errors(data)) == []
