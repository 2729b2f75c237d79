"""The one place where a search is put together: proposer, plan, sampler, record and loop."""

from collections.abc import Sequence
from typing import Any

import optuna

from autotune.measure.outcome import Measurer
from autotune.search.objective import Objective
from autotune.search.planner import Planner
from autotune.search.portfolio import DEFAULT_SAMPLER
from autotune.search.proposer import Prior, Proposer
from autotune.search.trial import Limits
from autotune.space.candidate import Candidate
from autotune.space.space import Space
from autotune.storage.trials import Record
from autotune.study.loop import Search, counts_within
from autotune.study.progress import OnProgress
from autotune.study.sampler import make_sampler


def build_search(
    measurer: Measurer,
    space: Space,
    *,
    study: optuna.Study,
    objectives: Sequence[Objective],
    limits: Limits,
    sampler: str = DEFAULT_SAMPLER,
    seed: int = 0,
    first: Sequence[Candidate] = (),
    prior: Prior | None = None,
    early_stop: bool = True,
    record: Record | None = None,
    report: OnProgress = lambda _: None,
    **options: Any,
) -> Search:
    """Returns a search that can be run.

    Args:
        measurer: Measures candidates.
        space: The search space.
        study: Optuna's study.
        objectives: The objectives.
        limits: The limits.
        sampler: Name of the sampler.
        seed: Random seed.
        first: Candidates that are measured right after the default.
        prior: The expected values of an earlier study; only the sampler ``effects`` uses them.
        early_stop: Whether the search ends when nothing more is to be expected.
        record: The trials of the study; those of `study` for this worker alone if None.
        report: Called before each trial.
        options: Other arguments of :class:`Search`.
    """
    so_far = len(study.get_trials(deepcopy=False))
    proposer = None
    if sampler == DEFAULT_SAMPLER:
        tolerances = {objective.name: objective.tolerance for objective in objectives}
        proposer = Proposer(space, tolerances, limits.bounds, seed + so_far, prior)
    planner = Planner(
        space=space,
        objectives=objectives,
        limits=limits,
        first=first,
        proposer=proposer,
        early_stop=early_stop,
    )
    return Search(
        study=study,
        sampler=make_sampler(sampler, planner, seed, so_far),
        space=space,
        objectives=objectives,
        limits=limits,
        measurer=measurer,
        record=record or Record(study, counts=lambda trial: counts_within(limits, trial)),
        report=report,
        **options,
    )
