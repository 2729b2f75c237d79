"""The measurement of one configuration in a process of its own, phase by phase."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.deploy.config import PER_CLIENT, SHARED
from autotune.deploy.providers import provider_named
from autotune.deploy.session import SessionConfig
from autotune.facts.model import Model
from autotune.measure.answers import Judge, OutputMismatchError
from autotune.measure.duet import Duet, Reference, play
from autotune.measure.memory import Usage
from autotune.measure.outcome import (
    Effort,
    Failure,
    Fidelity,
    Generated,
    IsDominated,
    Measurement,
    Memory,
)
from autotune.measure.provider_cache import ProviderCache
from autotune.measure.replies import FirstRuns, Opened
from autotune.measure.requests import (
    SampleFiles,
    request_outputs,
    request_session,
)
from autotune.measure.statistics import percentile
from autotune.process.child import Child, ChildFailure

# Until the speed of a model is known, the time limit of a reply is enough for so many runs.
_FEW_RUNS = 4
_PEAK_SLACK_MIB = 1.0
# With this share of its nodes on a device, what disturbs the processor does not slow a model down.
_NEARLY_ALL = 0.9
_FAR_TOO_SLOW = 3.0
"""A decoder whose fastest steps take so many of the default's is not measured any further."""


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """How long to wait for a measuring process.

    Attributes:
        step_ms: The longest step of a decoder that is worth a measurement; None where any is.
    """

    load_s: float
    run_s: float
    step_ms: float | None = None

    def of_runs(self, count: int) -> float:
        """Returns how long to wait for so many runs, in s, where the time of one is not known."""
        return self.run_s * max(1.0, count / _FEW_RUNS)

    @classmethod
    def beside(cls, opened: Opened, runs: FirstRuns) -> "TimeLimits":
        """Returns the limits of configurations, by what the baseline took."""
        # generous: a configuration may well be slower, and the machine busier than now
        return cls(
            load_s=max(60.0, 20 * opened.load_ms / 1e3),
            run_s=max(30.0, 200 * max(runs.first_run_ms, runs.run_ms) / 1e3),
            # of the prompt whose first steps are compared
            step_ms=_FAR_TOO_SLOW * runs.lengths[-1].step_ms if runs.lengths else None,
        )


FIRST_LIMITS = TimeLimits(load_s=600.0, run_s=300.0)
"""The limits until the speed of the baseline is known."""


class ConfigurationRun:
    """One configuration's process and its numbers, phase by phase.

    The methods are called in their order: :meth:`open`, :meth:`first_runs`, :meth:`judge`,
    :meth:`play`, :meth:`measurement`. Where the process fails they raise ``ChildFailure``.

    Attributes:
        phase: The phase that has begun, as :class:`autotune.measure.outcome.Failure` names it.
    """

    def __init__(
        self,
        child: Child,
        files: SampleFiles,
        limits: TimeLimits,
        clients: int = 1,
        sessions: str = SHARED,
    ) -> None:
        self.phase = "open"
        self._clients = clients
        self._sessions = sessions
        self._child = child
        self._files = files
        self._limits = limits
        self._opened: Opened
        self._has_device = True  # until it is known
        self._generated: Generated | None = None
        self._first_load_ms: float | None = None
        self._first_runs: FirstRuns
        self._fidelity: Fidelity
        self._held_before: Usage
        self._held_after: Usage
        self._stopped_early = False
        self._spent_s: dict[str, float] = {}
        self._last_s = time.monotonic()

    def open(
        self,
        model: Path,
        config: SessionConfig,
        cache: ProviderCache,
        history: int = 0,
    ) -> Failure | None:
        """Opens the session; returns a failure where its execution provider runs no node.

        Args:
            history: What the heap of the process has seen; see
                :func:`autotune.measure.memory.live_through`.
        """
        limit_s, folder = self._limits.load_s, None
        self._has_device = False
        self._is_on_device = False  # nearly all of its nodes
        if config.accelerator is not None:
            provider = provider_named(config.accelerator)
            limit_s = max(limit_s, provider.compile_s)
            self._has_device = provider.device != "cpu"
        if config.provider_cache:
            self._first_load_ms, folder = cache.first_load_ms(model, config), cache.folder
        self._opened = request_session(
            self._child,
            self._files,
            model,
            config,
            limit_s,
            folder,
            clients=self._clients,
            sessions=self._clients if self._sessions == PER_CLIENT else 1,
            history=history,
        )
        self._lap("start")
        self._book({"open": self._opened.load_ms / 1e3}, "start")
        placement = self._opened.placement
        if self._has_device and placement is not None:
            self._is_on_device = placement.share(str(config.accelerator)) > _NEARLY_ALL
        if config.accelerator is None or placement is None or placement.share(config.accelerator):
            return None
        return Failure(
            kind="fallback",
            phase=self.phase,
            message=f"{config.accelerator} runs none of the {sum(placement.nodes.values())} nodes",
        )

    def lost_inputs(self, model: Model) -> Failure | None:
        """Returns what an application would miss that feeds the inputs of the model.

        It may feed them by their places, and give others than their default values.
        """
        names = tuple(tensor.name for tensor in model.inputs)
        optional = () if model.weights_are_inputs else model.optional
        lost = [t.name for t in optional if t.name not in self._opened.optional]
        if lost:
            message = f"it does not take the model's optional input '{lost[0]}'"
        elif self._opened.inputs != names and sorted(self._opened.inputs) == sorted(names):
            message = "the inputs come in another order than the model's"
        else:  # names of others end in the first run
            return None
        return Failure(kind="wrong_answers", phase=self.phase, message=message)

    @property
    def load_ms(self) -> float:
        """How long this process took to create the session."""
        return self._opened.load_ms

    def first_runs(self, *, gives_up: bool = False) -> Failure | None:
        """Runs until the memory has settled; returns a failure where that is not worth it.

        Args:
            gives_up: Whether a decoder that is far slower than the default is given up.
        """
        self.phase = "run"
        longest_ms = self._limits.step_ms if gives_up else None
        request = {"do": "first_runs", "longest_step_ms": longest_ms}
        self._first_runs = self._child.request(request, self._limits.run_s, FirstRuns)
        self._lap("first_runs")
        if not self._first_runs.too_slow or longest_ms is None:
            return None
        message = (
            f"a token takes {self._first_runs.run_ms:.3g} ms, over {_FAR_TOO_SLOW:.0f} times the "
            f"{longest_ms / _FAR_TOO_SLOW:.3g} ms of the default"
        )
        return Failure(kind="slow", phase=self.phase, message=message)

    @property
    def fidelity(self) -> Fidelity:
        """How right the answers are."""
        return self._fidelity

    def judge(
        self, judge: Judge, max_error: float, earlier: Fidelity | None = None
    ) -> Failure | None:
        """Compares the outputs with the unoptimised model's; returns why they are wrong, if so.

        Args:
            max_error: Largest error of right outputs.
            earlier: How right those of the same session were; they are not compared again, which
                takes seconds where outputs are large. None if they are to be compared.
        """
        if earlier is not None:
            self._fidelity = earlier
            return None
        self.phase = "answers"
        try:
            error = self._compare(judge, max_error)
        except OutputMismatchError as mismatch:
            return Failure(kind="wrong_answers", phase=self.phase, message=str(mismatch))
        self._lap("answers")
        if not math.isfinite(error):
            message = "an output is too far from the unoptimised model's for a finite error"
            return Failure(kind="wrong_answers", phase=self.phase, message=message)
        if error > max_error:
            message = f"error {error:.2g}; above {max_error:g} nothing is timed"
            return Failure(kind="wrong_answers", phase=self.phase, message=message, error=error)
        return None

    def _compare(self, judge: Judge, max_error: float) -> float:
        """Returns the error of the outputs; that of a part of them if it is surely too large."""
        child, files, limit_s = self._child, self._files, self._limits.run_s
        first = judge.first_look
        outputs = request_outputs(child, files, limit_s, (0, first)) if first else []
        error = judge.surely_above(outputs, max_error) if first else None
        if error is not None:
            return error
        outputs += request_outputs(child, files, limit_s, (first, None) if first else None)
        self._fidelity = judge.compare(outputs)
        return self._fidelity.error

    def play(
        self, reference: Reference, effort: Effort, is_dominated: IsDominated, reference_ms: float
    ) -> Duet:
        """Returns the duet with the reference; a reference that died is started again once."""
        self.phase = "turns"

        def check(duet: Duet) -> bool:
            # a noisy machine may have slowed the configuration more than the reference
            self._stopped_early = is_dominated(
                self.measurement(duet, reference_ms / duet.noisiness)
            )
            return self._stopped_early

        self._held_before = self._held_after = self._held()
        self._child.freeze()
        for last_try in (False, True):
            try:
                duet = play(
                    reference,
                    self._child,
                    run_ms=self._first_runs.run_ms,
                    effort=effort,
                    limit_s=self._limits.run_s,
                    is_dominated=check,
                    clients=self._clients,
                    quiet_ms=reference_ms if self._is_on_device else None,
                )
            except ChildFailure:
                if last_try or reference.is_running():
                    raise
                reference.renew()
            else:
                self._child.thaw()
                self._held_after = self._held()
                self._lap("other")
                self._book(duet.spent_s, "other")
                return duet
        raise AssertionError("unreachable")

    def play_prompts(self, reference: Reference, effort: Effort, reference_ms: float) -> None:
        """Times a decoder's prompts, in a duet or by the first runs, before :meth:`play`."""
        self.phase = "turns"
        if not effort.plays_prompts:
            self._generated = Generated(
                ttft_ms=self._first_runs.ttft_ms,
                ttft_ratio=None,
                lengths=self._first_runs.lengths,
            )
            return
        self._child.freeze()
        with reference.prompts(reference_ms, self._child):
            duet = play(
                reference,
                self._child,
                run_ms=self._first_runs.ttft_ms,
                effort=replace(effort, fewest_runs=0),
                limit_s=self._limits.run_s,
                clients=self._clients,
                quiet_ms=reference_ms if self._is_on_device else None,
            )
        self._child.thaw()
        self._generated = Generated(
            ttft_ms=duet.ratio.value * reference_ms,
            ttft_ratio=duet.ratio,
            lengths=self._first_runs.lengths,
        )
        self._lap("prompts")

    def measurement(self, duet: Duet, reference_ms: float) -> Measurement:
        """Returns the numbers by the time slices so far.

        Args:
            duet: The time slices so far, one at least.
        """
        turns = duet.evidence
        run_ms = [ns / 1e6 for time_slice in turns for ns in time_slice.run_ns]
        p50_ms = percentile(run_ms, 50)
        assert p50_ms is not None
        ratio = duet.ratio
        return Measurement(
            ratio=ratio,
            latency_ms=ratio.value * reference_ms,
            memory=self._memory(),
            fidelity=self._fidelity,
            p50_ms=p50_ms,
            p90_ms=percentile(run_ms, 90),
            p95_ms=percentile(run_ms, 95),
            p99_ms=percentile(run_ms, 99),
            load_ms=self._first_load_ms or self._opened.load_ms,
            cached_load_ms=self._first_load_ms and self._opened.load_ms,
            placement=self._opened.placement,
            copy_ms=self._first_runs.copy_ms,
            first_run_ms=self._first_runs.first_run_ms,
            cpu_s=sum(time_slice.cpu_ns for time_slice in turns)
            / len(run_ms)
            / (self._files.batch or 1)
            / 1e9,
            runs=len(run_ms),
            turns=len(duet.configuration),
            undisturbed_turns=len(duet.chosen) if duet.is_undisturbed else 0,
            contaminated_turns=duet.contaminated,
            steady=duet.settled_from is not None,
            stopped_early=self._stopped_early,
            spent_s=dict(self._spent_s),
            samples=None,
            batch=self._files.batch,
            clients=self._clients,
            # a median of single runs is that of no sample where these differ in shape
            mean_ms=None
            if self._clients == 1 and turns[0].round == 1
            else float(np.median([time_slice.ms for time_slice in turns])),
            generated=self._generated,
            slowest=duet.slowest,
        )

    def _held(self) -> Usage:
        """Returns the memory that the process holds now."""
        return self._child.request({"do": "held"}, self._limits.run_s, Usage)

    def _memory(self) -> Memory:
        """Returns the memory of the session.

        What the process holds is that after the first runs, and what it grew by in the timed ones:
        between them the answers were compared, which leaves arrays of its own in the process.
        """
        device, first = self._first_runs.device, self._first_runs.after
        before, after = self._held_before, self._held_after
        parts = (first.anonymous_mib, before.anonymous_mib, after.anonymous_mib)
        known = [mib for mib in parts if mib is not None]
        anonymous_mib = known[0] + max(0.0, known[2] - known[1]) if len(known) == 3 else None
        growth_mib = after.resident_mib - before.resident_mib
        memory = Memory(
            device_mib=device.mib if device else None if self._has_device else 0.0,
            device_by_difference=device is not None and device.by_difference,
            base_mib=self._opened.base.resident_mib,
            load_peak_mib=self._opened.loaded.peak_mib,
            run_peak_mib=self._first_runs.after.peak_mib,
            resident_mib=first.resident_mib + max(0.0, growth_mib),
            anonymous_mib=anonymous_mib,
            growth_mib=growth_mib,
            peak_was_reset=self._opened.peak_was_reset,
        )
        held_mib = memory.resident_mib - memory.base_mib
        # the peak counts in pages, and the kernel updates both numbers now and then only
        assert held_mib <= memory.peak_mib + _PEAK_SLACK_MIB, "more is held than the peak"
        return memory

    def _lap(self, part: str) -> None:
        """Books the time since the last call on `part`."""
        now_s = time.monotonic()
        self._spent_s[part] = now_s - self._last_s
        self._last_s = now_s

    def _book(self, parts: Mapping[str, float], whole: str) -> None:
        """Takes the seconds of `parts` out of those of `whole`."""
        for part, seconds in parts.items():
            self._spent_s[whole] -= seconds
            self._spent_s[part] = seconds
