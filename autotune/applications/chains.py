"""Chains: calls that are fed what earlier calls returned, such as the steps of a decoder.

No recording holds what grows with each token: it is made again, by running the chain.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from autotune.applications.replay import CHILD, Arrangement, open_sessions
from autotune.applications.replies import Saved
from autotune.applications.schedule import Schedule
from autotune.errors import DataError
from autotune.facts.feeds import Feed, load_samples
from autotune.measure.answers import OutputMismatchError, Outputs, compare
from autotune.measure.outcome import Fidelity
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit

SAMPLES = 32
"""The most samples of a session's own study, and calls whose answers are compared."""

# Every process that measures a decoder holds its samples, each with a whole cache.
_LARGEST_SAMPLES_BYTES = 128 << 20
_LIMIT_S = 600.0

Play = Callable[[Schedule, Arrangement, Path, Sequence[int], Sequence[int]], Saved]
"""Makes all calls once, and writes the inputs of some and the answers of others to a folder."""


def play(
    schedule: Schedule,
    arrangement: Arrangement,
    folder: Path,
    inputs: Sequence[int] = (),
    answers: Sequence[int] = (),
) -> Saved:
    """Makes all calls once in a process of their own.

    Args:
        schedule: The calls.
        arrangement: The sessions.
        folder: Where ``N.inputs.npz`` and ``N.answers.npz`` are written.
        inputs: The numbers of calls whose inputs are written.
        answers: The numbers of calls whose answers are written: what no session is fed.

    Raises:
        DataError: they cannot be made.
    """
    feeds = folder / "feeds.npz"
    schedule.save(feeds)
    try:
        with Child(CHILD, memory_limit()) as child:
            open_sessions(child, schedule, arrangement, feeds)
            asked = {"folder": str(folder), "inputs": list(inputs), "answers": list(answers)}
            return child.request({"do": "save", **asked}, _LIMIT_S, Saved)
    except ChildFailure as failure:
        raise DataError(f"{failure.kind}: {failure.message}") from None


def chained(schedule: Schedule) -> dict[str, list[int]]:
    """Returns the calls of sessions that are fed what was returned, by their names."""
    fed = {schedule.sessions[call.session].name for call in schedule.calls if call.fed}
    calls: dict[str, list[int]] = {name: [] for name in fed}
    for number, call in enumerate(schedule.calls):
        name = schedule.sessions[call.session].name
        if call.kind == "run" and name in calls:
            calls[name].append(number)
    return calls


def samples_of_chains(
    schedule: Schedule, today: Arrangement, play: Play = play
) -> dict[str, list[Feed]]:
    """Returns samples of the sessions in chains, by their names: the smallest first.

    They are taken evenly from the calls by their size, so that each context is there as often as it
    came, and the largest is one of them.

    Raises:
        DataError: the calls cannot be made.
    """
    calls = chained(schedule)
    if not calls:
        return {}
    with _folder() as folder:
        sizes = play(schedule, today, folder, (), ()).input_bytes
        chosen = {name: _spread(own, sizes) for name, own in calls.items()}
        play(schedule, today, folder, [n for own in chosen.values() for n in own], ())
        return {
            name: [_only(folder / f"{number}.inputs.npz") for number in own]
            for name, own in chosen.items()
        }


def _spread(calls: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """Returns calls that are taken evenly by size, and fit into the memory."""
    ordered = sorted(calls, key=lambda number: sizes[number])
    mean = sum(sizes[number] for number in ordered) / len(ordered)
    count = max(1, min(SAMPLES, len(ordered), int(_LARGEST_SAMPLES_BYTES / max(1.0, mean))))
    places = (np.arange(count) + 0.5) * len(ordered) / count
    chosen = [ordered[int(place)] for place in places]
    return chosen if chosen[-1] == ordered[-1] else [*chosen, ordered[-1]]


@dataclass(kw_only=True)
class ChainAnswers:
    """How far answers are from today's where a chain is fed what changed sessions return.

    A model's own study rates each step on caches of today's; an error may grow from step to step,
    and with that of the encoder.

    Attributes:
        schedule: The calls.
        today: The sessions as the application opens them.
        limits: The largest error of each session, by its name; others are not rated.
        play: Makes the calls; tests bring their own.
    """

    schedule: Schedule
    today: Arrangement
    limits: Mapping[str, float]
    play: Play = play
    _known: dict[object, Mapping[str, Fidelity] | str] = field(default_factory=dict)
    _references: Mapping[str, Sequence[Outputs]] | None = None

    def of(self, arrangement: Arrangement) -> Mapping[str, Fidelity] | str:
        """Returns what the answers of each rated session are worth, by its name.

        It is empty where the models are those of today, and a sentence where nothing can be
        compared.
        """
        key = self._changed(arrangement)
        if not key or not chained(self.schedule).keys() & self.limits.keys():
            return {}
        if key not in self._known:
            self._known[key] = self._rated(arrangement)
        return self._known[key]

    def is_refused(self, arrangement: Arrangement) -> bool:
        """Returns whether an arrangement is known to have a problem, without a look."""
        return self._changed(arrangement) in self._known and bool(self.problem(arrangement))

    def _changed(self, arrangement: Arrangement) -> tuple[tuple[str, str], ...]:
        """Returns the models that differ from today's: threads and memory change no answers."""
        own, today = arrangement.openings, self.today.openings
        models = ((n, str(o.model)) for n, o in own.items() if o.model != today[n].model)
        return tuple(sorted(models))

    def problem(self, arrangement: Arrangement) -> str:
        """Returns why an arrangement cannot be used, in words; empty where it can."""
        rated = self.of(arrangement)
        if isinstance(rated, str):
            return rated
        return ", ".join(
            f"the answers of {name} have an error of {own.error:.2g}, more than "
            f"{self.limits[name]:g}, where it is fed what the tuned sessions return"
            for name, own in rated.items()
            if own.error > self.limits[name]
        )

    def _rated(self, arrangement: Arrangement) -> Mapping[str, Fidelity] | str:
        try:
            if self._references is None:
                self._references = self._answers(self.today)
            answers = self._answers(arrangement)
            return {
                name: compare(references, answers[name])
                for name, references in self._references.items()
                if any(references)
            }
        except (DataError, OutputMismatchError) as error:
            return f"its answers cannot be compared: {error}"

    def _answers(self, arrangement: Arrangement) -> Mapping[str, Sequence[Outputs]]:
        """Returns the answers of some calls of the rated sessions, evenly spread over all."""
        calls = {n: own for n, own in chained(self.schedule).items() if n in self.limits}
        some = {
            name: [own[place] for place in np.linspace(0, len(own) - 1, SAMPLES).astype(int)]
            for name, own in calls.items()
        }
        with _folder() as folder:
            self.play(
                self.schedule, arrangement, folder, (), [n for own in some.values() for n in own]
            )
            return {
                name: [_only(folder / f"{number}.answers.npz") for number in dict.fromkeys(own)]
                for name, own in some.items()
            }


def _only(path: Path) -> Feed:
    """Returns the one sample of a file."""
    return load_samples(path)[0]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch.root()) as place:
        yield Path(place)
