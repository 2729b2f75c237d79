"""What an application passes to ``InferenceSession``: as a record that can be compared and kept.

Standard library only. ONNX Runtime does not list the entries of its session options, so the class
of the options is changed in place to remember what was added; options that were made before are
asked for each entry that is known.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from autotune.deploy.guard import swallow
from autotune.deploy.options import RUN_ENTRIES, SESSION_ENTRIES, Value
from autotune.deploy.providers import CPU
from autotune.deploy.records import Text

_ATTRIBUTES = (
    *("intra_op_num_threads", "inter_op_num_threads", "execution_mode", "execution_order"),
    *("graph_optimization_level", "enable_mem_pattern", "enable_cpu_mem_arena", "enable_mem_reuse"),
    *("use_deterministic_compute", "use_per_session_threads"),
)
# What a config cannot hold; a session that has it stays as it is.
_FOREIGN_ATTRIBUTES = ("enable_profiling", "optimized_model_filepath")
_FOREIGN_METHODS = (
    *("add_external_initializers", "add_external_initializers_from_files_in_memory"),
    *("add_free_dimension_override_by_denotation", "add_initializer", "add_provider"),
    *("add_provider_for_devices", "register_custom_ops_library", "set_ep_context_data_read_func"),
    *("set_load_cancellation_flag", "set_provider_selection_policy"),
    "set_provider_selection_policy_delegate",
)
_ENTRY = "add_session_config_entry"
_DIMENSION = "add_free_dimension_override_by_name"
_RUN_ENTRY, _ADAPTER = "add_run_config_entry", "add_active_adapter"
_KEPT = frozenset({_ENTRY, _DIMENSION, _RUN_ENTRY, _ADAPTER})
ONLY_FETCHES = "only_execute_path_to_fetches"
"""The attribute of run options that is kept beside their entries."""
IDLE_PROVIDERS = frozenset({"AzureExecutionProvider"})
"""Providers that run no node of a model without operators of their own."""
# How messages are logged changes no answer and no speed.
LOGGING = ("log_severity_level", "log_verbosity_level", "logid")
"""Attributes of session options that a tuned session takes over from the application."""


@dataclass(frozen=True, kw_only=True)
class PassedProvider:
    """An execution provider as the application names it, its options as text."""

    name: Text
    options: Mapping[str, Text]


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What an application passes beside the model.

    Attributes:
        options: Attributes of the session options that differ from their default; enums by name.
        providers: The execution providers in order; None where the application names none.
        foreign: What else it sets and a config cannot hold, by ONNX Runtime's names.
    """

    options: Mapping[str, Value]
    entries: Mapping[str, Text]
    dimensions: Mapping[str, int]
    providers: tuple[PassedProvider, ...] | None
    disabled_optimizers: tuple[Text, ...]
    foreign: tuple[Text, ...]

    def used_providers(self, available: Sequence[str]) -> tuple[str, ...]:
        """Returns the execution providers that may run nodes where ONNX Runtime has these."""
        return working([item.name for item in self.providers or () if item.name in available])


def working(providers: Sequence[str]) -> tuple[str, ...]:
    """Returns those of a session's providers that may run its nodes, the CPU's in any case."""
    return tuple(dict.fromkeys([*(p for p in providers if p not in IDLE_PROVIDERS), CPU]))


@dataclass(frozen=True, kw_only=True)
class Call:
    """The arguments of a call of ``InferenceSession``.

    Attributes:
        settings: The session options; None where there are none.
        has_fallback: Whether a run that an execution provider cannot do is tried on the CPU.
        given: All of them as they were passed, by name.
    """

    model: str | bytes
    settings: Any
    passed: Passed
    has_fallback: bool = True
    given: Mapping[str, Any] = field(default_factory=dict)


# What was added to session options and run options, by the options.
_notes: Any = WeakKeyDictionary()


@functools.cache  # the classes are changed once
def watch(module: ModuleType) -> None:
    """Remembers from now on what is added to options; `module` defines the sessions."""
    noted = {
        "SessionOptions": (_ENTRY, _DIMENSION, *_FOREIGN_METHODS),
        "RunOptions": (_RUN_ENTRY, _ADAPTER),
    }
    for name, methods in noted.items():
        kind = getattr(module.C, name, None)
        if kind is None:
            continue
        kind.__init__ = _noting("", kind.__init__)
        for method in methods:
            if hasattr(kind, method):
                setattr(kind, method, _noting(method, getattr(kind, method)))


def _noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        try:
            _note(self, name, (*arguments, *named.values()))
        except Exception as fault:  # noqa: BLE001  # the application's options are as it wants them
            swallow(fault)
        return result

    return method


def _note(options: Any, method: str, values: tuple[Any, ...]) -> None:
    """Remembers what was added to options by a method; no name stands for new ones."""
    if not method:
        _notes[options] = []
    else:
        # initializers are large, and options live as long as their session
        texts = tuple(map(str, values)) if method in _KEPT else ()
        _notes.setdefault(options, [None]).append((method, texts))


def run_entries(options: Any) -> dict[str, str]:
    """Returns what an application sets in run options, by names of ONNX Runtime's."""
    if options is None:
        return {}
    entries = {}
    notes = _notes.get(options, [None])
    for method, values in filter(None, notes):
        entries[values[0] if method == _RUN_ENTRY else method] = values[-1]
    if None in notes:  # made before anything was remembered
        for name in RUN_ENTRIES:
            with contextlib.suppress(RuntimeError):
                entries[name] = str(options.get_run_config_entry(name))
    if options.only_execute_path_to_fetches:
        entries[ONLY_FETCHES] = "1"
    return entries


def understand(module: ModuleType, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Call:
    """Returns the call of ``InferenceSession`` with these arguments.

    Raises:
        Exception: they are not those of a session; what it is depends on them.
    """
    names = ("path_or_bytes", "sess_options", "providers", "provider_options")
    positional = dict(zip(names, arguments, strict=False))
    if len(arguments) > len(names) or positional.keys() & named.keys():
        raise TypeError("ONNX Runtime takes no such arguments")
    given = {**positional, **named}
    others = dict(given)
    model = others.pop("path_or_bytes")
    settings = others.pop("sess_options", None)
    chosen = others.pop("providers", None), others.pop("provider_options", None)
    providers = _providers(*chosen, module.C)
    disabled = tuple(sorted(others.pop("disabled_optimizers", None) or ()))
    has_fallback = int(others.pop("enable_fallback", 1)) == 1
    passed = _passed(module, settings, providers, disabled, sorted(others))
    return Call(
        model=model if isinstance(model, bytes) else os.fspath(model),
        settings=settings,
        passed=passed,
        has_fallback=has_fallback,
        given=given,
    )


def _passed(
    module: ModuleType,
    settings: Any,
    providers: tuple[PassedProvider, ...] | None,
    disabled: tuple[str, ...],
    foreign: list[str],
) -> Passed:
    options: dict[str, Value] = {}
    entries: dict[str, str] = {}
    dimensions: dict[str, int] = {}
    if settings is not None:
        fresh = module.C.SessionOptions()
        for name in _ATTRIBUTES:
            if (value := _plain(settings, name)) != _plain(fresh, name) and value is not None:
                options[name] = value
        foreign += [name for name in _FOREIGN_ATTRIBUTES if getattr(settings, name, None)]
        notes = _notes.get(settings, [None])
        for method, values in filter(None, notes):
            if method == _ENTRY:
                entries[values[0]] = values[1]
            elif method == _DIMENSION:
                dimensions[values[0]] = int(values[1])
            else:
                foreign.append(method)
        if None in notes:  # made before anything was remembered
            entries |= _known_entries(settings)
    if os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") == "1":
        foreign.append("ORT_LOAD_CONFIG_FROM_MODEL")
    return Passed(
        options=options,
        entries=entries,
        dimensions=dimensions,
        providers=providers,
        disabled_optimizers=disabled,
        foreign=tuple(sorted(set(foreign))),
    )


def _plain(settings: Any, name: str) -> Value | None:
    """Returns an attribute of session options: enums by their name; None where there is none."""
    value = getattr(settings, name, None)
    if value is None or isinstance(value, bool | int):
        return value
    return str(getattr(value, "name", value))


def _known_entries(settings: Any) -> dict[str, str]:
    entries = {}
    for name in SESSION_ENTRIES:
        with contextlib.suppress(RuntimeError):  # ONNX Runtime has no other word for "not set"
            entries[name] = str(settings.get_session_config_entry(name))
    return entries


def _providers(given: Any, chosen: Any, native: Any) -> tuple[PassedProvider, ...] | None:
    """Returns the execution providers that a session is given.

    Raises:
        Exception: ONNX Runtime takes no such ones: it says so on stdout, and goes on without them.
    """
    if given is None:
        return None
    if chosen is not None:
        pairs = list(zip(given, chosen, strict=True))
    else:
        pairs = [item if isinstance(item, tuple) else (item, {}) for item in given]
    known = {*native.get_all_providers(), *native.get_available_providers()}
    wrong = [name for name, options in pairs if name not in known or not isinstance(options, dict)]
    if wrong or not isinstance(given, Sequence):
        raise ValueError(f"ONNX Runtime knows no execution providers {given!r}")
    return tuple(
        PassedProvider(name=str(name), options={str(k): str(v) for k, v in sorted(options.items())})
        for name, options in pairs
    )


class Digests:
    """SHA-256 digests of models: a file is read once for as long as it does not change."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    def of(self, model: str | bytes) -> str:
        """Returns the digest of a file or of bytes.

        Raises:
            OSError: the file cannot be read.
        """
        from autotune.deploy.files import digest_files

        if isinstance(model, bytes):
            import hashlib

            return hashlib.sha256(model).hexdigest()
        path = Path(model)
        state = path.stat()
        key = (str(path.absolute()), state.st_ino, state.st_size, state.st_mtime_ns)
        if key not in self._known:
            self._known[key] = digest_files([path])
        return self._known[key]


@dataclass(frozen=True, kw_only=True)
class Interface:
    """What an application sees of an open session.

    Attributes:
        inputs: Name, type and sizes of each input, open ones as ``?``.
        outputs: The same of each output.
        metadata: Digests of the model's own metadata, by the name of each entry.
        overridable: Inputs with a default, which an application may feed.
    """

    inputs: tuple[Text, ...]
    outputs: tuple[Text, ...]
    metadata: Mapping[str, Text]
    overridable: tuple[Text, ...]

    def shows(self, expected: "Interface") -> bool:
        """Returns whether an application sees all that it expects; tools add metadata of theirs."""
        return (
            (self.inputs, self.outputs) == (expected.inputs, expected.outputs)
            and self.metadata.items() >= expected.metadata.items()
            and set(self.overridable) >= set(expected.overridable)
        )


def interface_of(session: Any) -> Interface:
    """Returns the interface of a session."""
    own = session.get_modelmeta().custom_metadata_map
    metadata = {}
    if own:
        import hashlib

        metadata = {
            key: hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
            for key, text in own.items()
        }
    return Interface(
        inputs=_described(session.get_inputs()),
        outputs=_described(session.get_outputs()),
        metadata=metadata,
        overridable=_described(session.get_overridable_initializers()),
    )


def _described(tensors: Sequence[Any]) -> tuple[str, ...]:
    return tuple(
        f"{item.name} {item.type} "
        + ",".join(str(size) if isinstance(size, int) else "?" for size in item.shape)
        for item in tensors
    )
