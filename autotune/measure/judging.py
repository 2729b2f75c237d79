"""A configuration judged before it is written: in batches, with padding, and on all samples.

The search compares answers on a few samples, one by one, which cannot show a drop of one point. So
the configuration and the unoptimised model run all samples of the user, in an order drawn at
random, those that calibrated nothing first, until :mod:`autotune.measure.sequential` is sure or the
time is over.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from autotune.deploy.records import Amount, Text, Whole
from autotune.deploy.session import SessionConfig
from autotune.errors import RequestError
from autotune.facts.batches import stack
from autotune.facts.model import Model
from autotune.facts.output_parts import Origins
from autotune.facts.workload import LABELS, Workload
from autotune.measure.answers import Metric, OutputMismatchError, Outputs, compare
from autotune.measure.child_session import ChildSession, child_session
from autotune.measure.companions import Case, Companions, compare_companions
from autotune.measure.outcome import Fidelity
from autotune.measure.requests import samples_of
from autotune.measure.sample_sets import UNOPTIMISED
from autotune.measure.sequential import BEYOND, UNDECIDED, WITHIN, Drop, look, looks_at
from autotune.process.child import ChildFailure

FEWEST_SAMPLES = 100
"""With fewer samples than this the comparison of the search is all that they can show."""

# Samples whose outputs are in memory at once; looks are multiples of it, but for the last one.
_CHUNK = 64
_WORST = 3


@dataclass(frozen=True, kw_only=True)
class WorstSample:
    """A sample on which a configuration is among the furthest from the unoptimised model.

    Attributes:
        number: Its place in the user's data, from 0.
        error: Relative L2 error of its worst output.
        metric: Its metric; None without one.
        reference_metric: The same by the unoptimised model.
    """

    number: Whole
    error: Amount
    metric: float | None
    reference_metric: float | None


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What all samples, or as many as were needed, show of a configuration.

    Attributes:
        decision: ``within`` the limits, ``beyond`` one, or ``undecided``: too few samples, or too
            little time, to tell.
        available: How many there are; 0 where they are few, or generated.
        error: The largest error of 64 samples, as :mod:`autotune.measure.answers` defines it.
        metric: The mean metric of the samples; None without a metric.
        reference_metric: The same by the unoptimised model.
        drop: By how much it fell, with the bounds of the sequential test.
        worst: The samples on which it is furthest off.
        companions: How far its answers depend on other samples of a batch, and on padding; empty
            where it cannot be called in these ways.
        reason: Why it was judged on no more samples; empty where that was not needed.
        admitted: Whether it may be written: within the limits, or by its numbers where undecided.
    """

    trial: Whole
    words: Text
    decision: Text
    samples: Whole
    available: Whole
    error: Amount
    metric: float | None
    reference_metric: float | None
    drop: Drop | None
    worst: tuple[WorstSample, ...]
    companions: tuple[Companions, ...]
    reason: Text
    admitted: bool


@dataclass(frozen=True, kw_only=True)
class JudgedConfiguration:
    """A configuration that is judged."""

    trial: int
    words: str
    path: Path
    config: SessionConfig
    batch: int = 1
    site: Path | None = None


@dataclass(kw_only=True)
class _Seen:
    """What was seen of a subject so far; see :class:`Judgement`."""

    decision: str = UNDECIDED
    drop: Drop | None = None
    reason: str = ""
    error: float = 0.0
    samples: list[WorstSample] = field(default_factory=list)
    companions: list[Companions] = field(default_factory=list)
    origins: Origins | None = None


@dataclass(frozen=True, kw_only=True)
class AllSamples:
    """Judges configurations of one model on all samples of a workload.

    Attributes:
        metric: The metric; None without one. It is called with each sample alone, and its value is
            the mean over the samples.
        max_drop: By how much it may fall; None without a metric.
        inputs: Names of the inputs that are stacked to batches.
        cases: The ways to call the model that are compared, samples alone first.
        limit_s: How long a judgement may take; its first look is taken in any case.
        fewest: With fewer samples than this none is judged.
    """

    model: Model
    workload: Workload
    metric: Metric | None
    max_drop: float | None
    max_error: float
    inputs: Sequence[str] = ()
    cases: Sequence[Case] = ()
    limit_s: float
    clock_s: Callable[[], float] = field(default=time.monotonic)
    seed: int = 0
    fewest: int = FEWEST_SAMPLES

    def judge(
        self, subject: JudgedConfiguration, on_step: Callable[[int, int], None] = lambda *_: None
    ) -> Judgement:
        """Returns what the samples show of a subject.

        Args:
            on_step: Called with how many samples were judged, and with all of them.
        """
        seen = _Seen()
        first = replace(self.workload, feeds=self.workload.feeds[:1])  # nothing is timed
        try:
            with (
                child_session(self.model.path, UNOPTIMISED, first) as exact,
                child_session(subject.path, subject.config, first, subject.site) as session,
            ):
                self._call(seen, exact, session)
                if seen.decision != BEYOND:
                    self._run_all(seen, exact, session, subject.batch, on_step)
        except (ChildFailure, OutputMismatchError) as fault:
            seen.decision, seen.reason = BEYOND, f"it fails on one of the samples: {fault}"
        except RequestError as fault:  # a metric that makes no sense of a single sample
            seen.reason = str(fault)
        drop = seen.drop
        keeps = drop is None or drop.value <= (self.max_drop or 0.0)
        return Judgement(
            trial=subject.trial,
            words=subject.words,
            decision=seen.decision,
            samples=len(seen.samples),
            available=len(self._order()),
            error=seen.error,
            metric=_mean([sample.metric for sample in seen.samples]),
            reference_metric=_mean([sample.reference_metric for sample in seen.samples]),
            drop=drop,
            worst=tuple(sorted(seen.samples, key=_goodness)[:_WORST]),
            companions=tuple(seen.companions),
            reason=seen.reason,
            admitted=seen.decision == WITHIN or (seen.decision == UNDECIDED and keeps),
        )

    def _call(self, seen: "_Seen", exact: ChildSession, session: ChildSession) -> None:
        """Compares the answers in each way to call the model."""
        if len(self.cases) < 2:
            return
        seen.companions = compare_companions(exact, session, self.cases)
        if any(item.limited > self.max_error for item in seen.companions):
            seen.decision, seen.reason = BEYOND, "its answers depend on what else is in a run"

    def _run_all(
        self,
        seen: "_Seen",
        exact: ChildSession,
        session: ChildSession,
        batch: int,
        on_step: Callable[[int, int], None],
    ) -> None:
        """Judges samples until the decision is clear, all were judged, or the time is over."""
        order, began_s = self._order(), self.clock_s()
        if not order:
            seen.decision = WITHIN
            return
        for size in looks_at(len(order)):
            spent_s = self.clock_s() - began_s
            if seen.samples and spent_s / len(seen.samples) * size > self.limit_s:
                seen.reason = "more samples would take too long"
                return
            while len(seen.samples) < size:
                done = len(seen.samples)
                end = min(done + _CHUNK, size)
                # the error is that of so many samples, so the last few go with some before them
                numbers = order[max(0, end - _CHUNK) : end]
                references = self._outputs(exact, numbers, 1)
                if seen.origins is None:
                    seen.origins = exact.origins(self.model.path, references)
                outputs = self._outputs(session, numbers, batch)
                fidelity = compare(references, outputs, seen.origins)
                if not math.isfinite(fidelity.error):
                    raise OutputMismatchError("an output is too far off for a finite error")
                seen.error = max(seen.error, fidelity.error)
                judged = self._samples(numbers, references, outputs, fidelity)
                seen.samples += itertools.islice(judged, len(numbers) - (end - done), None)
                on_step(len(seen.samples), len(order))
            seen.decision, seen.drop = self._look(seen.samples, len(order), seen.error)
            if seen.decision != UNDECIDED:
                return

    def _look(
        self, judged: Sequence[WorstSample], available: int, error: float
    ) -> tuple[str, Drop | None]:
        """Returns what the samples so far show of the limits."""
        is_all = len(judged) == available
        decision, drop = WITHIN if is_all else UNDECIDED, None
        if self.metric is not None and self.max_drop is not None:
            differences = [-_loss(sample) for sample in judged]
            decision, drop = look(differences, available, self.max_drop)
        return (decision if error <= self.max_error else BEYOND), drop

    def _order(self) -> list[int]:
        """Returns the samples' numbers at random, those that calibrated nothing first.

        There are none where the samples are few, or generated.
        """
        if self.workload.source != "user" or len(self.workload.feeds) < self.fewest:
            return []
        seen = {id(feed) for feed in self.workload.calibration}
        feeds = self.workload.feeds
        drawn = np.random.default_rng(self.seed).permutation(len(feeds)).tolist()
        return sorted(drawn, key=lambda number: id(feeds[number]) in seen)

    def _outputs(
        self, session: ChildSession, numbers: Sequence[int], batch: int
    ) -> Sequence[Outputs]:
        """Returns the outputs of these samples, which are run in batches."""
        feeds = [self.workload.feeds[number] for number in numbers]
        outputs = session.outputs(stack(feeds, self.inputs, batch), batch)
        return outputs if batch == 1 else samples_of(outputs, batch, len(feeds))

    def _samples(
        self,
        numbers: Sequence[int],
        references: Sequence[Outputs],
        outputs: Sequence[Outputs],
        fidelity: Fidelity,
    ) -> Iterator[WorstSample]:
        """Yields each sample with its error and its metric."""
        for i, number in enumerate(numbers):
            feed = dict(self.workload.feeds[number])
            if self.workload.labels:
                feed[LABELS] = self.workload.labels[number]
            values: list[float | None] = [None, None]
            if self.metric is not None:
                right = [references[i]]
                values = [self.metric([one], right, [feed]) for one in (outputs[i], references[i])]
            yield WorstSample(
                number=number,
                error=max((errors[i] or 0.0 for errors in fidelity.errors.values()), default=0.0),
                metric=values[0],
                reference_metric=values[1],
            )


def _loss(sample: WorstSample) -> float:
    return (sample.reference_metric or 0.0) - (sample.metric or 0.0)


def _goodness(sample: WorstSample) -> tuple[float, float]:
    return -_loss(sample), -sample.error


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
