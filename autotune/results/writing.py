"""Writes the result of a study: the tuned config with its model, and the front.

A new set of files never takes the place of one that is in use. The model and its data get names
that the present config does not use, the new config is checked beside them, and one rename of
``best.json`` switches from the old set to the new one. The old files go last. So ``best.json``
names a whole set at any time, whatever ends the process.
"""

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from autotune.deploy.config import (
    SHARED,
    DataFile,
    ModelFile,
    Numbers,
    RequiredRuntime,
    Serving,
    TunedConfig,
)
from autotune.deploy.files import digest_files
from autotune.deploy.options import OWN
from autotune.errors import CannotMeasureError, ConfigError, StorageError, StudyError
from autotune.facts.model import describe
from autotune.graph.data_names import RenamingError, copy_with_data_names, data_names
from autotune.graph.graph_facts import ProcessorFacts
from autotune.graph.prepare import PreparationError, PreparedModel, Preparer
from autotune.graph.processor_facts import processor_facts, requirements
from autotune.measure.answers import largest_again
from autotune.measure.outcome import Failure, Fidelity, Measurer
from autotune.results.result import FRONT, Member, StudyResult
from autotune.search.finalists import EXACT_ERROR
from autotune.space.configuration import Configuration
from autotune.space.session import SESSIONS, session_config

CONFIG = "best.json"
MODELS = ("best.onnx", "best.2.onnx")
"""Names of the model: the one that the present config does not use is written next."""

_NEW_CONFIG = "best.new.json"
_OF_MODELS = tuple(pattern for name in MODELS for pattern in (name, f"{name}.data*"))
RESULT_FILES = (CONFIG, _NEW_CONFIG, *_OF_MODELS, FRONT)
"""Names of the files that :func:`write` writes, as patterns."""

PAGE = "report.html"
"""The page that shows a study, in its folder; :mod:`autotune.report.page` writes it."""

CACHE = "cache"
"""Folder of the transformed models, in a study's folder."""

Check = Callable[[Path], None]
"""Called with a config that was written and is not in use yet; raises an error to refuse it."""


def write(result: StudyResult, preparer: Preparer, check: Check = lambda _: None) -> StudyResult:
    """Writes ``best.json``, its model and ``front.json``; returns the result with their names.

    The names are ours, those of external data files too: what the user called them may be the name
    of another file in the folder.

    Args:
        check: Checks the new config before it takes the place of the old one.

    Raises:
        StudyError: the model has changed since it was measured.
        CannotMeasureError: the model cannot be made again, its data files cannot be renamed, or
            the check refuses the config. What was in the folder stays.
        StorageError: writing to the disk failed.
    """
    prepared = _prepared(result, preparer)
    folder = result.folder
    old = _files_in_use(folder)
    model = next(name for name in MODELS if name not in old)
    names = data_names(prepared.data_files, model)
    result = replace(result, files=(CONFIG, model, *names.values(), FRONT))
    with _disk_faults(folder):
        new = folder / _NEW_CONFIG
        try:
            written = _write_model(prepared, result, model, names)
            facts = processor_facts(folder / model)
            write_json(tuned_config(result, result.best, written, facts).to_json(), new)
            check(new)
        except BaseException:
            for name in (_NEW_CONFIG, model, *names.values()):
                (folder / name).unlink(missing_ok=True)
            raise
        write_json(result.to_json(), folder / FRONT)
        new.replace(folder / CONFIG)
        _sync(folder)
    for name in old:
        with contextlib.suppress(OSError):  # an application may have it open
            (folder / name).unlink(missing_ok=True)
    return result


def _prepared(result: StudyResult, preparer: Preparer) -> PreparedModel:
    configuration = Configuration.of(result.best.configuration)
    try:
        return preparer.prepare(configuration.graph.to_json())
    except PreparationError as error:
        raise CannotMeasureError(
            f"the model of trial {result.picked} cannot be made again ({error.message}). "
            "The trials are kept; run `autotune study` again"
        ) from None


def _files_in_use(folder: Path) -> tuple[str, ...]:
    """Returns the files of the present config that have names of ours; none where it is wrong."""
    try:
        names = TunedConfig.read(folder / CONFIG).model.names
    except ConfigError:
        return ()
    return tuple(name for name in names if any(fnmatch(name, own) for own in _OF_MODELS))


def _write_model(
    prepared: PreparedModel, result: StudyResult, model: str, names: Mapping[str, str]
) -> ModelFile:
    """Writes the model and its data under names that no config uses."""
    folder = result.folder
    if digest_files((prepared.path, *prepared.data_files)) != prepared.sha256:
        raise StudyError(
            f"{prepared.path} was changed while the study ran; run `autotune study` again"
        )
    with replacing(folder / model) as temporary:
        try:
            copy_with_data_names(prepared.path, names, temporary)
        except RenamingError as error:
            raise CannotMeasureError(f"cannot write {folder / model}: {error}") from None
    for file in prepared.data_files:
        with replacing(folder / names[file.name]) as temporary:
            shutil.copyfile(file, temporary)
    return ModelFile(
        **vars(DataFile.of(folder / model)),
        source_sha256=result.model_sha256,
        steps=prepared.steps,
        data_files=tuple(DataFile.of(folder / name) for name in names.values()),
    )


def answers_check(measurer: Measurer, result: StudyResult) -> Check:
    """Returns a check that a fresh process loads a config, and that its answers are the trial's."""
    evidence = result.best.evidence

    def check(config: Path) -> None:
        outcome = measurer.answers_of(config)
        if isinstance(outcome, Failure):
            reason = outcome.message
        elif _as_measured(outcome, evidence):
            return
        else:
            reason = f"it has {_words(outcome)}, and trial {result.picked} had {_words(evidence)}"
        raise CannotMeasureError(
            f"the config that was written to {result.folder} does not do what was measured "
            f"({reason}), so it was removed. The trials are kept; type the same command again."
        )

    return check


def _as_measured(fidelity: Fidelity, evidence: Numbers) -> bool:
    """Returns whether answers are as right as when they were measured."""
    worse = (evidence.metric or 0.0) - (fidelity.metric or 0.0)
    most = largest_again(evidence.error, evidence.coverage)
    return fidelity.error <= most and worse <= EXACT_ERROR


def _words(answers: Fidelity | Numbers) -> str:
    metric = "" if answers.metric is None else f" and metric {answers.metric:.4g}"
    return f"error {answers.error:.2g}{metric}"


def tuned_config(
    result: StudyResult, member: Member, model: ModelFile, facts: ProcessorFacts
) -> TunedConfig:
    """Returns the config of one member, whose model was written as `model` and has these facts."""
    configuration = Configuration.of(member.configuration)
    session = session_config(configuration.session.to_json(), result.dimensions_of(member))
    requires, environment = requirements(session, facts), result.environment
    if configuration.runtime != OWN:
        package, _, version = configuration.runtime.partition("==")
        requires = replace(requires, runtime=RequiredRuntime(package=package, version=version))
        environment = replace(environment, onnxruntime=version)
    return TunedConfig(
        model=model,
        session=session,
        evidence=member.evidence,
        baseline=result.baseline.evidence,
        error_data=result.error_data,
        max_error=result.limits["max_error"],
        trial=member.trial,
        requires=requires,
        environment=environment,
        configuration=member.configuration,
        serving=_serving(result, member),
    )


def _serving(result: StudyResult, member: Member) -> Serving | None:
    """Returns how a study called a member; None where one client ran samples as they are."""
    if result.clients == 1 and result.batching is None:
        return None
    return Serving(
        clients=result.clients,
        sessions=str(member.configuration.get(SESSIONS, SHARED)),
        batch=None if result.batching is None else result.batch_of(member),
        baseline_batch=None if result.batching is None else result.batching.smallest,
    )


def pick_member(result: StudyResult, trial: int) -> StudyResult:
    """Writes the config of another member of the front; returns the result that says so.

    Raises:
        StudyError: the trial is not on the front or broke a limit in the final comparison, the
            model is gone or has changed, or it lies where the files are written.
        CannotMeasureError: the member's model cannot be made again.
        StorageError: writing to the disk failed.
    """
    member = result.member(trial)
    if not member.admitted and member is not result.baseline:
        raise StudyError(
            f"trial {trial} broke a limit of the study in the final comparison; run `autotune "
            "study` again with a looser limit"
        )
    model = describe(source_of(result))
    if model.sha256 != result.model_sha256:
        raise StudyError(f"{result.model} has changed since the study; run `autotune study` again")
    inputs = (model.path, *model.data_files)
    refuse_overwriting(entries_like(result.folder, (*RESULT_FILES, PAGE, CACHE)), inputs)
    preparer = Preparer(model, result.folder / CACHE, workload=None, signature=result.workload)
    return write(replace(result, picked=trial), preparer)


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


def _sync(folder: Path) -> None:
    """Makes the names in a folder safe from a loss of power, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def refuse_overwriting(written: Sequence[Path], inputs: Sequence[Path]) -> None:
    """Refuses inputs that lie where something will be written, directly or through a link.

    Args:
        written: Files and folders that will be written, as far as they are there.
        inputs: Files and folders that are read; all of them are there.

    Raises:
        StudyError: an input is one of `written`, or lies in one of them.
    """
    for path in inputs:
        place = path.resolve()
        for entry in written:
            target = entry.resolve()
            # a hard link is the same file under another path
            same = target == place or (target.exists() and target.samefile(place))
            if same or target in place.parents:
                raise StudyError(
                    f"{path} would be overwritten: autotune writes to {entry}. Name another folder "
                    "with --out DIR, or move the file"
                )


def entries_like(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """Returns the entries of a folder whose names match a pattern; empty where it is none.

    Raises:
        StudyError: the folder cannot be read.
    """
    if not folder.is_dir():
        return []
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise StudyError(f"cannot read the folder {folder}: {error.strerror}") from None
    return [entry for entry in entries if any(fnmatch(entry.name, p) for p in patterns)]
