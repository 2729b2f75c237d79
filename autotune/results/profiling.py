"""Where the time goes: the default beside a tuned config, and both beside the machine's roof."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import CONFIG
from autotune.deploy.files import digest_files, is_file, is_folder, read_json
from autotune.deploy.records import Json, PositiveWhole, Several, Text, from_plain, to_plain
from autotune.errors import FormatError, StudyError, typed
from autotune.facts.batches import Batching
from autotune.facts.inputs import workload_for
from autotune.facts.work import Work
from autotune.inspection.headroom import Headroom, Peaks, headroom, measure_peaks
from autotune.inspection.model_report import read_model
from autotune.inspection.profile import Profile, profile_session
from autotune.process.durable import write_json
from autotune.results.final_comparison import OnStep
from autotune.results.subjects import lineup_of, refuse_other_runtimes
from autotune.results.writing import PAGE, refuse_overwriting

DEFAULT = "default"
TUNED = "tuned config"

PROFILE_FILE = "profile.json"
"""The profile of a study's config, in its folder."""

_LARGEST_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class ProfiledSession:
    """One session with where its time goes.

    Attributes:
        name: ``default`` or ``tuned config``.
    """

    name: Text
    file: Text
    profile: Profile
    work: Work
    headroom: Headroom


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """One session or two of the same model, and the machine.

    Attributes:
        sessions: The default, and then the tuned config if there is one.
        peaks: The machine's peaks, measured in between.
        config_sha256: Digest of the tuned config's file; empty without one.
        batch: Samples of a run of each session; None where the config was not tuned for batches.
    """

    sessions: Several[ProfiledSession]
    peaks: Peaks
    config_sha256: Text = ""
    batch: PositiveWhole | None = None

    def to_json(self) -> Json:
        """Returns the record as JSON values, with what follows from the headroom's fields."""
        data: Json = to_plain(self)
        for item, session in zip(data["sessions"], self.sessions, strict=True):
            item["headroom"] = session.headroom.to_json()
        return data


def profile(
    path: Path,
    source: Path | None = None,
    *,
    data: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    on_step: OnStep = lambda _done, _total: None,
) -> Profiling:
    """Returns where the time of a run goes.

    Args:
        path: A model; or a tuned config, or the folder of a study with one, which is profiled
            beside the default. The folder keeps the profile, and the page of the study shows it.
        source: The untouched model of a config; if None, the one that the study beside the config
            names, as far as it is there and unchanged, or else the config's own file.

    Raises:
        ModelError: the model cannot be used.
        ConfigError: the config is wrong, or needs something that this machine lacks.
        CannotMeasureError: the model does not run on these inputs.
        StudyError: an input lies where the folder keeps the profile.
        OSError: the profile cannot be written.
    """
    file, in_study = path, is_folder(path)
    if in_study:
        file = path / CONFIG
        inputs = [each for each in (source, data) if each is not None]
        refuse_overwriting([path / PROFILE_FILE, path / PAGE], inputs)
    lineup = lineup_of([file], source, None)
    refuse_other_runtimes(lineup, "autotune profile")
    (subject,), original = lineup.subjects, lineup.model
    workload = workload_for(original, data, shapes or {}, values=values or {})
    if subject.batch is not None:
        workload = Batching.of(original, workload, [subject.batch]).workload(
            workload, subject.batch
        )
    steps = 3 if subject.source_sha256 else 2
    default = profile_session(original.path, original.default_session, workload)
    on_step(1, steps)
    work = read_model(original.path, workload).work
    peaks = measure_peaks(work.least_bytes)
    on_step(2, steps)
    sessions = [_session(DEFAULT, original.path, default, work, peaks)]
    if subject.source_sha256:
        tuned = profile_session(subject.model, subject.session, workload)
        own_work = read_model(subject.model, workload).work
        if not own_work.is_complete:  # ONNX infers no shapes through ONNX Runtime's own operators
            own_work = work
        sessions.append(_session(TUNED, subject.model, tuned, own_work, peaks))
        on_step(3, steps)
    profiling = Profiling(
        sessions=tuple(sessions),
        peaks=peaks,
        config_sha256=digest_files([file]) if subject.source_sha256 else "",
        batch=subject.batch,
    )
    if in_study:
        write_json(to_plain(profiling), path / PROFILE_FILE)
    return profiling


def kept_profile(folder: Path) -> Profiling | None:
    """Returns the profile that was kept beside a study's config; None where it has none.

    A profile of an earlier config of the folder does not count.

    Raises:
        StudyError: the file is no profile.
    """
    if not is_file(folder / PROFILE_FILE) or not is_file(folder / CONFIG):
        return None
    try:
        profiling = from_plain(Profiling, read_json(folder / PROFILE_FILE, _LARGEST_BYTES))
    except FormatError as error:
        raise StudyError(
            f"{folder / PROFILE_FILE}: {error}. `autotune profile {typed(folder)}` writes it again."
        ) from None
    return profiling if profiling.config_sha256 == digest_files([folder / CONFIG]) else None


def _session(
    name: str, file: Path, session_profile: Profile, work: Work, peaks: Peaks
) -> ProfiledSession:
    return ProfiledSession(
        name=name,
        file=str(file),
        profile=session_profile,
        work=work,
        headroom=headroom(work, peaks, session_profile.run_ms),
    )
