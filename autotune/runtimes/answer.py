"""What the child in :mod:`autotune.runtimes.ask_child` says of a runtime."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RuntimeAnswer:
    """What an ONNX Runtime says of itself.

    Attributes:
        version: Its version.
        providers: Its execution providers, in its own order.
        place: The folder from which it was imported.
        unknown: Those of the names that were asked for which are not in its library.
    """

    version: str
    providers: tuple[str, ...]
    place: str
    unknown: tuple[str, ...] = ()
