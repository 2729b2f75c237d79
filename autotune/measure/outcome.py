"""The outcome of measuring a configuration, numbers or a failure; and the measurer's interface."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autotune.deploy.config import Coverage, Interval, LengthTimes
from autotune.deploy.options import Value
from autotune.deploy.placement import Placement
from autotune.deploy.records import Amount, Positive, PositiveWhole
from autotune.space.configuration import Configuration

LEAST_MEMORY_MIB = 0.1
"""A session of a tiny model may fit into memory that its process held already. Less than this
cannot be told from nothing: fresh processes of one session differ by more."""

NO_RUNTIME = "no_runtime"
"""The kind of a failure whose ONNX Runtime is no longer there."""

_FEWEST_QUIET = 5
"""With fewer quiet time slices than this, or than half of them, all time slices count."""


def rests_on_quiet(quiet: int, turns: int) -> bool:
    """Returns whether an estimate rests on so many quiet time slices of all; else all count."""
    return quiet >= min(_FEWEST_QUIET, turns / 2)


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How far outputs are from the unoptimised model's; the worst output counts.

    Attributes:
        error: The error that the limit holds for: the mean relative L2 error of the validation
            samples, but at least an eighth of the worst sample's; see
            :mod:`autotune.measure.answers`.
        worst_error: The error of the worst sample; None where an earlier version measured.
        cosine: Smallest cosine similarity.
        max_difference: Largest absolute difference.
        agreement: Top-1 agreement: share of equal arg-max along the last axis; None where that is
            no axis of classes.
        metric: The user's own metric of the outputs; higher is better.
        drop: By how much the metric is below that of the unoptimised model's outputs.
        coverage: How much the comparison proves; None where an earlier version measured.
        perplexity: That of held text, for a decoder, whose error is its rise; None for others.
        errors: The error of each part of an output on each validation sample, three digits of it,
            the worst first; None where a sample lacks the output. Empty where an earlier version
            measured.
        worst_part: The part of an output that `error` is that of, in words; empty where there is
            one part only, which is not lost.
    """

    error: Amount
    cosine: float
    max_difference: float
    agreement: float | None
    metric: float | None = None
    drop: float | None = None
    worst_error: Amount | None = None
    coverage: Coverage | None = None
    perplexity: Amount | None = None
    errors: Mapping[str, tuple[Amount | None, ...]] = field(default_factory=dict)
    worst_part: str = ""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory of the measuring process, by phase.

    Attributes:
        base_mib: Memory before the session was created: interpreter, libraries and inputs.
        load_peak_mib: The most memory while the session was created.
        run_peak_mib: The most memory in the first runs over all inputs.
        resident_mib: Memory at the end.
        anonymous_mib: The part of `resident_mib` that is not page cache; None where the system does
            not tell.
        device_mib: Memory of devices that the process held after the first runs; 0 where it uses
            none, None where it was not measured.
        device_by_difference: Whether the driver does not tell the memory of single processes, so
            that what others allocated meanwhile is in `device_mib`.
        growth_mib: How much more memory the process held after the timed runs than before them: a
            leak, or an arena that goes on growing over inputs of varying shapes.
        peak_was_reset: Whether the system could set the peak back before the session. If not, the
            peaks are upper bounds: they count what the process held while it started.
    """

    base_mib: float
    load_peak_mib: float
    run_peak_mib: float
    resident_mib: float
    anonymous_mib: float | None
    growth_mib: float
    device_mib: float | None = None
    device_by_difference: bool = False
    peak_was_reset: bool = True

    @property
    def peak_mib(self) -> float:
        """The most memory that the session added: the objective.

        It is at least :data:`LEAST_MEMORY_MIB`, so that ratios exist.
        """
        grown = max(0.0, self.growth_mib)
        return max(
            LEAST_MEMORY_MIB, max(self.load_peak_mib, self.run_peak_mib + grown) - self.base_mib
        )


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The times of a decoder's generations.

    Attributes:
        ttft_ms: Time to the first token, the mean of all prompts: the ratio to the reference's,
            times the time of the reference on a quiet machine. Without a duet of prompts it is the
            time by the clock.
        ttft_ratio: The same in that of the reference, with its 95 % interval; None without a duet.
        lengths: The times of each prompt by the clock, in the first runs.
    """

    ttft_ms: Positive
    ttft_ratio: Interval | None
    lengths: tuple[LengthTimes, ...]


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """The numbers of one configuration.

    Attributes:
        ratio: Latency in runs of the reference, with its 95 % interval.
        latency_ms: `ratio` times the study's reference latency; comparable within a study.
        p50_ms: Median of the configuration's own runs in quiet time slices, by the clock.
        p90_ms: The 90th percentile as MLPerf estimates it; None where there were too few runs.
        p95_ms: The 95th percentile, in the same way.
        p99_ms: The 99th percentile, in the same way.
        cpu_s: CPU time of a run, all threads, for each sample of its batch; a pool that spins shows
            here.
        runs: Timed runs in quiet time slices.
        turns: The configuration's time slices.
        undisturbed_turns: The configuration's time slices on which the estimate rests; 0 if the
            machine was never quiet.
        contaminated_turns: Time slices of either side that were disturbed; they were taken again.
        stopped_early: Whether the measurement ended early because the configuration was clearly
            dominated.
        spent_s: Seconds that the measurement took, by part.
        samples: Name of the file with the raw run times, where they are kept.
        placement: The nodes of each execution provider; None where the CPU provider is the only
            one.
        cached_load_ms: Time to create the session once the provider has compiled the model; None
            where it compiles nothing. `load_ms` is the first time then.
        copy_ms: Time of the copies to the device and back, which are no part of the latency.
        batch: Samples of one run, whose latency is that of the whole batch; None in a study without
            batch sizes.
        clients: How many clients ran at once. With several of them `ratio` is the reference's
            throughput over the configuration's, `latency_ms` the mean latency of a run as a client
            sees it, and percentiles are those of the runs of all clients.
        mean_ms: With several clients, or samples that differ in shape, the mean latency by the
            clock in quiet time slices; None elsewhere.
        files_sha256: Digest of the model's files; None where a session was measured by itself.
        generated: The times of a decoder's generations, whose latency is that of a token; None
            where a sample is run as it is.
        slowest: How many times the mean of all samples the slowest one takes; 1 where all have one
            shape.
    """

    ratio: Interval
    latency_ms: Positive
    memory: Memory
    fidelity: Fidelity
    p50_ms: float
    p90_ms: float | None
    p95_ms: float | None
    p99_ms: Positive | None
    load_ms: Amount
    first_run_ms: float
    cpu_s: Amount
    runs: int
    turns: int
    undisturbed_turns: int
    contaminated_turns: int
    steady: bool
    stopped_early: bool
    spent_s: Mapping[str, float]
    samples: str | None
    placement: Placement | None = None
    cached_load_ms: float | None = None
    copy_ms: float | None = None
    batch: PositiveWhole | None = None
    clients: PositiveWhole = 1
    mean_ms: Positive | None = None
    generated: Generated | None = None
    files_sha256: str | None = None
    slowest: Positive = 1.0

    @property
    def longest_ms(self) -> float:
        """The latency of the slowest sample: what a limit of latency holds for."""
        return self.slowest * self.latency_ms

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens per second of all clients; None for a model that is no decoder."""
        return None if self.generated is None else self.clients / self.latency_ms * 1e3

    @property
    def ttft_ms(self) -> float | None:
        """Time to the first token; None for a model that is no decoder."""
        return None if self.generated is None else self.generated.ttft_ms

    @property
    def sample_ms(self) -> float:
        """The part of a run's latency that each sample of its batch takes."""
        return self.latency_ms / (self.batch or 1)

    @property
    def clock_ms(self) -> float:
        """The latency by the clock in quiet time slices: the median run, under load the mean."""
        return self.p50_ms if self.mean_ms is None else self.mean_ms

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second of all clients; None with one client that has no batches.

        In a closed loop it is the number of clients over the mean latency, without noise of its
        own; see :attr:`autotune.measure.clients.Burst.mean_ms`.
        """
        if (self.clients == 1 and self.batch is None) or self.generated is not None:
            return None
        return self.clients / self.sample_ms * 1e3

    @property
    def tail_ms(self) -> float:
        """The 99th percentile, or where there were too few runs the highest that is known."""
        known = (self.p99_ms, self.p95_ms, self.p90_ms)
        return next((ms for ms in known if ms is not None), self.p50_ms)

    @property
    def peak_device_memory_mib(self) -> float | None:
        """The objective of devices: at least 1 MiB, so that ratios exist; None if not measured."""
        return None if self.memory.device_mib is None else max(1.0, self.memory.device_mib)

    @property
    def peak_memory_mib(self) -> float:
        """The memory objective; see :class:`Memory`."""
        return self.memory.peak_mib

    @property
    def held_memory_mib(self) -> float:
        """The memory that the process holds after all runs, above that before the session."""
        return max(LEAST_MEMORY_MIB, self.memory.resident_mib - self.memory.base_mib)

    @property
    def is_undisturbed(self) -> bool:
        """Whether the estimate rests on quiet time slices; if not, it is one of a busy machine."""
        return rests_on_quiet(self.undisturbed_turns, self.turns)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a configuration has no numbers.

    Attributes:
        kind: ``wrong_answers``, ``refused`` (ONNX Runtime said no), ``no_runtime`` (it is no longer
            there), ``fallback`` (its execution provider runs no node), ``crashed``, ``failed``,
            ``killed``, ``timeout``, ``slow`` (a decoder's first steps took far longer than the
            default's), ``out_of_memory``, ``protocol`` or ``prepare`` (the model could
            not be made).
        phase: ``prepare``, ``open``, ``run``, ``answers`` or ``turns``.
        error: The fidelity error, where that is the reason and a finite number.
        unfit: The values with which no file of this model can be made, by parameter: where all of
            these parameters have one of them. Empty where that is not known.
    """

    kind: str
    phase: str
    message: str
    error: float | None = None
    unfit: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)


Outcome = Measurement | Failure


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much a measurement may cost.

    Attributes:
        time_cap_s: Longest time of the duet on a machine that is quiet often enough.
        patience_s: Longest time of the duet with all waiting for a quieter machine; less where
            waiting was in vain before. Runs of seconds may exceed it: three time slices are the
            least.
        half_width: The duet ends early once its interval is this narrow, relative to its value.
        noisy_share: Shortest time of the duet on a machine that stays noisy, over `time_cap_s`.
        fewest_pairs: Undisturbed time slices of the configuration that the interval needs.
        fewest_runs: The duet does not end, dominated configurations apart, before so many timed
            runs; 0 where no percentile is asked for.
        compares_answers: Whether answers are compared that were compared before. If not, those of
            the last comparison count.
        plays_prompts: Whether a decoder's prompts have a duet of their own. If not, their time is
            that of the first runs by the clock.
        long_run_ms: A time slice begins with a run that is not recorded, because its caches are
            cold, unless runs are longer than this.
    """

    time_cap_s: float
    patience_s: float
    half_width: float
    noisy_share: float = 0.5
    fewest_pairs: int = 12
    fewest_runs: int = 0
    compares_answers: bool = True
    plays_prompts: bool = True
    long_run_ms: float = 50.0

    @property
    def noisy_s(self) -> float:
        """Shortest time of the duet on a noisy machine, where time slices scatter more."""
        return self.noisy_share * self.time_cap_s


# Longer duets scatter as much from process to process, and what cold caches cost is lost in the
# noise of a single measurement: see docs/measuring.md.
SEARCH = Effort(
    time_cap_s=0.5,
    patience_s=4.0,
    half_width=0.02,
    noisy_share=1.6,
    fewest_pairs=8,
    long_run_ms=15.0,
    plays_prompts=False,
)
FINAL_COMPARISON = Effort(time_cap_s=0.5, patience_s=4.0, half_width=0.005, noisy_share=3.2)
SIMPLIFICATION = Effort(
    time_cap_s=0.5,
    patience_s=4.0,
    half_width=0.01,
    noisy_share=2.0,
    fewest_pairs=8,
    plays_prompts=False,
)

IsDominated = Callable[[Measurement], bool]
"""Called during a measurement with its numbers so far: is the configuration clearly dominated?"""


def never_dominated(_: Measurement) -> bool:
    """Returns False: the measurement goes on to its end."""
    return False


class Measurer(Protocol):
    """Measures configurations: a configuration in, an outcome out."""

    @property
    def reference_ms(self) -> float:
        """Latency of the baseline that ratios are multiplied with."""

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        """Returns the outcome of measuring `configuration`, ended early if `is_dominated` says so.

        Raises:
            CannotMeasureError: the baseline itself fails.
        """

    def canonical(self, configuration: Configuration) -> Configuration:
        """Returns the configuration that stands for all that open the same session."""

    def answers_of(self, config: Path) -> Fidelity | Failure:
        """Returns how right the answers of a written config are, or why it gives none.

        A fresh process loads it as an application does.
        """

    def rescale(self, reference_ms: float) -> None:
        """Takes another latency of the baseline to multiply ratios with: that of a shared study."""

    def renew(self) -> None:
        """Begins a round, in which the luck of the last one must not decide again.

        The reference is started again, and later processes have another history of the heap.
        """

    def close(self) -> None:
        """Ends every process. Measurements are kept."""
