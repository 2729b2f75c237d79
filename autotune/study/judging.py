"""The selected configuration is judged before it is written; see `autotune.measure.judging`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.companions import Case, cases_of
from autotune.measure.judging import FEWEST_SAMPLES, AllSamples, JudgedConfiguration, Judgement
from autotune.measure.sequential import UNDECIDED
from autotune.results.final_comparison import Finalist
from autotune.runtimes.environments import site_of
from autotune.search.context import Context
from autotune.space.configuration import BASELINE
from autotune.space.session import session_config
from autotune.study.progress import OnProgress, Progress

Judge = Callable[[Finalist], Judgement | None]
"""Judges a finalist on all samples; None where the search has compared what they can show."""

# Of the time before, so that all judgements take a fifth of the whole.
_SHARE = 1 / 4


@dataclass
class JudgeOnAllSamples:
    """Judges the finalists of a study."""

    ctx: Context
    preparer: Preparer
    report: OnProgress
    clock_s: Callable[[], float]
    began_s: float
    _spent_s: float = field(default=0.0, init=False)

    def __call__(self, finalist: Finalist) -> Judgement | None:
        """Returns the judgement; None where there is nothing to compare beyond the search."""
        ctx, workload, batching = self.ctx, self.ctx.workload, self.ctx.batching
        configuration = finalist.trial.configuration
        try:
            path = self.preparer.prepare(configuration.graph.to_json()).path
        except PreparationError as error:
            return _not_made_again(finalist, error.message)
        batch = configuration.batch(1 if batching is None else batching.smallest)
        sizes = workload.dimensions(ctx.model)
        subject = JudgedConfiguration(
            trial=finalist.trial.number,
            words=configuration.in_words(),
            path=path,
            config=session_config(
                configuration.session.to_json(),
                sizes if batching is None else batching.dimensions(sizes, batch),
                ctx.model.breaking,
            ),
            batch=batch,
            site=site_of(configuration.runtime),
        )
        cases: Sequence[Case] = ()
        fixed = subject.config.free_dimensions
        # in the untouched model nothing depends on what else is in a run
        has_one_shape = fixed and batch > 1
        if configuration.graph != BASELINE and not has_one_shape:
            cases = cases_of(ctx.model, workload, fixed, batch if batch > 1 else None)
        has_all = workload.source == "user" and len(workload.feeds) >= FEWEST_SAMPLES
        if len(cases) < 2 and not has_all:
            return None
        now_s = self.clock_s()
        others_s = now_s - self.began_s - self._spent_s
        samples = AllSamples(
            model=ctx.model,
            workload=workload,
            metric=ctx.metric,
            max_drop=ctx.limits.max_drop,
            max_error=ctx.limits.max_error,
            inputs=() if batching is None else batching.inputs,
            cases=cases,
            limit_s=_SHARE * others_s - self._spent_s,
            clock_s=self.clock_s,
            seed=ctx.seed,
        )
        judgement = samples.judge(subject, self._on_step)
        self._spent_s += self.clock_s() - now_s
        return judgement

    def _on_step(self, done: int, total: int) -> None:
        self.report(Progress(stage="samples", done=done, total=total))


def _not_made_again(finalist: Finalist, message: str) -> Judgement:
    """Returns the judgement of a configuration whose file is gone and could not be made once more.

    What is kept in float for its time depends on times, which are others at another moment.
    """
    return Judgement(
        trial=finalist.trial.number,
        words=finalist.trial.configuration.in_words(),
        decision=UNDECIDED,
        samples=0,
        available=0,
        error=0.0,
        metric=None,
        reference_metric=None,
        drop=None,
        worst=(),
        companions=(),
        reason=f"its model cannot be made again: {message}",
        admitted=False,
    )
