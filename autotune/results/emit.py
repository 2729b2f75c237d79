"""Writes the result of a study: the tuned config with its model, and the front."""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.deploy import cpu
from autotune.deploy.config import TunedConfig
from autotune.deploy.digest import digest_files
from autotune.deploy.model_files import DataFile, ModelFile
from autotune.deploy.serving import SHARED, Serving
from autotune.errors import CannotMeasureError, StorageError, StudyError
from autotune.facts.model import describe
from autotune.graph.data_names import RenamingError, copy_with_data_names, data_names
from autotune.graph.plan import needed_features
from autotune.graph.prepare import PreparationError, PreparedModel, Preparer
from autotune.results.overwriting import entries_like, refuse_overwriting
from autotune.results.result import FRONT, Member, StudyResult
from autotune.space.candidate import Candidate
from autotune.space.session import SESSIONS, session_config

CONFIG = "best.json"
MODEL = "best.onnx"
EMITTED = (CONFIG, MODEL, f"{MODEL}.data*", FRONT)
"""Names of the files that :func:`emit` writes, as patterns."""

PAGE = "report.html"
"""The page that shows a study, in its folder; :mod:`autotune.report.page` writes it."""

CACHE = "cache"
"""Folder of the prepared models, in a study's folder."""


def emit(result: StudyResult, prepared: PreparedModel) -> StudyResult:
    """Writes ``best.json``, its model and ``front.json``; returns the result with their names.

    Each file appears whole or not at all, the config last: it never names a model that is not
    there. The names are ours, those of external data files too: what the user called them may be
    the name of another file in the folder.

    Raises:
        StudyError: the model has changed since it was measured.
        CannotMeasureError: its data files cannot be renamed.
        StorageError: the disk gave out.
    """
    names = data_names(prepared.data_files, MODEL)
    result = replace(result, files=(CONFIG, MODEL, *names.values(), FRONT))
    folder = result.folder
    with _disk_faults(folder):
        if digest_files((prepared.path, *prepared.data_files)) != prepared.sha256:
            raise StudyError(
                f"{prepared.path} was changed while the study ran; run `autotune study` again"
            )
        with replacing(folder / MODEL) as temporary:
            try:
                copy_with_data_names(prepared.path, names, temporary)
            except RenamingError as error:
                raise CannotMeasureError(f"cannot write {folder / MODEL}: {error}") from None
        for file in prepared.data_files:
            copy(file, folder / names[file.name])
        write_json(result.to_json(), folder / FRONT)
        written = ModelFile(
            **vars(DataFile.of(folder / MODEL)),
            source_sha256=result.model_sha256,
            steps=prepared.steps,
            data_files=tuple(DataFile.of(folder / name) for name in names.values()),
        )
        write_json(tuned_config(result, result.best, written).to_json(), folder / CONFIG)
    return result


def tuned_config(result: StudyResult, member: Member, model: ModelFile) -> TunedConfig:
    """Returns the config of one member, whose model was written as `model`."""
    candidate = Candidate.of(member.candidate)
    session = session_config(candidate.session.to_json(), result.dimensions_of(member))
    return TunedConfig(
        model=model,
        session=session,
        process=None if result.process is None else result.process.options_for(member.trial),
        evidence=member.evidence,
        requires=replace(
            result.requires,
            providers=tuple(name for name, _ in session.providers),
            cpu_features=needed_features(candidate.graph.to_json(), cpu.cpu_features()),
        ),
        environment=result.environment,
        candidate=member.candidate,
        serving=_serving(result, member),
    )


def _serving(result: StudyResult, member: Member) -> Serving | None:
    """Returns how a study called a member; None where one client ran samples as they are."""
    if result.clients == 1 and result.batching is None:
        return None
    return Serving(
        clients=result.clients,
        sessions=str(member.candidate.get(SESSIONS, SHARED)),
        batch=None if result.batching is None else result.batch_of(member),
        baseline_batch=None if result.batching is None else result.batching.smallest,
    )


def pick_member(result: StudyResult, trial: int) -> StudyResult:
    """Writes the config of another member of the front; returns the result that says so.

    Raises:
        StudyError: the trial is not on the front, the model is gone or has changed, or it lies
            where the files are written.
        StorageError: the disk gave out.
    """
    member = result.member(trial)
    model = describe(source_of(result))
    if model.sha256 != result.model_sha256:
        raise StudyError(f"{result.model} has changed since the study; run `autotune study` again")
    inputs = (model.path, *model.data_files)
    refuse_overwriting(entries_like(result.folder, (*EMITTED, PAGE, CACHE)), inputs)
    preparer = Preparer(model, result.folder / CACHE, workload=None, signature=result.workload)
    try:
        prepared = preparer.prepare(Candidate.of(member.candidate).graph.to_json())
    except PreparationError as error:
        raise StudyError(
            f"the model of trial {trial} cannot be made again ({error.message}); "
            "run `autotune study` again with --trials 1"
        ) from None
    return emit(replace(result, picked=trial), prepared)


def source_of(result: StudyResult) -> Path:
    """Returns the model that was tuned, for making a member's file again.

    Raises:
        StudyError: it is gone or has changed.
    """
    if not result.model.is_file():
        raise StudyError(
            f"the model {result.model} is no longer there; "
            f"put it back, or run `autotune study` on it where it is now"
        )
    return result.model


def write_json(data: Mapping[str, Any], path: Path) -> None:
    """Writes `data` to `path` whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copies a file whole or not at all; a file is not copied to itself."""
    if target.exists() and source.samefile(target):
        return
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary file that replaces `path` once it is safely on the disk."""
    temporary = path.with_name(f".{secrets.token_hex(8)}.part")
    # unlike tempfile's, this file has the permissions that the user's umask gives
    temporary.touch(exist_ok=False)
    try:
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def _disk_faults(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write the result to {folder}: {error.strerror}. What was measured is kept; "
            "make room and type the same command again."
        ) from None
