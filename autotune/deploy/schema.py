"""The JSON Schema of a tuned config, made from the records and tables that the loader checks with.

The files in ``autotune/deploy/schemas`` are the output of :func:`config_schema`, for editors and
programs in other languages. A JSON Schema cannot say two things that the loader also refuses: a key
that is there twice, and a number beyond the range of 64 bits. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from autotune.deploy import options
from autotune.deploy.config import EARLIER_FORMAT, FORMAT, OPTIONAL, TunedConfig
from autotune.deploy.model_files import JointModelFile, ModelFile
from autotune.deploy.process_options import LARGEST_BYTES, SMALLEST_BYTES, Threshold
from autotune.deploy.providers import CACHE_FOLDER, PROVIDERS
from autotune.deploy.records import (
    Amount,
    BareName,
    Json,
    MeasuredAmount,
    MeasuredPositive,
    Positive,
    PositiveWhole,
    Text,
    Whole,
)
from autotune.deploy.serving import SESSION_KINDS, SessionKind
from autotune.deploy.session import SessionConfig
from autotune.errors import RequestError

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LARGEST = 10**18
# No half of a surrogate pair: native code takes UTF-8 alone. A system may keep bytes of a file
# name that are no UTF-8 as U+DC80 to U+DCFF.
_UNICODE_TEXT = r"^[^\ud800-\udfff]*$"
_BARE_NAME = r"^(?![A-Za-z]:)(?!\.{1,2}$)[^/\\\u0000\ud800-\udc7f\udd00-\udfff]+$"
_DIGITS = 12

_CONSTRAINED: Mapping[Any, Json] = {
    Positive: {"type": "number", "exclusiveMinimum": 0},
    Amount: {"type": "number", "minimum": 0},
    MeasuredAmount: {"type": "number", "minimum": 0, "maximum": _LARGEST},
    MeasuredPositive: {"type": "number", "exclusiveMinimum": 0, "maximum": _LARGEST},
    Whole: {"type": "integer", "minimum": 0, "maximum": _LARGEST},
    PositiveWhole: {"type": "integer", "minimum": 1, "maximum": _LARGEST},
    Text: {"type": "string", "maxLength": 100_000},
    SessionKind: {"type": "string", "enum": list(SESSION_KINDS)},
    BareName: {"type": "string", "maxLength": 100_000, "pattern": _BARE_NAME},
    Threshold: {"type": "integer", "minimum": SMALLEST_BYTES, "maximum": LARGEST_BYTES},
}
_PLAIN: Mapping[Any, Json] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
}


def config_schema(config_format: str) -> Json:
    """Returns the JSON Schema (draft 2020-12) of a config format such as ``autotune/2``.

    Raises:
        RequestError: there is no such format.
    """
    models = {FORMAT: ModelFile, EARLIER_FORMAT: JointModelFile}
    if config_format not in models:
        raise RequestError(f"there is no format '{config_format}'; name one of {', '.join(models)}")
    hints = get_type_hints(TunedConfig, include_extras=True)
    properties = {
        "format": {"const": config_format},
        **{name: _schema_of(hint) for name, hint in hints.items()},
        "model": _schema_of(models[config_format]),
    }
    return {
        "$schema": _DIALECT,
        "title": f"A tuned config of autotune, format {config_format}",
        **_closed(properties, required=[name for name in properties if name not in OPTIONAL]),
    }


def _schema_of(hint: Any) -> Json:
    """Returns the schema of the values that the records' reader takes for a type."""
    if hint in _CONSTRAINED:
        return dict(_CONSTRAINED[hint])
    if hint is SessionConfig:
        return _session()
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return {"anyOf": [_schema_of(argument) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _schema_of(arguments[0])}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema_of(arguments[1])}
    if is_dataclass(hint):
        return _record(hint)
    return dict(_PLAIN[hint])


def _record(kind: Any) -> Json:
    hints = get_type_hints(kind, include_extras=True)
    required = [
        item.name
        for item in fields(kind)
        if item.default is MISSING and item.default_factory is MISSING
    ]
    properties = {name: _schema_of(hint) for name, hint in hints.items()}
    return _closed(properties, required=required)


def _session() -> Json:
    dimension = {"type": "integer", "minimum": 1, "maximum": 2**63 - 1}
    return _closed(
        {
            "providers": _providers(),
            "options": _chosen(options.ATTRIBUTES),
            "entries": _chosen(options.SESSION_ENTRIES),
            "disabled_optimizers": {
                "type": "array",
                "items": {"enum": sorted(options.OPTIMIZERS)},
            },
            "free_dimensions": {
                "type": "object",
                "propertyNames": {"pattern": _UNICODE_TEXT},
                "additionalProperties": dimension,
            },
            "env_allocator": _chosen(options.ARENA_OPTIONS),
            "run_entries": _chosen(options.RUN_ENTRIES),
            "provider_cache": {"enum": ["", CACHE_FOLDER]},
        },
        required=[],
    )


def _providers() -> Json:
    """Returns the schema of pairs of a provider and its options, no provider twice."""
    pairs = [
        {
            "type": "array",
            "prefixItems": [{"const": provider.name}, _chosen(provider.options)],
            "minItems": 2,
            "maxItems": 2,
        }
        for provider in PROVIDERS.values()
    ]
    once = [
        {
            "contains": {
                "type": "array",
                "prefixItems": [{"const": provider.name}],
                "minItems": 1,
            },
            "minContains": 0,
            "maxContains": 1,
        }
        for provider in PROVIDERS.values()
    ]
    return {"type": "array", "items": {"anyOf": pairs}, "allOf": once}


def _chosen(domains: Mapping[str, options.Domain]) -> Json:
    return _closed({name: _domain(domain) for name, domain in domains.items()}, required=[])


def _domain(domain: options.Domain) -> Json:
    if domain.choices:
        kinds = {type(choice) for choice in domain.choices}
        # true equals 1 and 1.0 for some validators; the type tells them apart
        return {"type": _PLAIN[kinds.pop()]["type"], "enum": list(domain.choices)}
    if isinstance(domain.default, str):
        return {"type": "string", "pattern": _number_pattern(domain.low, domain.high)}
    return {"type": "integer", "minimum": domain.low, "maximum": domain.high}


def _number_pattern(low: int, high: int) -> str:
    """Returns the pattern of the decimal texts of `low` to `high`, with zeros before or without."""
    return rf"^(?=[0-9]{{1,{_DIGITS}}}$)0*(?:{'|'.join(_ranges(low, high))})$"


def _ranges(low: int, high: int) -> list[str]:
    """Returns patterns that together match the numbers from `low` to `high` and no others.

    Each pattern covers a block such as 120 to 129: some leading digits, one digit from a range, and
    any digits after it.
    """
    patterns = []
    while low <= high:
        size = 1
        # the largest block of a power of ten that begins at `low` and ends by `high`
        while low % (size * 10) == 0 and low + size * 10 - 1 <= high and low > 0:
            size *= 10
        last_digit = low // size % 10
        steps = min(9 - last_digit, (high - low + 1) // size - 1)
        prefix = str(low // size)[:-1]
        rest = len(str(size)) - 1
        digits = f"[{last_digit}-{last_digit + steps}]" if steps else str(last_digit)
        patterns.append(f"{prefix}{digits}" + (f"[0-9]{{{rest}}}" if rest else ""))
        low += size * (steps + 1)
    return patterns


def _closed(properties: Json, *, required: list[str]) -> Json:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema
