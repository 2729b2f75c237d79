"""What can be compared: tuned configs and models, each as a file that a session opens."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from autotune.deploy.config import Serving, TunedConfig, config_file
from autotune.deploy.fitting import environment_differences, fit
from autotune.deploy.loader import check_files
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, RequestError
from autotune.facts.batches import Batching
from autotune.facts.feeds import Feed
from autotune.facts.model import Model, describe, without_breaking
from autotune.facts.workload import Workload
from autotune.graph.parameters import OUTPUTS
from autotune.results.result import StudyResult
from autotune.runtimes.environments import is_there, own_release, site_of
from autotune.runtimes.names import Release

THE_DEFAULT = "the default"
"""The name of the untouched model under default options."""

_MODEL_END = ".onnx"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One configuration that takes part in a comparison.

    Attributes:
        serving: How it was called when it was tuned; None where it was not.
        source: The model that it was tuned from, as far as that is there; None where unknown.
        source_sha256: Digest of that model; empty where unknown.
        pairs: What the study was told to feed back of a decoder, by the names of the inputs.
        max_error: The error limit that it was tuned for, infinite where a metric alone decided;
            None for a model.
        differences: How this machine differs from the one that tuned it, in words.
        config: The tuned config; None for a model.
        site: The folder of another ONNX Runtime that runs it; None for the user's own.
        outputs: Names of the outputs that its file has; empty where these are the model's.
    """

    name: str
    model: Path
    session: SessionConfig
    serving: Serving | None = None
    source: Path | None = None
    source_sha256: str = ""
    pairs: Mapping[str, str] = field(default_factory=dict)
    max_error: float | None = None
    differences: tuple[str, ...] = ()
    config: TunedConfig | None = None
    site: Path | None = None
    outputs: tuple[str, ...] = ()

    @property
    def batch(self) -> int | None:
        """Samples of a run; None means as many as a run of the default has."""
        return None if self.serving is None else self.serving.batch


def subject_of(path: Path) -> Subject:
    """Returns the subject in a file: a tuned config, or a model under default options.

    A folder of a study stands for its config.

    A config is opened as ``autotune.load`` opens it here, with at most a thread for each core. One
    that needs another ONNX Runtime is run by that, where it was added.

    Raises:
        ConfigError: the config is wrong, its model files are others than it says, or it needs
            something that this machine lacks.
    """
    if path.suffix == _MODEL_END:
        return Subject(name=str(path), model=path, session=SessionConfig())
    path = config_file(path)
    config = TunedConfig.read(path)
    folder = check_files(path, config, read_all=True)
    here = fit(config)
    study = StudyResult.found_in(folder)
    site = _site_of(config) if here.lacking else None
    if here.lacking and site is None:
        needed = config.requires.runtime
        more = f"; or type autotune runtimes add {needed}" if needed else ""
        raise ConfigError(f"{path}: this machine lacks {', '.join(here.lacking)}{more}")
    return Subject(
        name=str(path),
        model=folder / config.model.file,
        session=config.session if site else here.session,
        serving=config.serving or Serving(clients=1),
        source=study.model if study and study.model.is_file() else None,
        pairs=study.pairs if study else {},
        source_sha256=config.model.source_sha256,
        max_error=error_limit(config),
        differences=tuple(environment_differences(config, runtime=site is None)),
        config=config,
        site=site,
        outputs=outputs_of(config),
    )


def error_limit(config: TunedConfig) -> float:
    """Returns the error limit that a config was tuned for; infinite where it had none."""
    return config.evidence.max_error or math.inf


def _site_of(config: TunedConfig) -> Path | None:
    """Returns the folder of the ONNX Runtime that a config needs; None where it was not added."""
    needed = config.requires.runtime
    return site_of(str(needed)) if needed and is_there(str(needed)) else None


def outputs_of(config: TunedConfig) -> tuple[str, ...]:
    """Returns the names of the outputs that a config's file has; empty where it has all of them."""
    names = str(config.configuration.get(OUTPUTS, ""))
    return tuple(names.split(",")) if names else ()


@dataclass(frozen=True, kw_only=True)
class Lineup:
    """What is compared with what.

    Attributes:
        subjects: The configurations, in the order of the request.
        model: The model whose answers are the right ones.
        untouched: Whether it is the model that was tuned, or another one than is judged. A file
            that is compared with itself is not judged at all.
    """

    subjects: tuple[Subject, ...]
    baseline: Subject
    model: Model
    untouched: bool

    def batching(self, workload: Workload) -> Batching | None:
        """Returns the batch sizes of all; None where no config was tuned for batches.

        Raises:
            RequestError: the samples cannot be stacked.
        """
        tuned = [each.serving for each in (*self.subjects, self.baseline) if each.serving]
        sizes = {size for each in tuned for size in (each.batch, each.baseline_batch) if size}
        return Batching.of(self.model, workload, sorted(sizes)) if sizes else None

    @property
    def outputs(self) -> tuple[str, ...]:
        """The outputs that all of them have; empty where these are the model's.

        Raises:
            RequestError: there is none.
        """
        named = [each.outputs for each in (*self.subjects, self.baseline) if each.outputs]
        if not named:
            return ()
        common = tuple(name for name in named[0] if all(name in each for each in named))
        if not common:
            raise RequestError("the configs were tuned for other outputs, so nothing is compared")
        return common

    @property
    def clients(self) -> int | None:
        """How many clients the configs were tuned for; None where no config takes part.

        Raises:
            RequestError: they were tuned for different numbers of them.
        """
        tuned = [each.serving for each in (*self.subjects, self.baseline) if each.serving]
        numbers = {each.clients for each in tuned}
        if len(numbers) > 1:
            few, *_, many = sorted(numbers)
            raise RequestError(
                f"one config was tuned for {few} and another one for {many} clients; say with "
                "--clients how many call at once here"
            )
        return next(iter(numbers), None)


def refuse_other_runtimes(lineup: Lineup, command: str) -> None:
    """Refuses a config that needs another ONNX Runtime, for a command that runs all in this one.

    Raises:
        ConfigError: there is one.
    """
    for subject in (*lineup.subjects, lineup.baseline):
        if subject.site is not None:
            raise ConfigError(
                f"{subject.name} needs {subject.site.name}, and {command} runs in this environment "
                "alone; type it in one that has that ONNX Runtime"
            )


def on_releases(subject: Subject, releases: Sequence[Release]) -> tuple[Subject, ...]:
    """Returns what a subject is on each of these ONNX Runtimes."""
    own = own_release()
    sites = {each: None if each == own else site_of(str(each)) for each in releases}
    return tuple(replace(subject, name=str(each), site=sites[each]) for each in releases)


def lineup_of(paths: Sequence[Path], source: Path | None, baseline: Path | None) -> Lineup:
    """Returns what a comparison of these files compares.

    Args:
        paths: Tuned configs, and models (``.onnx``), which are opened with default options.
        source: The untouched model; if None, the one that the study beside a config names, as far
            as it is there and unchanged, or else the first file's own model.
        baseline: A config or model to compare with; if None, the untouched model under default
            options.

    Raises:
        ConfigError: a config is wrong, its model files are others than it says, it needs something
            that this machine lacks, or the configs were tuned from different models.
    """
    subjects = tuple(subject_of(path) for path in paths)
    opponent = None if baseline is None else subject_of(baseline)
    model, untouched = _reference([*filter(None, [opponent]), *subjects], source)
    if source is None and not any(s.source_sha256 for s in (opponent, *subjects) if s):
        untouched = all(subject.model != model.path for subject in subjects)
    return Lineup(
        subjects=subjects,
        baseline=opponent or default_of(model),
        model=model,
        untouched=untouched,
    )


def checked(lineup: Lineup, sample: Feed) -> Lineup:
    """Returns the lineup whose default does without what breaks the model on a sample."""
    model = without_breaking(lineup.model, sample)
    if lineup.baseline == default_of(lineup.model):
        lineup = replace(lineup, baseline=default_of(model))
    return replace(lineup, model=model)


def default_of(model: Model) -> Subject:
    """Returns the untouched model under default options."""
    return Subject(name=THE_DEFAULT, model=model.path, session=model.default_session)


def _reference(subjects: Sequence[Subject], source: Path | None) -> tuple[Model, bool]:
    """Returns the model whose answers are right, and whether it is the one that was tuned."""
    digests = {subject.source_sha256: subject for subject in subjects if subject.source_sha256}
    if len(digests) > 1:
        first, second = list(digests.values())[:2]
        raise ConfigError(
            f"{first.name} and {second.name} were tuned from different models, so their answers "
            "cannot be compared"
        )
    pairs = next((subject.pairs for subject in subjects if subject.pairs), {})
    if source is not None:
        model = describe(source, pairs)
        for digest, subject in digests.items():
            if digest != model.sha256:
                raise ConfigError(f"{source} is not the model that {subject.name} was tuned from")
        return model, True
    configurations = [subject.source for subject in subjects if subject.source is not None]
    models = [subject.model for subject in subjects if not subject.source_sha256]
    for path in (*configurations, *models):
        model = describe(path, pairs)
        if not digests or model.sha256 in digests:
            return model, True
    own = next(subject for subject in subjects if subject.source_sha256)
    model = describe(own.model, pairs)
    return model, model.sha256 in digests
