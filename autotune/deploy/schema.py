"""The JSON Schema of a tuned config, made from the records and tables that the loader checks with.

The file in ``docs/schemas`` is the output of :func:`config_schema`, for editors and programs in
other languages. It leaves four things to the loader: a key or a provider that is there twice, a
number beyond 64 bits, and the range of a number that is written as a string. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from autotune.deploy import options
from autotune.deploy.config import (
    FORMAT,
    OPTIONAL,
    OUTCOMES,
    PROCESSORS,
    SESSION_KINDS,
    CertificateOutcome,
    Processor,
    SessionKind,
    TunedConfig,
)
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
from autotune.deploy.session import SessionConfig

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
    Processor: {"type": "string", "enum": list(PROCESSORS)},
    CertificateOutcome: {"type": "string", "enum": list(OUTCOMES)},
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


def config_schema() -> Json:
    """Returns the JSON Schema (draft 2020-12) of a tuned config."""
    hints = get_type_hints(TunedConfig, include_extras=True)
    properties = {
        "format": {"const": FORMAT},
        **{name: _schema_of(hint) for name, hint in hints.items()},
    }
    return {
        "$schema": _DIALECT,
        "title": f"A tuned config of autotune, format {FORMAT}",
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
    """Returns the schema of pairs of a provider and its options."""
    pairs = [
        {
            "type": "array",
            "prefixItems": [{"const": provider.name}, _chosen(provider.options)],
            "minItems": 2,
            "maxItems": 2,
        }
        for provider in PROVIDERS.values()
    ]
    return {"type": "array", "items": {"anyOf": pairs}}


def _chosen(domains: Mapping[str, options.Domain]) -> Json:
    return _closed({name: _domain(domain) for name, domain in domains.items()}, required=[])


def _domain(domain: options.Domain) -> Json:
    if domain.choices:
        kinds = {type(choice) for choice in domain.choices}
        # true equals 1 and 1.0 for some validators; the type tells them apart
        return {"type": _PLAIN[kinds.pop()]["type"], "enum": list(domain.choices)}
    if isinstance(domain.default, str):
        return {"type": "string", "pattern": f"^[0-9]{{1,{_DIGITS}}}$"}
    return {"type": "integer", "minimum": domain.low, "maximum": domain.high}


def _closed(properties: Json, *, required: list[str]) -> Json:
    schema: Json = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema
