"""The objectives by name, which way each is better, and how their values are compared."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.errors import RequestError, did_you_mean
from autotune.measure.outcome import Effort, Failure, Measurement, Outcome

# Twice what two measurements of one configuration differ by.
_CLEARLY_MORE = 1.05
# Of made-up processes that differ by 2 %, twenty in a row keep a promise by two of them with 98 %.
_BEYOND_LARGEST, _BEYOND_MEDIAN = 0.05, 2.0

P99_RUNS = 662
"""From so many runs on there is an estimate of the 99th percentile."""

Values = Mapping[str, float]
"""A value for each objective, by name."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A positive quantity of a measurement that is better the smaller it is, or the larger.

    Attributes:
        name: As a study, ``--objective`` and :class:`Measurement` name it, with its unit.
        word: As ``--prefer`` names it.
        at_best: Returns its best possible value by a measurement that is still going on, which is
            the present one if this is None; None where that is unknown, and no configuration is
            given up early.
        tolerance: Relative difference below which two values count as the same: two processes of
            one configuration differ by as much.
        tolerance_absolute: The same in the objective's unit; the larger of both counts.
        maximised: Whether it is better the larger it is.
    """

    name: str
    word: str
    heading: str
    tolerance: float
    at_best: Callable[[Measurement], float | None] | None = None
    tolerance_absolute: float = 0.0
    fewest_runs: int = 0
    maximised: bool = False

    def of(self, measurement: Measurement) -> float | None:
        """Returns its value in a measurement; None where the measurement lacks it."""
        value: float | None = getattr(measurement, self.name)
        return value

    def cost(self, value: float) -> float:
        """Returns a number that is smaller the better `value` is: itself, or its inverse.

        Ratios of costs are ratios of values, or their inverse, so what compares logarithms treats
        all objectives alike.
        """
        return 1 / value if self.maximised else value

    def gain(self, value: float, over: float) -> float:
        """Returns how many times better `value` is than the value `over`."""
        return self.cost(over) / self.cost(value)

    def better_by(self, value: float, share: float) -> float:
        """Returns the value that is better than `value` by a share, such as 0.05."""
        return value * (1 + share) if self.maximised else value / (1 + share)

    def is_better(self, value: float, than: float) -> bool:
        """Returns whether `value` is better than another by more than processes differ."""
        if self.maximised:
            return value > than * (1 + self.tolerance)
        return value < than - max(self.tolerance_absolute, self.tolerance * than)


def _latency_at_best(measurement: Measurement) -> float:
    return measurement.latency_ms * measurement.ratio.low / measurement.ratio.value


def _rate_at_best(rate: float | None, measurement: Measurement) -> float | None:
    return None if rate is None else rate * measurement.ratio.value / measurement.ratio.low


def _ttft_at_best(measurement: Measurement) -> float | None:
    generated = measurement.generated
    if generated is None or generated.ttft_ratio is None:
        return measurement.ttft_ms
    return generated.ttft_ms * generated.ttft_ratio.low / generated.ttft_ratio.value


OBJECTIVES: Mapping[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective(
            name="latency_ms",
            word="latency",
            heading="latency ms",
            at_best=_latency_at_best,
            tolerance=0.01,
        ),
        Objective(
            name="peak_memory_mib",
            word="memory",
            heading="memory MiB",
            tolerance=0.02,
            tolerance_absolute=0.5,
        ),
        Objective(
            name="cpu_s",
            word="cpu",
            heading="CPU s",
            at_best=lambda m: 0.9 * m.cpu_s,
            tolerance=0.03,
        ),
        Objective(
            name="load_ms",
            word="load",
            heading="load ms",
            tolerance=0.10,
        ),
        Objective(
            name="held_memory_mib",
            word="held_memory",
            heading="held MiB",
            tolerance=0.03,
            tolerance_absolute=1.0,
        ),
        Objective(
            name="peak_device_memory_mib",
            word="device_memory",
            heading="device MiB",
            tolerance=0.02,
            tolerance_absolute=1.0,
        ),
        Objective(
            name="p99_ms",
            word="p99",
            heading="p99 ms",
            at_best=lambda _: None,
            tolerance=0.05,
            fewest_runs=P99_RUNS,
        ),
        Objective(
            name="throughput_per_s",
            word="throughput",
            heading="samples/s",
            at_best=lambda m: _rate_at_best(m.throughput_per_s, m),
            tolerance=0.01,
            maximised=True,
        ),
        Objective(
            name="tokens_per_s",
            word="tokens",
            heading="tokens/s",
            at_best=lambda m: _rate_at_best(m.tokens_per_s, m),
            tolerance=0.01,
            maximised=True,
        ),
        Objective(
            name="ttft_ms",
            word="ttft",
            heading="first token ms",
            at_best=_ttft_at_best,
            tolerance=0.02,
        ),
    )
}
"""All of them; see :class:`Objective`. ``cpu_s`` is the CPU time of a run, ``load_ms`` the creation
of a session in a fresh process, ``held_memory_mib`` what the process
holds after all runs, ``p99_ms`` MLPerf's estimate of the 99th percentile,
``peak_device_memory_mib`` the memory of NVIDIA devices (at least 1 MiB), ``throughput_per_s``
the samples per second of several clients, or of batches, ``tokens_per_s`` the new tokens per second
of a decoder, and ``ttft_ms`` its time to the first token."""

THROUGHPUT = "throughput_per_s"
"""The objective of several clients."""

TOKENS = "tokens_per_s"
"""The objective of decoders."""

RATES = (THROUGHPUT, TOKENS)
"""The objectives that are the inverse of a latency."""

SPEEDS = ("latency_ms", *RATES)
"""The objectives that the ratio of a duet tells."""

DEFAULT = ("latency_ms", "peak_memory_mib")
"""The objectives of a study that names none."""

LOADED_DEFAULT = (THROUGHPUT, "peak_memory_mib")
"""The same with several clients."""

DECODER_DEFAULT = (TOKENS, "peak_memory_mib")
"""The same for a decoder."""

DEVICE_MEMORY = "peak_device_memory_mib"
"""The objective that takes the place of the process's memory where every execution provider of a
study computes on a device of its own."""

BALANCED = "balanced"


def find(names: Sequence[str]) -> tuple[Objective, ...]:
    """Returns the objectives of these names or words, in this order.

    Raises:
        RequestError: a name is none of them, or there twice; or there is no name.
    """
    by_word = {objective.word: objective for objective in OBJECTIVES.values()}
    known = {**by_word, **OBJECTIVES}
    for name in names:
        if name not in known:
            near = did_you_mean(name, known)
            raise RequestError(f"--objective: '{name}' is none of {', '.join(by_word)}.{near}")
    chosen = tuple(known[name] for name in names)
    if not chosen or len({objective.name for objective in chosen}) < len(chosen):
        raise RequestError("--objective: name each of the objectives once")
    return chosen


def preference(name: str) -> str:
    """Returns the word of an objective's name: ``latency`` for ``latency_ms``; others as is."""
    return OBJECTIVES[name].word if name in OBJECTIVES else name


def check_preference(word: str, objectives: Sequence[Objective]) -> None:
    """Refuses a preference that is neither the word of an objective nor ``balanced``.

    Raises:
        RequestError: it is neither.
    """
    words = [*(objective.word for objective in objectives), BALANCED]
    if word not in words:
        near = did_you_mean(word, words)
        raise RequestError(f"--prefer must be one of {', '.join(words)}, not '{word}'.{near}")


def values(
    measurement: Measurement, objectives: Sequence[Objective] = tuple(OBJECTIVES.values())
) -> dict[str, float]:
    """Returns the objectives' values by name; those that it lacks are missing."""
    numbers = {objective.name: objective.of(measurement) for objective in objectives}
    return {name: value for name, value in numbers.items() if value is not None}


def complete(outcome: Outcome, objectives: Sequence[Objective]) -> Outcome:
    """Returns the outcome, or a failure where it is a measurement that lacks an objective."""
    if isinstance(outcome, Measurement):
        for objective in objectives:
            if objective.of(outcome) is None:
                return Failure(
                    kind="timeout",
                    phase="turns",
                    message=_lacking(objective, outcome),
                )
    return outcome


def _lacking(objective: Objective, measurement: Measurement) -> str:
    """Returns why a measurement has no value for an objective."""
    if objective.name == THROUGHPUT:
        return "throughput_per_s needs several clients or batch sizes: add --clients or --batch"
    if objective.name in (TOKENS, "ttft_ms"):
        return f"{objective.name} needs a decoder that generates"
    if not objective.fewest_runs:
        return f"{objective.name} cannot be measured here: install autotune with the extra [nvidia]"
    return (
        f"{objective.name} needs {objective.fewest_runs} runs, and there were {measurement.runs} "
        "within the time"
    )


def is_dominated(
    measurement: Measurement, rivals: Sequence[Values], objectives: Sequence[Objective]
) -> bool:
    """Returns whether a measurement under way has no chance left beside one of the rivals.

    That is, at its best it is better than the rival in no objective and clearly worse in one.
    """
    best = {item.name: (item.at_best or item.of)(measurement) for item in objectives}

    def dominated_by(rival: Values) -> bool:
        pairs = [(item, best[item.name], rival[item.name]) for item in objectives]
        if any(mine is None or item.is_better(mine, theirs) for item, mine, theirs in pairs):
            return False
        return any(
            mine is not None and item.cost(mine) > item.cost(theirs) * _CLEARLY_MORE
            for item, mine, theirs in pairs
        )

    return any(dominated_by(rival) for rival in rivals)


def product(of: Values, objectives: Sequence[Objective]) -> float:
    """Returns the product of all costs, in which a tenth less of each counts the same."""
    return math.prod(objective.cost(of[objective.name]) for objective in objectives)


def effort_for(effort: Effort, objectives: Sequence[Objective], fewest_runs: int = 0) -> Effort:
    """Returns the effort with what the objectives need, and `fewest_runs` at least."""
    needed = max(objective.fewest_runs for objective in objectives)
    times_prompts = any(objective.name == "ttft_ms" for objective in objectives)
    return replace(
        effort,
        fewest_runs=max(needed, fewest_runs),
        plays_prompts=effort.plays_prompts or times_prompts,
    )


def held_by_most_mib(largest_mib: float, above_median_mib: float = 0.0) -> float:
    """Returns what hardly a further process holds; see docs/measuring.md.

    Args:
        largest_mib: The most that one of some processes held.
        above_median_mib: How far that is above their median.
    """
    beyond_mib = max(_BEYOND_LARGEST * largest_mib, _BEYOND_MEDIAN * above_median_mib)
    return largest_mib + beyond_mib + OBJECTIVES["held_memory_mib"].tolerance_absolute
