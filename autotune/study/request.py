"""What a study was asked for, as the storage keeps it for whoever goes on with it."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Request:
    """The arguments of :func:`autotune.tune` that a study is resumed with.

    Not among them are the folder and the storage, which whoever resumes it has named, and the
    metric: a storage may be a stranger's, and code is never taken from it.
    """

    model: Path
    trials: int
    timeout_s: float | None
    space: str
    fix: Mapping[str, str]
    data: Path | None
    shapes: Mapping[str, tuple[int, ...]]
    max_error: float | None
    max_drop: float
    max_memory_mib: float | None
    max_latency_ms: float | None
    objectives: tuple[str, ...]
    prefer: str
    seed: int
    sampler: str
    early_stop: bool

    def arguments(self) -> dict[str, Any]:
        """Returns them by name."""
        return {item.name: getattr(self, item.name) for item in fields(self)}
