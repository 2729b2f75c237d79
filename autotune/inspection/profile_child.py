"""The child that runs a model under ONNX Runtime's profiler, and without it."""

import gc
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, load_samples
from autotune.inspection.profile import Profile
from autotune.inspection.trace import summarise
from autotune.process.child_end import Message, serve

# Enough for a median; a trace has an event for each node and run.
_MOST_PLAIN_RUNS = 200
_MOST_TRACED_RUNS = 20
_FEWEST_RUNS = 3
_SECONDS = 1.0


def profile(message: Message) -> Profile:
    """Returns where the time of a run goes, by the keys ``model``, ``session`` and ``samples``."""
    model = Path(message["model"])
    session = SessionConfig.from_json(message["session"])
    feeds = load_samples(Path(message["samples"]))
    plain = open_session(model, session)
    times = _run(plain, feeds, _MOST_PLAIN_RUNS)
    del plain
    gc.collect()  # its idle threads would spin beside the next session
    traced = open_session(model, session, trace=Path.cwd() / "trace")
    _run(traced, feeds, _MOST_TRACED_RUNS)
    file = Path(traced.end_profiling())
    events = json.loads(file.read_text(encoding="utf-8", errors="replace"))
    file.unlink()
    return summarise(events, median(times[1:]) * 1e3)


def _run(session: Any, feeds: Sequence[Feed], most: int) -> list[float]:
    """Runs the samples in turn; returns the seconds of each run."""
    # caches that were made eight bits wide are empty in the samples, which have the model's type
    int8 = [item.name for item in session.get_inputs() if item.type == "tensor(int8)"]
    feeds = [{**feed, **{name: feed[name].astype("int8") for name in int8}} for feed in feeds]
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST_RUNS or (
        len(times) < most and time.perf_counter() - began < _SECONDS
    ):
        start = time.perf_counter()
        session.run(None, feeds[len(times) % len(feeds)])
        times.append(time.perf_counter() - start)
    return times


if __name__ == "__main__":
    serve({"profile": profile})
