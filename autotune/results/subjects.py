"""What can be compared: tuned configs and models, each as a file that a session opens."""

from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import TunedConfig
from autotune.deploy.fitting import fit
from autotune.deploy.loader import check_files
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, StudyError
from autotune.results.result import StudyResult

_MODEL_END = ".onnx"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One configuration that takes part in a comparison.

    Attributes:
        name: How the user named it.
        model: The model file that is opened.
        session: How it is opened.
        source: The model that it was tuned from, as far as that is there; None where unknown.
        source_sha256: Digest of that model; empty where unknown.
    """

    name: str
    model: Path
    session: SessionConfig
    source: Path | None = None
    source_sha256: str = ""


def subject_of(path: Path) -> Subject:
    """Returns the subject in a file: a tuned config, or a model under default options.

    A config is opened as ``autotune.load`` opens it here, with at most a thread for each core.

    Raises:
        ConfigError: the config is wrong, its model files are others than it says, or it needs
            something that this machine lacks.
    """
    if path.suffix == _MODEL_END:
        return Subject(name=str(path), model=path, session=SessionConfig())
    config = TunedConfig.read(path)
    check_files(path, config, read_all=True)
    here = fit(config)
    if here.lacking:
        raise ConfigError(f"{path}: this machine lacks {', '.join(here.lacking)}")
    return Subject(
        name=str(path),
        model=path.parent / config.model.file,
        session=here.session,
        source=_source(path.parent),
        source_sha256=config.model.source_sha256,
    )


def _source(folder: Path) -> Path | None:
    """Returns the model that the study in the folder tuned, if both are there."""
    try:
        model = StudyResult.read(folder).model
    except StudyError:
        return None
    return model if model.is_file() else None
