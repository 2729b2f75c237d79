"""Writes the result of a study: the tuned config with its model, and the front.

The files of a model are named after their content, so a new set never takes the place of one that
is in use. The new config is checked beside the present one, and one rename of ``best.json`` decides
which of the two counts. ``front.json`` carries the digest of that file and follows it:
:func:`repair` completes what was cut short. A model stays for as long as any JSON file in the
folder names it, such as a copy of a config.
"""

import contextlib
import errno
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from autotune.deploy.config import (
    CONFIG,
    SHARED,
    Numbers,
    Serving,
    TunedConfig,
)
from autotune.deploy.files import digest_files, is_file, read_bytes
from autotune.deploy.loaded import DataFile, ModelFile, RequiredRuntime
from autotune.deploy.options import OWN
from autotune.errors import (
    CannotMeasureError,
    ConfigError,
    FormatError,
    StorageError,
    StudyError,
    typed,
)
from autotune.facts.model import describe
from autotune.graph.data_names import RenamingError, copy_with_data_names, data_names
from autotune.graph.graph_facts import ProcessorFacts
from autotune.graph.prepare import PreparationError, PreparedModel, Preparer
from autotune.graph.processor_facts import processor_facts, requirements
from autotune.measure.answers import largest_again
from autotune.measure.outcome import Failure, Fidelity, Measurer
from autotune.process.durable import (
    json_text,
    part_of,
    replacing,
    sync_file,
    sync_folder,
    write_json,
)
from autotune.results.result import FRONT, LARGEST_BYTES, Member, StudyResult
from autotune.search.finalists import EXACT_ERROR
from autotune.search.trial import Limits
from autotune.space.configuration import Configuration
from autotune.space.session import SESSIONS, session_config

_NEW_CONFIG = "best.new.json"
_MODEL = re.compile(r"best-[0-9a-f]{8}\.onnx(\.data[0-9]*)?")
_OF_MODELS = (f"best-{'[0-9a-f]' * 8}.onnx", f"best-{'[0-9a-f]' * 8}.onnx.data*")
RESULT_FILES = (CONFIG, _NEW_CONFIG, *_OF_MODELS, FRONT)
"""Names of the files that :func:`write` writes, as patterns."""

PAGE = "report.html"
"""The page that shows a study, in its folder; :mod:`autotune.report.page` writes it."""

CACHE = "cache"
"""Folder of the transformed models, in a study's folder."""

Check = Callable[[Path], Fidelity | None]
"""Returns the answers of a config that was written and is not in use yet; raises to refuse it."""


def write(result: StudyResult, preparer: Preparer, check: Check = lambda _: None) -> StudyResult:
    """Writes ``best.json``, its model and ``front.json``; returns the result with their names.

    The names are ours, those of external data files too: what the user called them may be the name
    of another file in the folder.

    Args:
        check: Checks the new config before it takes the place of the old one. Where the model's
            file is another one than that which was measured, the answers that it returns take the
            place of the measured ones.

    Raises:
        StudyError: the model has changed since it was measured.
        CannotMeasureError: the model cannot be made again, or is another file and there is no check
            of its answers; its data files cannot be renamed; or the check refuses the config. What
            was in the folder stays.
        StorageError: writing to the disk failed.
    """
    prepared = _prepared(result, preparer)
    folder = result.folder
    new_config = folder / _NEW_CONFIG
    with _disk_faults(folder, _outcome(result)):
        try:
            written = _write_model(prepared, result)
            facts = processor_facts(folder / written.file)
            write_json(tuned_config(result, result.best, written, facts).to_json(), new_config)
            answers = check(new_config)
            if result.best.files_sha256 not in (None, prepared.sha256):
                result = _with_answers(result, prepared, answers)
                write_json(tuned_config(result, result.best, written, facts).to_json(), new_config)
            result = replace(
                result,
                files=(CONFIG, *written.names, FRONT),
                config_sha256=digest_files([new_config]),
            )
            with replacing(folder / FRONT) as new_front:
                new_front.write_text(json_text(result.to_json()), encoding="utf-8")
                sync_file(new_front)
                sync_folder(folder)
                new_config.replace(folder / CONFIG)  # from here on the new one counts
                sync_folder(folder)
            sync_folder(folder)
        finally:
            with contextlib.suppress(OSError):
                _remove_leftovers(folder)
    return result


def repair(folder: Path) -> None:
    """Completes or takes back what an ended process left in a study's folder; removes leftovers.

    Only one process at a time may be at work in the folder.

    Raises:
        StorageError: writing to the disk failed.
    """
    with _disk_faults(folder):
        result = StudyResult.found_in(folder)
        if result is not None:
            now = _following(result)
            if now is not result:
                write_json(now.to_json(), folder / FRONT)
        _remove_leftovers(folder)


def _following(result: StudyResult) -> StudyResult:
    """Returns the result whose config is the one in its folder; itself where that is another's."""
    path = result.folder / CONFIG
    try:
        digest = digest_files([path])
        config = TunedConfig.read(path)
        member = result.member(config.evidence.trial)
    except (OSError, ConfigError, StudyError):
        return result
    is_own = config.model.source_sha256 == result.model_sha256
    if digest == result.config_sha256 or not is_own or member.evidence != config.evidence:
        return result
    files = (CONFIG, *config.model.names, FRONT)
    return replace(result, picked=member.trial, files=files, config_sha256=digest)


def with_model_at(result: StudyResult, model: Path) -> StudyResult:
    """Returns a result with the place of the model now, which is written where it was moved.

    Raises:
        StorageError: writing to the disk failed.
    """
    if result.model == model:
        return result
    moved = replace(result, model=model)
    with _disk_faults(result.folder):
        write_json(moved.to_json(), result.folder / FRONT)
    return moved


def agrees(result: StudyResult) -> bool:
    """Returns whether the config and the model of a result are in its folder."""
    try:
        digest = digest_files([result.folder / CONFIG])
    except OSError:
        return False
    has_files = all(is_file(result.folder / name) for name in result.files)
    return has_files and digest == result.config_sha256


def _remove_leftovers(folder: Path) -> None:
    """Removes what is in the making, and models that no JSON file in the folder names.

    A file that cannot be removed stays: an application may have it open.
    """
    with contextlib.suppress(OSError):
        (folder / _NEW_CONFIG).unlink(missing_ok=True)
    texts = [_text(path) for path in folder.glob("*.json")]
    for path in list(folder.iterdir()):
        is_model = _MODEL.fullmatch(path.name) is not None
        part = part_of(path.name)
        is_part = part is not None and any(fnmatch(part, own) for own in RESULT_FILES)
        if is_part or (is_model and not any(path.name.encode() in text for text in texts)):
            with contextlib.suppress(OSError):
                path.unlink()


def _text(path: Path) -> bytes:
    """Returns what is in a JSON file; empty for one that cannot be read or holds more than ours."""
    try:
        return read_bytes(path, LARGEST_BYTES)
    except FormatError:
        return b""


def _with_answers(
    result: StudyResult, prepared: PreparedModel, answers: Fidelity | None
) -> StudyResult:
    """Returns the result whose selected member has another file than it was measured with.

    Its answers are those of that file, which were compared just now.
    """
    member = result.best
    if answers is None:
        raise CannotMeasureError(
            f"the model of trial {member.trial}, made again, is another file than the one that was "
            "measured, so its answers are unknown; run `autotune study` again, which compares them"
        )
    evidence = replace(
        member.evidence,
        error=answers.error,
        agreement=answers.agreement,
        metric=answers.metric,
        drop=answers.drop,
        coverage=answers.coverage,
    )
    measured = replace(member, evidence=evidence, files_sha256=prepared.sha256)
    members = tuple(measured if each is member else each for each in result.members)
    note = (
        f"The model of trial {member.trial} was made again and is another file than the one that "
        "was timed; its answers were compared again."
    )
    return replace(result, members=members, notes=(*result.notes, note))


def _prepared(result: StudyResult, preparer: Preparer) -> PreparedModel:
    configuration = Configuration.of(result.best.configuration)
    try:
        return preparer.prepare(configuration.graph.to_json())
    except PreparationError as error:
        raise CannotMeasureError(
            f"the model of trial {result.picked} cannot be made again ({error.message}). "
            "The trials are kept; run `autotune study` again"
        ) from None


def _write_model(prepared: PreparedModel, result: StudyResult) -> ModelFile:
    """Writes the model and its data under names that follow from their content."""
    folder = result.folder
    if digest_files((prepared.path, *prepared.data_files)) != prepared.sha256:
        raise StudyError(
            f"{prepared.path} was changed while the study ran; run `autotune study` again"
        )
    model = f"best-{prepared.sha256[:8]}.onnx"
    names = data_names(prepared.data_files, model)
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


def answers_check(measurer: Measurer, result: StudyResult, limits: Limits) -> Check:
    """Returns a check that a fresh process loads a config, and that its answers are the trial's."""
    evidence = result.best.evidence

    def check(config: Path) -> Fidelity:
        outcome = measurer.answers_of(config)
        if isinstance(outcome, Failure):
            reason = outcome.message
        elif _as_measured(outcome, evidence, limits):
            return outcome
        else:
            reason = f"it has {_words(outcome)}, and trial {result.picked} had {_words(evidence)}"
        raise CannotMeasureError(
            f"the config that was written to {result.folder} does not do what was measured "
            f"({reason}), so it was removed. The trials are kept; type the same command again."
        )

    return check


def _as_measured(fidelity: Fidelity, evidence: Numbers, limits: Limits) -> bool:
    """Returns whether answers are as right as when they were measured.

    Those that kept the limits keep them again; the default may be written although it breaks them.
    """
    kept = limits.admit_answers(evidence.error, evidence.drop)
    if kept and not limits.admit_answers(fidelity.error, fidelity.drop):
        return False
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
    session = session_config(
        configuration.session.to_json(), result.dimensions_of(member), result.breaking
    )
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


def pick_member(result: StudyResult, trial: int, source: Path | None = None) -> StudyResult:
    """Writes the config of another member of the front; returns the result that says so.

    Args:
        source: Where the model that was tuned is now; where it was, or beside the folder, if None.

    Raises:
        StudyError: the trial is not on the front or broke a limit in the final comparison, the
            model is gone or has changed, or it lies where the files are written.
        CannotMeasureError: the member's model cannot be made again as it was measured.
        StorageError: writing to the disk failed.
    """
    member = result.member(trial)
    if not member.admitted and member is not result.baseline:
        raise StudyError(
            f"trial {trial} broke a limit of the study in the final comparison; run `autotune "
            "study` again with a looser limit"
        )
    model = describe(source or source_of(result))
    if model.sha256 != result.model_sha256:
        raise StudyError(
            f"{model.path} is not the model that was tuned; name that one: autotune pick "
            f"{result.folder} MODEL, or run `autotune study` again"
        )
    inputs = (model.path, *model.data_files)
    refuse_overwriting(entries_like(result.folder, (*RESULT_FILES, PAGE, CACHE)), inputs)
    preparer = Preparer(model, result.folder / CACHE, workload=None, signature=result.workload)
    return write(replace(result, picked=trial, model=model.path.absolute()), preparer)


def source_of(result: StudyResult) -> Path:
    """Returns the model that was tuned, for making a member's file again.

    Raises:
        StudyError: it is neither where it was nor beside the folder.
    """
    beside = result.folder.absolute().parent / result.model.name
    for place in (result.model, beside):
        if is_file(place):
            return place
    raise StudyError(
        f"the model {result.model} is no longer there; name it where it is now: "
        f"autotune pick {typed(result.folder)} MODEL"
    )


def _outcome(result: StudyResult) -> str:
    """Returns what a result comes to, as a sentence for one that cannot be written."""
    member, speedup = result.best, result.best.evidence.speedup
    return (
        f" It came to trial {member.trial} ({member.words}), {speedup.value:.2f} times as fast as "
        f"the default ({speedup.low:.2f} to {speedup.high:.2f})."
    )


@contextlib.contextmanager
def _disk_faults(folder: Path, outcome: str = "") -> Iterator[None]:
    """Turns faults of writing into an error that names the folder, and what was not written."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "make room on its disk" if is_full else "let this user write to it"
        place = Path(error.filename or folder)
        place = folder if place.is_relative_to(folder) else place
        raise StorageError(
            f"cannot write the result to {place}: {error.strerror}. What was measured is kept; "
            f"{remedy} and type the same command again.{outcome}"
        ) from None


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
