"""Where the time goes: the default beside a tuned config, and both beside the machine's roof."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import TunedConfig
from autotune.deploy.files import is_file, is_folder
from autotune.deploy.fitting import missing_requirements
from autotune.deploy.loader import check_files
from autotune.deploy.records import Json, to_plain
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, StudyError
from autotune.facts.model import describe
from autotune.facts.work import Work
from autotune.facts.workload import Workload, workload_for
from autotune.inspection.headroom import Headroom, Peaks, headroom, measure_peaks
from autotune.inspection.profile import Profile, profile_session
from autotune.inspection.reading import read_model
from autotune.results.result import StudyResult

OnStep = Callable[[int, int], None]
"""Called after each step with the steps done and all steps."""

DEFAULT = "default"
TUNED = "tuned config"


@dataclass(frozen=True, kw_only=True)
class ProfiledSession:
    """One session with where its time goes.

    Attributes:
        name: ``default`` or ``tuned config``.
        file: The file that was opened.
        profile: Where the time goes.
        work: What a run computes and moves.
        headroom: How far a run is from the machine's roof.
    """

    name: str
    file: str
    profile: Profile
    work: Work
    headroom: Headroom


@dataclass(frozen=True, kw_only=True)
class Profiling:
    """One session or two of the same model, and the machine.

    Attributes:
        sessions: The default, and then the tuned config if there is one.
        peaks: The machine's peaks, measured in between.
    """

    sessions: tuple[ProfiledSession, ...]
    peaks: Peaks

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
    on_step: OnStep = lambda _done, _total: None,
) -> Profiling:
    """Returns where the time of a run goes.

    Args:
        path: A model; or a tuned config, or the folder of a study with one, which is profiled
            beside the default.
        source: The untouched model of a config; if None, the one that the study beside the config
            names, as far as it is there and unchanged, or else the config's own file.
        data: Inputs; generated if None.
        shapes: Shapes of generated inputs.
        on_step: Called after each step.

    Raises:
        ModelError: the model cannot be used.
        ConfigError: the config is wrong, or needs something that this machine lacks.
        CannotMeasureError: the model does not run on these inputs.
    """
    if is_folder(path):
        path /= "best.json"
    config = None if path.suffix == ".onnx" else _config(path)
    model = describe(_untouched(path, config, source))
    workload = workload_for(model, data, shapes or {})
    steps = 2 if config is None else 3
    default = profile_session(model.path, SessionConfig(), workload)
    on_step(1, steps)
    work = read_model(model, workload, run=True).work
    peaks = measure_peaks(work.least_bytes)
    on_step(2, steps)
    sessions = [_session(DEFAULT, model.path, default, work, peaks)]
    if config is not None:
        file = path.parent / config.model.file
        tuned = profile_session(file, config.session, workload)
        sessions.append(_session(TUNED, file, tuned, _work_of(file, workload, work), peaks))
        on_step(3, steps)
    return Profiling(sessions=tuple(sessions), peaks=peaks)


def _config(path: Path) -> TunedConfig:
    """Returns the config in the file, checked for this machine."""
    config = TunedConfig.read(path)
    check_files(path, config, read_all=True)
    if lacking := missing_requirements(config):
        raise ConfigError(f"{path}: this machine lacks {', '.join(lacking)}")
    return config


def _untouched(path: Path, config: TunedConfig | None, source: Path | None) -> Path:
    """Returns the file whose default is profiled."""
    if config is None:
        return path
    if source is not None:
        return source
    try:
        named = StudyResult.read(path.parent).model
    except StudyError:
        named = path
    return named if named.suffix == ".onnx" and is_file(named) else path.parent / config.model.file


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


def _work_of(file: Path, workload: Workload, original: Work) -> Work:
    """Returns the work of the config's own file, or the original's where shapes are missing.

    ONNX infers no shapes through operators of ONNX Runtime's own. The original's work is the same
    but for the type of the numbers.
    """
    work = read_model(describe(file), workload, run=False).work
    return work if work.is_complete else original
