"""The result that an earlier run of a study left in its folder."""

from autotune.results.result import StudyResult
from autotune.results.summary import plain_limits
from autotune.results.writing import agrees, with_model_at
from autotune.search.context import Context
from autotune.search.record import Record
from autotune.study.options import StudyOptions


def earlier_result(
    ctx: Context, options: StudyOptions, record: Record
) -> tuple[StudyResult, str] | None:
    """Returns the result in the folder with a note, if nothing is left to do; else None."""
    measured = len(record.trials)
    earlier = written(ctx)
    if earlier is None:
        return None
    earlier = with_model_at(earlier, ctx.model.path.absolute())
    same = (earlier.simplification is None or earlier.simplification.complete) and is_of(
        earlier, ctx, measured
    )
    if same and measured >= options.trials:
        note = f"All {measured} trials are measured already; --trials {2 * measured} goes on."
        return earlier, note
    if same and earlier.ended and options.early_stop and _has_tried_all(ctx, record):
        return earlier, f"The search has ended: {earlier.ended}; --set early_stop=no goes on."
    return None


def _has_tried_all(ctx: Context, record: Record) -> bool:
    """Returns whether the user's configurations were measured, and each runtime in some one."""
    known = {*record.measured, *record.equal}
    runtimes = {configuration.runtime for configuration in known}
    return known.issuperset(ctx.first) and runtimes.issuperset(ctx.runtimes)


def written(ctx: Context) -> StudyResult | None:
    """Returns the confirmed result of the study in its folder, if all of its files are there."""
    result = StudyResult.found_in(ctx.folder)
    if result is None:
        return None
    is_whole = result.complete and agrees(result)
    return result if is_whole and result.study == ctx.study else None


def is_of(result: StudyResult, ctx: Context, measured: int) -> bool:
    """Returns whether a result is by all trials and the same wishes."""
    mine = (measured, ctx.prefer, plain_limits(ctx.limits))
    return (result.trials, result.prefer, result.limits) == mine and result.is_decided
