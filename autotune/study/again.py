"""Trials of a study measured once more, side by side with the default."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from autotune.deploy.records import from_plain
from autotune.deploy.serving import SHARED
from autotune.errors import CannotMeasureError, FormatError, RequestError, StudyError
from autotune.facts.batches import Batching
from autotune.facts.model import Model, describe
from autotune.facts.workload import Workload, workload_for
from autotune.graph.prepare import PreparationError, Preparer
from autotune.results.compare import (
    Comparisons,
    MakeMeasurer,
    compare_subjects,
    duet_measurer,
)
from autotune.results.emit import CACHE
from autotune.results.run_off import OnStep
from autotune.results.subjects import Contest, Subject, default_of
from autotune.search.trial import Trial
from autotune.space.session import SESSIONS, session_config
from autotune.storage.database import open_storage, quiet_optuna
from autotune.storage.identity import BATCHING
from autotune.storage.locks import exclusive_use
from autotune.storage.trials import read_trials
from autotune.study.resume import choose, entries, place_of


@dataclass(frozen=True, kw_only=True)
class _Study:
    """What a study worked on, and its trials by number."""

    model: Model
    workload: Workload
    trials: dict[int, Trial]
    batching: Batching | None
    clients: int


def measure_again(
    folder: Path,
    numbers: Sequence[int],
    *,
    source: Path | None,
    data: Path | None,
    max_error: float,
    clients: int | None = None,
    on_step: OnStep,
    make_measurer: MakeMeasurer = duet_measurer,
) -> Comparisons:
    """Returns how trials of the study in a folder compare with the default, here and now.

    Args:
        folder: The study's folder.
        numbers: Numbers of trials, failed ones too.
        source: Where the model of the study is now; where it was if None.
        data: Where the inputs of the study are now; where they were if None.
        max_error: Largest fidelity error.
        clients: How many clients call at once, in a closed loop; if None, as many as in the study.
        on_step: Called after each measurement.
        make_measurer: Makes the measurer.

    Raises:
        StudyError: there is no study, or no such trial, or the model or the inputs are others.
        CannotMeasureError: the model of a trial cannot be made, or the default fails here.
    """
    with exclusive_use(folder):
        study = _read(folder, source, data)
        contest = Contest(
            subjects=tuple(_subject(study, number, folder) for number in numbers),
            baseline=default_of(study.model),
            model=study.model,
            untouched=True,
        )
        return compare_subjects(
            contest,
            study.workload,
            max_error=max_error,
            clients=clients,
            on_step=on_step,
            make_measurer=make_measurer,
        )


def _read(folder: Path, source: Path | None, data: Path | None) -> _Study:
    place, _ = place_of(str(folder))
    entry = choose(entries(place), None, place)
    if entry.options is None:
        raise StudyError(f"the options of the study in {folder} cannot be read")
    options = entry.options
    with quiet_optuna(), open_storage(place) as database:
        study = optuna.load_study(study_name=entry.name, storage=database)
        attributes, trials = study.user_attrs, read_trials(study)
    path = source or options.model
    if not path.is_file():
        raise RequestError(f"{path} is not here; say where it is with --model PATH")
    model = describe(path)
    if model.sha256 != attributes.get("model_sha256"):
        raise StudyError(f"{path} is not the model of the study in {folder}")
    given = data or options.data
    if given is not None and not given.exists():
        raise RequestError(f"{given} is not here; say where it is with --data PATH")
    workload = workload_for(model, given, options.shapes, options.seed)
    if workload.signature() != attributes.get("workload"):
        raise StudyError(f"the inputs are not those of the study in {folder}")
    return _Study(
        model=model,
        workload=workload,
        trials={trial.number: trial for trial in trials},
        batching=_batching(attributes.get(BATCHING), folder),
        clients=options.clients or 1,
    )


def _batching(data: object, folder: Path) -> Batching | None:
    """Returns the batch sizes that a storage kept, which may come from a stranger."""
    if data is None:
        return None
    try:
        return from_plain(Batching, data)
    except FormatError as error:
        raise StudyError(f"the study in {folder} has damaged batch sizes: {error}") from None


def _subject(study: _Study, number: int, folder: Path) -> Subject:
    """Returns a trial of the study as the file that its candidate opens."""
    if number not in study.trials:
        last = max(study.trials, default=0)
        raise StudyError(f"the study in {folder} has no trial {number}; its last one is {last}")
    candidate = study.trials[number].candidate
    preparer = Preparer(
        study.model,
        folder / CACHE,
        workload=study.workload,
        signature=study.workload.signature(),
    )
    try:
        prepared = preparer.prepare(candidate.graph.to_json())
    except PreparationError as error:
        raise CannotMeasureError(
            f"the model of trial {number} cannot be made: {error.message}"
        ) from None
    dimensions, batch, smallest = study.workload.dimensions(study.model), None, None
    if study.batching is not None:
        smallest = study.batching.smallest
        batch = candidate.batch(smallest)
        dimensions = study.batching.dimensions(dimensions, batch)
    return Subject(
        name=f"trial {number}",
        model=prepared.path,
        session=session_config(candidate.session.to_json(), dimensions),
        clients=study.clients,
        sessions=str(candidate.to_json().get(SESSIONS, SHARED)),
        batch=batch,
        baseline_batch=smallest,
        source_sha256=study.model.sha256,
    )
