"""Inputs of a session in every form that ONNX Runtime takes: arrays, values, lists, bindings.

Standard library alone: the recorder imports it inside an application.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

from autotune.deploy.guard import swallow

BOUND = "_autotune_bound"
"""The attribute of a binding that holds its inputs by name."""

BOUND_OUTPUTS = "_autotune_bound_outputs"
"""The attribute of a binding that holds the names of its outputs, in a mapping."""

# ONNX Runtime's names of types that NumPy calls by another.
_DTYPES = {"float": "float32", "double": "float64", "string": "str"}


def described_input(name: str, value: Any) -> dict[str, Any]:
    """Returns name, type and shape of an input.

    Raises:
        Exception: it is no tensor.
    """
    shape = value.shape() if callable(value.shape) else value.shape
    dtype = value.data_type() if hasattr(value, "data_type") else value.dtype.name
    return {"name": name, "dtype": dtype_of(dtype), "shape": [int(size) for size in shape]}


def dtype_of(kind: object) -> str:
    """Returns NumPy's name of a type that may be named as ONNX Runtime does: ``tensor(float)``."""
    words = str(kind).removeprefix("tensor(").removesuffix(")")
    return _DTYPES.get(words, words)


def array_of(value: Any) -> Any:
    """Returns the array of an input.

    Raises:
        Exception: it has none that can be kept.
    """
    if isinstance(value, _Bound):
        value = value.held()
    array = value.numpy() if hasattr(value, "numpy") else value
    return array.astype("U") if array.dtype.hasobject else array


class _Bound:
    """An input that is bound to a session; it keeps nothing alive."""

    __slots__ = ("dtype", "held", "shape")

    def __init__(self, held: Any, shape: Any, dtype: Any) -> None:
        self.held: Callable[[], Any] = weakref.ref(held)
        self.shape = tuple(shape)
        self.dtype = dtype


class _Named:
    """The type of a bound input by its name alone."""

    def __init__(self, name: object) -> None:
        self.name = getattr(name, "name", None) or getattr(name, "__name__", None) or str(name)


def patch_binding(kind: Any) -> None:
    """Lets bindings remember the shapes of their inputs, and the names of their outputs."""

    def of_array(arr_on_cpu: Any) -> _Bound:
        return _Bound(arr_on_cpu, arr_on_cpu.shape, arr_on_cpu.dtype)

    def of_value(ortvalue: Any) -> _Bound:
        return _Bound(ortvalue, ortvalue.shape(), _Named(ortvalue.data_type()))

    def of_buffer(
        device_type: Any,  # noqa: ARG001  # ONNX Runtime's own names: they may be keywords
        device_id: Any,  # noqa: ARG001
        element_type: Any,
        shape: Any,
        buffer_ptr: Any,  # noqa: ARG001
    ) -> _Bound:
        return _Bound(kind, shape, _Named(element_type))

    def of_output(*_: Any, **__: Any) -> None:
        return None

    bound: dict[str, tuple[str, Callable[..., Any] | None]] = {
        "bind_cpu_input": (BOUND, of_array),
        "bind_ortvalue_input": (BOUND, of_value),
        "bind_input": (BOUND, of_buffer),
        "bind_output": (BOUND_OUTPUTS, of_output),
        "bind_ortvalue_output": (BOUND_OUTPUTS, of_output),
        "clear_binding_inputs": (BOUND, None),
        "clear_binding_outputs": (BOUND_OUTPUTS, None),
    }
    for name, (attribute, describe) in bound.items():
        if hasattr(kind, name):
            setattr(kind, name, _remembering(getattr(kind, name), attribute, describe))


def _remembering(original: Any, attribute: str, describe: Callable[..., Any] | None) -> Any:
    @functools.wraps(original)
    def bind(self: Any, *arguments: Any, **named: Any) -> Any:
        result = original(self, *arguments, **named)
        try:
            _remember(self, attribute, describe, arguments, dict(named))
        except Exception as fault:  # noqa: BLE001  # its calls are not recorded
            swallow(fault)
            self.__dict__[attribute] = None
        return result

    return bind


def _remember(
    binding: Any,
    attribute: str,
    describe: Callable[..., Any] | None,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
) -> None:
    if describe is None:
        binding.__dict__.pop(attribute, None)
        return
    name, *others = arguments or [named.pop("name")]
    known = binding.__dict__.setdefault(attribute, {})
    if known is not None:
        known[name] = describe(*others, **named)
