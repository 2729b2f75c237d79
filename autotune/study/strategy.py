"""The strategy of a study: what is measured first, and the model that proposes the rest."""

from collections.abc import Sequence

from autotune.deploy.options import BATCH, RUNTIME
from autotune.search.context import Context
from autotune.search.planner import Planner
from autotune.search.proposer import Proposer
from autotune.search.transfer import RelatedStudy, prior, starting_points
from autotune.space.start import alone, provider_forms, providers_alone
from autotune.study.options import StudyOptions


def strategy_of(
    ctx: Context, options: StudyOptions, related: Sequence[RelatedStudy], trials_so_far: int
) -> Planner:
    """Returns what decides which configuration of a study is measured next.

    The user's configurations come right after the default, then each execution provider and batch
    size with default options, each provider in each of its precisions, and the fronts of related
    studies.

    Args:
        related: Studies of the same model on other machines, or of another space.
    """
    space, cores = ctx.space, ctx.environment.cores
    singles = [*alone(space, RUNTIME), *providers_alone(space), *alone(space, BATCH)]
    begin_with = starting_points(related, space, cores, ctx.limits, ctx.objectives)
    return Planner(
        space=space,
        objectives=ctx.objectives,
        limits=ctx.limits,
        # with the same seed, a study that goes on would repeat its random draws
        proposer=Proposer(
            space,
            [objective.name for objective in ctx.objectives],
            ctx.limits.bounds,
            ctx.seed + trials_so_far,
            prior(related, space, cores, ctx.objectives),
        ),
        first=[*ctx.first, *singles, *provider_forms(space), *begin_with],
        early_stop=options.early_stop,
    )
