"""The child that runs a session over inputs of several shapes and reports its memory."""

import gc
from pathlib import Path
from typing import Any

from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, load_samples
from autotune.inspection.growth import Growth
from autotune.measure import memory
from autotune.process.child_end import Message, serve

# The second run of a shape follows the memory pattern that the first one left.
_RUNS = 2


def growth(message: Message) -> Growth:
    """Runs each sample of ``samples`` a few times, all of them twice; returns the memory."""
    config = SessionConfig.from_json(message["session"])
    feeds = load_samples(Path(message["samples"]))
    gc.collect()
    memory.reset_peak()
    base_mib = memory.usage().resident_mib
    session = open_session(Path(message["model"]), config)
    held: dict[str, float] = {}
    accepted: list[Feed] = []
    for feed in feeds:
        try:
            _run(session, feed)
        except Exception:  # noqa: BLE001  # sizes that belong together may differ
            continue
        held[_words(feed)] = _above(base_mib, memory.usage().resident_mib)
        accepted.append(feed)
    for sample in accepted:
        _run(session, sample)
    now = memory.usage()
    return Growth(
        shapes=tuple(held),
        held_mib=tuple(held.values()),
        peak_mib=_above(base_mib, now.peak_mib),
        again_mib=_above(base_mib, now.resident_mib),
    )


def _run(session: Any, feed: Feed) -> None:
    for _ in range(_RUNS):
        session.run(None, dict(feed))


def _above(base_mib: float, mib: float) -> float:
    return max(0.0, mib - base_mib)


def _words(feed: Feed) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())


if __name__ == "__main__":
    serve({"growth": growth})
