"""Trials of a study measured once more, side by side with the default."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import optuna

from autotune.deploy.config import SHARED, Serving
from autotune.errors import CannotMeasureError, StudyError
from autotune.facts.batches import Batching
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.results.compare import Comparison, MakeMeasurer, compare
from autotune.results.final_comparison import OnStep
from autotune.results.result import StudyResult
from autotune.results.subjects import Lineup, Subject, default_of
from autotune.results.writing import CACHE
from autotune.runtimes.environments import site_of
from autotune.search.optuna_trials import read_trials
from autotune.search.trial import Trial
from autotune.space.session import SESSIONS, session_config
from autotune.storage.database import open_storage, quiet_optuna
from autotune.storage.locks import exclusive_use
from autotune.study.options import StudyOptions
from autotune.study.resume import check_paths, choose, entries, place_of


def measure_again(
    folder: Path,
    numbers: Sequence[int],
    *,
    source: Path | None,
    data: Path | None,
    max_error: float | None,
    clients: int | None = None,
    on_step: OnStep,
    make_measurer: MakeMeasurer = DuetMeasurer,
) -> Comparison:
    """Returns how trials of the study in a folder compare with the default, here and now.

    Args:
        source: Where the model of the study is now; where it was if None.
        data: Where the inputs of the study are now; where they were if None.
        max_error: Largest fidelity error; that of the study if None.
        clients: How many clients call at once, in a closed loop; if None, as many as in the study.

    Raises:
        StudyError: there is no study, or no such trial, or the model or the inputs are others.
        CannotMeasureError: the model of a trial cannot be made, or the default fails here.
    """
    with exclusive_use(folder):
        lineup, workload = _lineup(folder, numbers, source, data)
        return compare(
            lineup,
            workload,
            max_error=max_error,
            clients=clients,
            on_step=on_step,
            make_measurer=make_measurer,
        )


def _lineup(
    folder: Path, numbers: Sequence[int], source: Path | None, data: Path | None
) -> tuple[Lineup, Workload]:
    """Returns the trials beside the default, and the inputs of the study."""
    place, _ = place_of(str(folder))
    shown = StudyResult.found_in(folder)
    entry = choose(entries(place), shown.study if shown else None, place)
    if entry.options is None:
        raise StudyError(f"the options of the study in {folder} cannot be read")
    given = {"model": source, "data": data}
    options = entry.options.with_changes(**{n: path for n, path in given.items() if path})
    check_paths(options)
    with quiet_optuna(), open_storage(place) as database:
        study = optuna.load_study(study_name=entry.name, storage=database)
        attributes, trials = study.user_attrs, {t.number: t for t in read_trials(study)}
    model = describe(options.model, options.pairs)
    if model.sha256 != attributes.get("model_sha256"):
        raise StudyError(f"{options.model} is not the model of the study in {folder}")
    options, model, workload = options.for_model(model)
    if workload.signature() != attributes.get("workload"):
        raise StudyError(
            f"the inputs are not those of the study in {folder}; another version of autotune may "
            "generate others: run the study again"
        )
    for number in numbers:
        if number not in trials:
            last = max(trials, default=0)
            raise StudyError(f"the study in {folder} has no trial {number}; its last one is {last}")
    preparer = Preparer(model, folder / CACHE, workload=workload, signature=workload.signature())
    batching = Batching.of(model, workload, options.batch) if options.batch else None
    subject = partial(_subject, options, model, preparer, workload.dimensions(model), batching)
    lineup = Lineup(
        subjects=tuple(subject(trials[number]) for number in numbers),
        baseline=default_of(model),
        model=model,
        untouched=True,
    )
    return lineup, workload


def _subject(
    options: StudyOptions,
    model: Model,
    preparer: Preparer,
    dimensions: Mapping[str, int],
    batching: Batching | None,
    trial: Trial,
) -> Subject:
    """Returns a trial of the study as the file that its configuration opens."""
    configuration = trial.configuration
    try:
        prepared = preparer.prepare(configuration.graph.to_json())
    except PreparationError as error:
        raise CannotMeasureError(
            f"the model of trial {trial.number} cannot be made: {error.message}"
        ) from None
    batch = smallest = None
    if batching is not None:
        smallest = batching.smallest
        batch = configuration.batch(smallest)
        dimensions = batching.dimensions(dimensions, batch)
    return Subject(
        name=f"trial {trial.number}",
        model=prepared.path,
        session=session_config(configuration.session.to_json(), dimensions, model.breaking),
        serving=Serving(
            clients=options.clients or 1,
            sessions=str(configuration.to_json().get(SESSIONS, SHARED)),
            batch=batch,
            baseline_batch=smallest,
        ),
        max_error=options.limits.max_error,
        site=site_of(configuration.runtime),
    )
