"""The measurer of a study, on the study's scale: the latency of the default that it began with."""

import optuna

from autotune.deploy.records import Positive, read
from autotune.errors import FormatError, RequestError, StudyError
from autotune.graph.prepare import Preparer
from autotune.measure.outcome import Measurer
from autotune.results.writing import CACHE
from autotune.search.context import Context
from autotune.study.seams import Seams

_SCALE = "reference_ms"
# Machines of one kind differ by less, unless one of them is busy.
_SAME_SPEED = 1.3
_LAST_WORD_S = 1.0
_LONGEST_TRIAL_S = 300.0


def preparer_of(ctx: Context) -> Preparer:
    """Returns what makes the model files of a study's configurations, in the study's folder."""
    return Preparer(
        ctx.model,
        ctx.folder / CACHE,
        workload=ctx.workload,
        signature=ctx.workload.signature(),
    )


def open_measurer(
    ctx: Context, study: optuna.Study, preparer: Preparer, seams: Seams, *, is_shared: bool
) -> Measurer:
    """Returns the measurer of a study; workers that share the study agree on its scale.

    Raises:
        StudyError: this machine is not as fast as the study's, so that its numbers would not be
            comparable.
        RequestError: an objective or a limit would take minutes for each trial of this model.
        CannotMeasureError: the default fails.
    """
    known_ms = _scale_ms(study)
    measurer = seams.measurer(ctx, preparer, None if is_shared else known_ms)
    try:
        _check_cost(ctx, measurer.reference_ms)
        if known_ms is None:
            study.set_user_attr(_SCALE, measurer.reference_ms)
        if is_shared:
            if known_ms is None:
                # of workers that begin at once, the last one to write decides for all
                seams.clock.sleep(_LAST_WORD_S)
                known_ms = _scale_ms(study)
            assert known_ms is not None
            _check_speed(ctx, measurer.reference_ms, known_ms)
            measurer.rescale(known_ms)
    except BaseException:
        measurer.close()
        raise
    return measurer


def _scale_ms(study: optuna.Study) -> float | None:
    """Returns the latency of the default that the study's ratios are multiplied with."""
    try:
        scale_ms: float = read(Positive, study.user_attrs.get(_SCALE), "")
    except FormatError:
        return None
    return scale_ms


def _check_speed(ctx: Context, here_ms: float, there_ms: float) -> None:
    """Refuses a machine that is not as fast as those of the study, by its own default."""
    if not 1 / _SAME_SPEED < here_ms / there_ms < _SAME_SPEED:
        raise StudyError(
            f"this machine runs the default in {here_ms:.3g} ms, and those of the study "
            f"{ctx.study} in {there_ms:.3g} ms, though they should be of one kind. "
            "Is it busy, or throttled? `autotune hardware` says. Type the same command again "
            "when it is quiet, or give it a study of its own in another --storage"
        )


def _check_cost(ctx: Context, reference_ms: float) -> None:
    """Refuses an objective or a limit that takes minutes for each trial of this model."""
    asked = [(f"--objective {o.name}", o.fewest_runs) for o in ctx.objectives]
    asked.append(("--max-latency on the 99th percentile", ctx.limits.fewest_runs))
    batching = ctx.batching
    largest = 1.0 if batching is None else batching.sizes[-1] / batching.smallest
    for option, fewest_runs in asked:
        # where shapes differ, a timed run has a sample of each
        samples = 1 if ctx.workload.one_shape else len(ctx.workload.timing)
        run_ms = samples * largest * reference_ms / ctx.clients
        # configuration and reference take turns, and each time slice has a cold run
        cost_s = fewest_runs * run_ms * 4 / 1e3
        if cost_s > _LONGEST_TRIAL_S:
            raise RequestError(
                f"{option} needs {fewest_runs} runs; at {run_ms:.3g} ms each a trial would "
                f"take {cost_s / 60:.0f} min. Leave it out: latency_ms is known from far fewer"
            )
