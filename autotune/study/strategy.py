"""The strategy of a study: what is measured first, and the sampler that proposes the rest."""

from collections.abc import Sequence

from autotune.deploy.options import BATCH, RUNTIME
from autotune.search.context import Context
from autotune.search.sampler import EffectsSampler
from autotune.search.samplers import make_sampler
from autotune.search.start import portfolio
from autotune.search.transfer import RelatedStudy, prior, starting_points
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.start import alone, provider_forms, providers_alone
from autotune.storage.database import Clock
from autotune.study.loop import Search
from autotune.study.measured_trial import MeasuredTrial
from autotune.study.options import StudyOptions


def start_of(ctx: Context, related: Sequence[RelatedStudy]) -> list[Configuration]:
    """Returns what is measured before the sampler is asked.

    The user's configurations come right after the default, then each execution provider and batch
    size with default options, each provider in each of its precisions, the fronts of related
    studies, and the settings that experts try first.

    Args:
        related: Studies of the same model on other machines, or of another space.
    """
    space, cores = ctx.space, ctx.environment.cores
    singles = [*alone(space, RUNTIME), *providers_alone(space), *alone(space, BATCH)]
    begin_with = starting_points(related, space, cores, ctx.limits, ctx.objectives)
    wanted = [*ctx.first, *singles, *provider_forms(space), *begin_with, *portfolio(space)]
    return [BASELINE, *wanted]


def search_of(
    objective: MeasuredTrial, options: StudyOptions, related: Sequence[RelatedStudy], clock: Clock
) -> Search:
    """Returns the search of a study, with its sampler.

    Args:
        related: Studies of the same model on other machines, or of another space.
    """
    ctx = objective.ctx
    search = Search(objective.study, objective, start_of(ctx, related), clock)
    # with the same seed, a study that goes on would repeat its random draws
    seed = ctx.seed + len(objective.study.get_trials(deepcopy=False))
    if objective.worker:  # and workers that begin at once would draw the same
        seed += int(objective.worker, 16)
    if options.sampler is not None:
        search.study.sampler = make_sampler(options.sampler, seed)
        return search
    search.study.sampler = search.effects = EffectsSampler(
        ctx.space,
        ctx.objectives,
        ctx.limits,
        objective.record,
        seed=seed,
        prior=prior(related, ctx.space, ctx.environment.cores, ctx.objectives),
        names=objective.names,
        budget=options.trials,
        early_stop=options.early_stop,
    )
    return search
