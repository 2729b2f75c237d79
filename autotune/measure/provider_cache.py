"""What a provider has compiled: where it lies, and how long the first session took."""

import hashlib
import json
from pathlib import Path

from autotune.deploy.files import read_json
from autotune.deploy.records import Positive, read
from autotune.deploy.session import SessionConfig
from autotune.errors import FormatError

_FIRST_LOADS = "first-loads.json"
_LARGEST_BYTES = 1 << 20


class ProviderCache:
    """The folder in which providers keep compiled models between trials."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def first_load_ms(self, model: Path, config: SessionConfig) -> float | None:
        """Returns how long the first session took; None where nothing was compiled yet."""
        return self._loads().get(_key(model, config))

    def remember(self, model: Path, config: SessionConfig, load_ms: float) -> None:
        """Keeps how long the first session took."""
        text = json.dumps({**self._loads(), _key(model, config): load_ms}, indent=2)
        (self.folder / _FIRST_LOADS).write_text(text, encoding="utf-8")

    def _loads(self) -> dict[str, float]:
        """Returns the first loads in ms by key; none where their file is missing or damaged."""
        try:
            data = read_json(self.folder / _FIRST_LOADS, _LARGEST_BYTES)
            loads: dict[str, float] = read(dict[str, Positive], data, "")
        except FormatError:
            return {}
        return loads


def _key(model: Path, config: SessionConfig) -> str:
    """Returns a digest of all that decides which graph the provider compiles.

    Threads and the like do not: a provider finds what it compiled for another number of them.
    """
    plain = config.to_json()
    entries = {name: text for name, text in config.entries.items() if not _is_about_threads(name)}
    parts = [
        str(model),
        plain["providers"],
        plain["free_dimensions"],
        config.options.get("graph_optimization_level"),
        sorted(config.disabled_optimizers),
        entries,
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def _is_about_threads(entry: str) -> bool:
    return entry.startswith(("session.intra_op.", "session.inter_op.")) or "spin" in entry
