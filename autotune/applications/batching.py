"""Which sizes and tokens a batch suit a model's traffic: measured with the config that was chosen.

:meth:`Batches.for_longest` is a rule of thumb. Coarser and finer sizes, then fewer and more tokens,
run beside it in fresh processes, in turns, as plain loops over the batches.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from autotune.applications.replay import CHILD, Opening, open_sessions, replay
from autotune.applications.schedule import ScheduledCall
from autotune.deploy.batcher import Batcher, Batches, Sample
from autotune.deploy.config import Interval
from autotune.facts.feeds import save_samples
from autotune.measure.statistics import mean_log_interval
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.results.score import factor_of, is_gain

# How many requests a replay has, and how often each way is replayed.
_SAMPLES = 132
_TURNS = 6
_RATIOS = (2**0.125, 2**0.5, 2.0)
_OF_LONGEST = (1.0, 4.0)
_COMPARISONS = len(_RATIOS) + len(_OF_LONGEST) + 1
_LIMIT_S = 600.0
# A replay that takes longer would make the search take many minutes.
_LONGEST_S = 4.0


@dataclass(frozen=True, kw_only=True)
class Beside:
    """Batches beside others.

    Attributes:
        ratio: Time over that of the others.
        held_mib: The most that the session held at the end.
        other_mib: The same of the others.
    """

    ratio: Interval
    held_mib: float
    other_mib: float


Measure = Callable[[Batches, Batches], Beside]
"""Measures batches beside others, in fresh processes."""


@dataclass(frozen=True)
class BatchMeasurer:
    """Measures batches of a traffic with one session.

    Attributes:
        opening: The session.
        samples: A sample of each request, without the dimension of the batch.
        turns: How many replays each has.
    """

    opening: Opening
    samples: Sequence[Sample]
    turns: int = _TURNS

    def __call__(self, batches: Batches, other: Batches) -> Beside:
        """Returns how batches compare with others.

        Raises:
            ChildFailure: one of them cannot be run.
        """
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch.root())))
            mine, its = (
                self._start(stack, own, folder / f"{number}.npz")
                for number, own in enumerate((batches, other))
            )
            pairs = [(replay(mine, _LIMIT_S), replay(its, _LIMIT_S)) for _ in range(self.turns)]
        return Beside(
            ratio=mean_log_interval([own.seconds / that.seconds for own, that in pairs]),
            held_mib=max(own.held_mib for own, _ in pairs),
            other_mib=max(that.held_mib for _, that in pairs),
        )

    def seconds(self, batches: Batches) -> float:
        """Returns the time of one replay.

        Raises:
            ChildFailure: they cannot be run.
        """
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch.root())))
            return replay(self._start(stack, batches, folder / "feeds.npz"), _LIMIT_S).seconds

    def _start(self, stack: ExitStack, batches: Batches, file: Path) -> Child:
        """Returns a child that has run all batches once."""
        samples = list(islice(cycle(self.samples), max(_SAMPLES, len(self.samples))))
        feeds = [feed for _, feed in Batcher(batches).batches(samples)]
        save_samples(feeds, file)
        calls = [
            ScheduledCall(session=0, feed=number, thread=0, after=-1, work_s=0.0, pause_s=0.0)
            for number in range(len(feeds))
        ]
        child = stack.enter_context(Child(CHILD, memory_limit()))
        open_sessions(child, [self.opening], calls, file, blocks_per_s=1.0)
        replay(child, _LIMIT_S)
        return child


def best_batches(
    rule: Batches,
    measure: Measure,
    on_step: Callable[[int, int], None],
    most_held_mib: float | None = None,
    *,
    is_lean: bool = False,
) -> tuple[Batches, Beside | None]:
    """Returns the batches that are faster than the rule's beyond the noise, and by how much.

    Sizes are chosen first, then tokens with these sizes. The best of all is measured once more
    beside the rule's: a lucky one is not kept.

    Args:
        rule: Batches by the rule of thumb.
        measure: Measures batches beside others.
        on_step: Called with the comparisons that are done, and with their number.
        most_held_mib: The most memory that the session may hold at the end.
        is_lean: Whether it may hold no more than with the rule's.
    """
    best, best_ratio = rule, 1.0
    done = 0

    def is_better(beside: Beside) -> bool:
        nonlocal done
        done += 1
        on_step(done, _COMPARISONS)
        is_within = most_held_mib is None or beside.held_mib <= most_held_mib
        return (
            is_gain(factor_of(beside.ratio))
            and is_within
            and not (is_lean and beside.held_mib > beside.other_mib)
        )

    def offer(other: Batches) -> None:
        nonlocal best, best_ratio
        if other in (best, rule):
            return
        beside = measure(other, rule)
        if is_better(beside) and beside.ratio.value < best_ratio:
            best, best_ratio = other, beside.ratio.value

    longest = rule.sizes[-1]
    for ratio in _RATIOS:
        offer(Batches.for_longest(rule.axes, longest, ratio=ratio))
    sizes = best.sizes
    for factor in _OF_LONGEST:
        offer(Batches(axes=rule.axes, sizes=sizes, tokens=round(factor * longest)))
    if best == rule:
        return rule, None
    again = measure(best, rule)
    return (best, again) if is_better(again) else (rule, None)


def search_batches(
    rule: Batches,
    measurer: BatchMeasurer,
    on_step: Callable[[int, int], None],
    most_held_mib: float | None,
    *,
    is_lean: bool,
) -> tuple[Batches, str]:
    """Returns the batches to write, and a sentence about them."""
    try:
        seconds = measurer.seconds(rule)
        if seconds > _LONGEST_S:
            return rule, (
                f"Batches are those of the rule of thumb: {_SAMPLES} inputs take {seconds:.0f} s, "
                "so others were not tried."
            )
        best, beside = best_batches(rule, measurer, on_step, most_held_mib, is_lean=is_lean)
    except ChildFailure as failure:
        return rule, (
            f"Batches are those of the rule of thumb: they cannot be measured ({failure.message})."
        )
    words = f"{len(best.sizes)} sizes, {best.tokens:,} tokens a batch"
    if beside is None:
        return rule, f"Batches are those of the rule of thumb ({words}): no other ones were better."
    ratio = beside.ratio
    return best, (
        f"Batches: {words}; {ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f}) of the time "
        f"of those by the rule of thumb, {beside.held_mib:.0f} MiB held instead of "
        f"{beside.other_mib:.0f}."
    )
