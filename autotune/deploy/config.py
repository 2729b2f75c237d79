"""The tuned config: what `autotune study` writes, with the evidence for it.

A frozen record that goes to JSON and back through a closed schema (``autotune/1``).
:mod:`autotune.deploy.loaded` has the part of it that an application loads. Standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from autotune.deploy.files import is_folder
from autotune.deploy.loaded import FORMAT, SECTIONS, LoadedConfig
from autotune.deploy.options import Value
from autotune.deploy.records import (
    Amount,
    Json,
    MeasuredPositive,
    Positive,
    PositiveWhole,
    Whole,
    from_plain,
    one_of,
    read,
    to_plain,
)

SHARED, PER_CLIENT = "shared", "per_client"
"""One session for all clients, or one for each client."""

SESSION_KINDS = (SHARED, PER_CLIENT)
"""What the sessions of several clients can be."""


SessionKind = Annotated[str, one_of(SESSION_KINDS)]
"""One of :data:`SESSION_KINDS`."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What a config was tuned for, where that is not one caller.

    Attributes:
        clients: How many clients called at once, in a closed loop: each began its next run when the
            last one ended.
        sessions: The sessions that they called, one of :data:`SESSION_KINDS`.
        batch: Samples of a run; None where a sample was run as it was.
        baseline_batch: Samples of a run of the default beside it; None in the same way.
    """

    clients: PositiveWhole
    sessions: SessionKind = SHARED
    batch: PositiveWhole | None = None
    baseline_batch: PositiveWhole | None = None

    @property
    def words(self) -> str:
        """What it was tuned for, and how the application calls it, in a phrase."""
        parts = [f"batches of {self.batch}"] if self.batch is not None else []
        if self.clients > 1 or not parts:
            parts.append(self._client_words)
        return f"tuned for {' and '.join(parts)}"

    @property
    def _client_words(self) -> str:
        how = {
            SHARED: "which share one session",
            PER_CLIENT: "each with a session of its own",
        }
        return f"{self.clients} clients, {how[self.sessions]}"


CONFIG = "best.json"
"""Name of the config in the folder of a study."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A value with its 95 % confidence interval."""

    value: Positive
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How much the comparison of the answers with the unoptimised model's proves.

    Attributes:
        share: Share of the numbers in these outputs that were compared; the others are NaN or
            infinite in the unoptimised model.
        constant_outputs: Names of the outputs that are the same for all samples, or empty: nothing
            shows that a config computes them from the inputs.
        repeat_error: Relative L2 error between two runs of the unoptimised model on the same
            samples; above 0 where its answers differ from run to run.
        uncompared_outputs: Names of the outputs in which nothing could be compared, because they
            are empty or have no finite number in all samples.
    """

    samples: Whole
    share: Amount
    constant_outputs: tuple[str, ...]
    repeat_error: Amount
    uncompared_outputs: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ProviderEvidence:
    """What was measured of a config with another execution provider than the CPU's.

    Attributes:
        placement: Share of the nodes that each provider runs, by ONNX Runtime's name; the rest of
            the model's nodes is in `left_behind`.
        left_behind: Types of the nodes that the CPU provider runs beside it.
        cached_load_ms: Time to create the session once the provider has compiled the model; None
            where it compiles nothing. The first time is :attr:`Numbers.load_ms`.
        copy_ms: Time to copy the inputs to the device and the outputs back, which is no part of the
            latency; None where the provider computes in main memory.
        device_memory_by_difference: Whether the driver does not tell the memory of single
            processes, so that the device memory may hold that of others.
    """

    placement: Mapping[str, Amount]
    left_behind: tuple[str, ...] = ()
    cached_load_ms: float | None = None
    copy_ms: float | None = None
    device_memory_by_difference: bool = False


@dataclass(frozen=True, kw_only=True)
class LengthTimes:
    """The times of a generation after a prompt of one length, by the clock.

    Attributes:
        context: Tokens in the cache in the middle of the timed steps.
        ttft_ms: Time to the first token: the prompt.
        step_ms: Median time of a further token.
    """

    prompt_tokens: PositiveWhole
    context: PositiveWhole
    ttft_ms: MeasuredPositive
    step_ms: MeasuredPositive


QUANTITIES = (
    "latency_ms",
    "peak_memory_mib",
    "held_memory_mib",
    "cpu_s",
    "load_ms",
    "p99_ms",
    "peak_device_memory_mib",
    "throughput_per_s",
    "tokens_per_s",
    "ttft_ms",
)
"""The quantities of :class:`Numbers` that can be objectives."""


@dataclass(frozen=True, kw_only=True)
class Numbers:
    """What was measured of one configuration, beside the default in the same rounds.

    The default has the same record; its gains are 1. Latencies are medians of one run on an
    undisturbed machine; with several clients they are means of what a client sees, and `speedup`
    is a ratio of throughputs; see :attr:`TunedConfig.serving`. A quantity that was not measured is
    None.

    Attributes:
        peak_memory_mib: The most memory that the session adds to the process before it, in the
            largest of the processes that were measured.
        held_memory_mib: Memory that the process holds after all runs, above that before the
            session, in the largest of the processes.
        cpu_s: CPU time of a run, all threads.
        load_ms: Time to create the session in a fresh process.
        p99_ms: The 99th percentile as MLPerf estimates it; None where there were too few runs.
        peak_device_memory_mib: Memory of devices that the process held, at least 1; None where it
            is no objective of the study.
        throughput_per_s: Samples per second of all clients; None with one client that runs single
            samples.
        tokens_per_s: New tokens per second of a decoder, all clients together; `latency_ms` is that
            of a token then.
        ttft_ms: Time to the first token of a decoder, the mean of all prompts.
        lengths: The times of a decoder's generations by the length of the prompt.
        speedup: How many times faster than the default, by the time of a sample, with its interval.
        significant: Whether it is faster by more than the noise.
        gains: By quantity, how many times better it is than the default: geometric mean over the
            rounds with its 95 % interval.
        noise_floor: Relative difference of two measurements of the default that chance explains;
            no gain below it is claimed.
        memory_noise_floor: The same of the peaks of equal processes.
        peak_memory_interval_mib: `peak_memory_mib` with the range in which the peak of another
            process lies with 95 %; None where nothing was measured twice.
        most_held_memory_mib: The memory that hardly a further process holds more of: what a limit
            of held memory is compared with; None in the same way.
        error: Largest relative L2 error of an output against the unoptimised model, of a decoder
            the rise of its perplexity.
        agreement: Top-1 agreement: share of equal arg-max along the last axis; None where no output
            has classes.
        metric: The user's own metric of the outputs, the lowest of the rounds; None without one.
        drop: How far the metric is below the unoptimised model's; None without one.
        coverage: How much the comparison of the answers proves; None where they were not compared.
        provider: What was measured of another execution provider than the CPU's; None where the
            CPU provider runs everything.
        undisturbed: Whether the speed rests on rounds that no other program disturbed; otherwise it
            is that of a busy machine, which may favour some configurations.
        longest_ms: Latency of the slowest sample, where samples differ in shape; None elsewhere.
        worst_part: The part of an output that has this error, in words; empty where the outputs
            have one part.
        rounds: Rounds in which it was measured; 0 means that these are the numbers of a search.
        steady: Whether the latency came to a steady state in every measurement.
        batch: Samples of a run; None where a sample was run as it was.
    """

    latency_ms: Positive
    peak_memory_mib: float
    held_memory_mib: float | None = None
    cpu_s: float
    load_ms: float
    p99_ms: float | None = None
    peak_device_memory_mib: float | None = None
    throughput_per_s: Positive | None = None
    tokens_per_s: Positive | None = None
    ttft_ms: Positive | None = None
    lengths: tuple[LengthTimes, ...] = ()
    speedup: Interval
    significant: bool
    gains: Mapping[str, Interval]
    noise_floor: float
    memory_noise_floor: float
    peak_memory_interval_mib: Interval | None = None
    most_held_memory_mib: Positive | None = None
    error: float
    agreement: float | None = None
    metric: float | None = None
    drop: float | None = None
    coverage: Coverage | None = None
    provider: ProviderEvidence | None = None
    rounds: Whole
    steady: bool
    batch: PositiveWhole | None = None
    worst_part: str = ""
    undisturbed: bool = True
    longest_ms: Positive | None = None

    @property
    def values(self) -> dict[str, float]:
        """The quantities that were measured, by name."""
        numbers = {name: getattr(self, name) for name in QUANTITIES}
        return {name: number for name, number in numbers.items() if number is not None}

    @property
    def promised(self) -> dict[str, float]:
        """The values that limits hold for.

        Of held memory it is what hardly a process exceeds, of latency that of the slowest sample.
        """
        held_mib, longest_ms = self.most_held_memory_mib, self.longest_ms
        return {
            **self.values,
            **({} if held_mib is None else {"held_memory_mib": held_mib}),
            **({} if longest_ms is None else {"latency_ms": longest_ms}),
        }


@dataclass(frozen=True, kw_only=True)
class Evidence(Numbers):
    """The numbers of one trial of a study, and what they rest on.

    Attributes:
        trial: The number of the trial.
        error_data: ``"user"`` or ``"generated"``: the inputs on which errors were measured.
        max_error: The limit of the error when it was tuned; None where there was none.
    """

    trial: Whole
    error_data: str
    max_error: Positive | None


@dataclass(frozen=True, kw_only=True)
class TunedConfig(LoadedConfig):
    """One tuned config: a model file, how to open it, and why.

    Attributes:
        evidence: What was measured of it on the machine that tuned it.
        baseline: The same of the untouched model under a fresh ``SessionOptions()``.
        configuration: The same as `model.steps` and `session` in autotune's own parameters, for a
            search that starts from here. Loading ignores it.
        serving: How it was called; None where one caller was. Loading ignores it: the application
            decides how many sessions it loads.
    """

    evidence: Evidence
    baseline: Evidence
    configuration: Mapping[str, Value]
    serving: Serving | None = None

    def to_json(self) -> Json:
        """Returns the config as JSON values, in the order in which a reader wants them."""
        return {"format": FORMAT, **{name: to_plain(getattr(self, name)) for name in SECTIONS}}

    @classmethod
    def parts_of(cls, given: Json) -> dict[str, Any]:
        """Returns the fields of the class that the sections of a config describe.

        Raises:
            FormatError: one of them breaks the schema.
        """
        return {
            **super().parts_of(given),
            "evidence": from_plain(Evidence, given["evidence"], "evidence"),
            "baseline": from_plain(Evidence, given["baseline"], "baseline"),
            "configuration": read(Mapping[str, Value], given["configuration"], "configuration"),
            "serving": read(Serving | None, given["serving"], "serving"),
        }


def config_file(path: Path) -> Path:
    """Returns the config that a path names: the file itself, or ``best.json`` in a folder."""
    return path / CONFIG if is_folder(path) else path
