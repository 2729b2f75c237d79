"""A study's beginning: its options become a job, with everything settled."""

import platform
from dataclasses import dataclass
from pathlib import Path

import optuna

from autotune import __version__
from autotune.deploy.config import Environment
from autotune.deploy.process_options import has_glibc
from autotune.deploy.providers import CACHE_FOLDER, PROVIDERS
from autotune.deploy.records import to_plain
from autotune.errors import RequestError, StudyError
from autotune.facts.batches import Batching
from autotune.facts.hardware import Facts, Hardware
from autotune.facts.model import Model, describe
from autotune.facts.providers import choose_providers
from autotune.facts.runtime import Runtime
from autotune.facts.workload import Workload, workload_for
from autotune.graph.prepare import Preparer
from autotune.measure.device_memory import DeviceMemory
from autotune.results.emit import CACHE, EMITTED, PAGE
from autotune.results.overwriting import entries_like, refuse_overwriting
from autotune.results.result import StudyResult
from autotune.results.setting import Setting
from autotune.search import objective
from autotune.space.files import find_space, presets
from autotune.space.resolve import batching_of, resolve
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space
from autotune.space.start import in_batches, read_candidate
from autotune.storage.database import DATABASE, Place, quiet_optuna
from autotune.storage.identity import BATCHING, Identity, notes_on, open_study
from autotune.storage.relatives import relatives
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, worker_of
from autotune.study.job import SAMPLES, Job
from autotune.study.loop import counts_within
from autotune.study.metric import load_metric
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress
from autotune.study.sampler import check_sampler
from autotune.study.seams import Seams

WRITTEN = (
    *EMITTED,
    PAGE,
    CACHE,
    CACHE_FOLDER,
    SAMPLES,
    DATABASE,
    f"{DATABASE}-*",
    "*.spool.jsonl",
    ".driver",
    ".lock",
)
"""Names of the files and folders that a study writes to its folder, as patterns."""


def run_study(options: StudyOptions, report: OnProgress, seams: Seams | None = None) -> StudyResult:
    """Returns the result of a study.

    Args:
        options: What the study is asked for.
        report: Called as the study goes on.
        seams: The outside world; the real one if None.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
        Interrupted: Ctrl-C after the default was measured.
    """
    seams = seams or Seams()
    _check(options)
    metric = None if options.metric is None else load_metric(options.metric)
    tried = [read_candidate(file) for file in options.first]
    report(Progress(stage="model"))
    subject = _Subject.of(options, seams)
    tried = [in_batches(candidate, subject.batching) for candidate in tried]
    options = _settled(options, subject)
    place = Place.of(options.storage, options.folder)
    refuse_overwriting(_written(options.folder, place), _inputs(options, subject.model))
    folder = _make_folder(options.folder)

    def on_note(note: str) -> None:
        report(Progress(stage="model", note=note))

    with (
        seams.lock(folder, place.file, wait=options.wait, on_note=on_note),
        quiet_optuna(),
        seams.storage(place) as database,
    ):
        identity = subject.identity(options)
        study = open_study(database, place, folder, options.model, identity, subject.facts)
        study.set_user_attr("request", options.to_record())
        kin = relatives(database, study.study_name)
        for note in notes_on(kin, subject.facts, study):
            report(Progress(stage="model", note=note))
        setting = subject.setting(options, study.study_name, folder)
        if subject.batching is not None:
            study.set_user_attr(BATCHING, to_plain(subject.batching))
        job = Job(
            setting=setting,
            study=study,
            record=_record(setting, study, place, seams),
            spool=Spool(folder, study.study_name),
            preparer=_preparer(setting),
            metric=metric,
            sampler=options.sampler,
            tried=tried,
            kin=kin,
            early_stop=options.early_stop,
            process_options=options.process_options,
            report=report,
            seams=seams,
        )
        return job.run(options.trials, options.timeout_s)


def _preparer(setting: Setting) -> Preparer:
    return Preparer(
        setting.model,
        setting.folder / CACHE,
        workload=setting.workload,
        signature=setting.workload.signature(),
    )


def _settled(options: StudyOptions, subject: "_Subject") -> StudyOptions:
    """Returns the options with the clients, batch sizes and objectives that the study has.

    Raises:
        RequestError: throughput is an objective, and one client runs single samples.
    """
    sizes = () if subject.batching is None else subject.batching.sizes
    options = options.with_changes(clients=subject.clients, batch=sizes)
    options = _with_device_objectives(
        options.with_changes(objectives=options.sought), subject.space
    )
    if subject.clients == 1 and not sizes and objective.THROUGHPUT in options.objectives:
        raise RequestError(
            f"--objective {objective.THROUGHPUT} needs several clients or batch sizes: add "
            "--clients N or --batch 1,2,4. With one client it is the inverse of latency_ms"
        )
    return options


def _check(options: StudyOptions) -> None:
    """Refuses options that no study has, and those that this system lacks.

    Raises:
        RequestError: there is one.
    """
    options.check()
    check_sampler(options.sampler)
    if options.process_options and not has_glibc():
        raise RequestError(
            "--process-options sets thresholds of glibc's allocator, and this system has another C "
            "library; leave it out"
        )


def _with_device_objectives(options: StudyOptions, space: Space) -> StudyOptions:
    """Returns the options with the memory of devices as an objective where it decides.

    That is where the user named no objective and every provider of the study computes on a device
    whose driver tells its memory.
    """
    words = [p.values for p in space.parameters if p.name == EXECUTION_PROVIDER]
    providers = [PROVIDERS[str(word)] for word in (words[0] if words else ("cpu",))]
    on_devices = all(provider.device == "cuda" for provider in providers)
    defaults = (objective.DEFAULT, objective.LOADED_DEFAULT)
    if options.objectives not in defaults or not on_devices or DeviceMemory.start() is None:
        return options
    return options.with_changes(objectives=(options.objectives[0], objective.DEVICE_MEMORY))


def _written(folder: Path, place: Place) -> list[Path]:
    """Returns what a study writes to its folder, as far as it is there, and its database."""
    database: list[Path] = []
    if place.file is not None:
        names = [f"{place.file.name}{end}" for end in ("", "-journal", "-wal", "-shm")]
        database = [place.file.with_name(name) for name in names]
    return [*entries_like(folder, WRITTEN), *database]


def _inputs(options: StudyOptions, model: Model) -> list[Path]:
    """Returns the files and folders that a study reads."""
    inputs = [model.path, *model.data_files, *options.first]
    if options.data is not None:
        inputs += [options.data, *options.data.glob("*.npz")]
    if options.space not in presets():
        inputs.append(Path(options.space))
    return inputs


def _record(setting: Setting, study: optuna.Study, place: Place, seams: Seams) -> Record:
    return Record(
        study,
        worker_of(setting.folder),
        platform.node(),
        shared=place.is_shared,
        counts=lambda trial: counts_within(setting.limits, trial),
        clock=seams.clock,
    )


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """The model, its inputs, the space for it, the machine and the number of clients."""

    model: Model
    workload: Workload
    space: Space
    machine: Hardware
    runtime: Runtime
    batching: Batching | None
    clients: int

    @classmethod
    def of(cls, options: StudyOptions, seams: Seams) -> "_Subject":
        runtime = seams.runtime()
        space = find_space(options.space)
        providers = choose_providers(options.providers, seams.providers())
        offered = {parameter.name for parameter in space.parameters} | options.fix.keys()
        if options.providers and EXECUTION_PROVIDER not in offered:
            raise RequestError(
                f"--providers: the search space {options.space} has no parameter "
                f"{EXECUTION_PROVIDER}; leave --space out, or name one that has"
            )
        model = describe(options.model)
        workload = workload_for(model, options.data, options.shapes, options.seed)
        machine = seams.hardware()
        clients = options.clients or space.clients or 1
        resolved = resolve(
            space, model, workload, machine, options.fix, providers, clients, options.batch
        )
        return cls(
            model=model,
            workload=workload,
            space=resolved,
            machine=machine,
            runtime=runtime,
            batching=batching_of(resolved, model, workload),
            clients=clients,
        )

    @property
    def facts(self) -> Facts:
        return self.machine.facts(self.runtime)

    def identity(self, options: StudyOptions) -> Identity:
        return Identity(
            model_sha256=self.model.sha256,
            workload=self.workload.signature(),
            space=self.space.digest(),
            machine=self.machine.fingerprint(self.runtime),
            objectives=",".join(options.objectives),
            metric=options.metric or "",
            clients=self.clients,
        )

    def setting(self, options: StudyOptions, study: str, folder: Path) -> Setting:
        return Setting(
            study=study,
            folder=folder,
            model=self.model,
            workload=self.workload,
            space=self.space,
            objectives=objective.find(options.objectives),
            limits=options.limits,
            prefer=options.preference,
            seed=options.seed,
            clients=self.clients,
            environment=Environment(
                autotune=__version__,
                onnxruntime=self.runtime.version,
                cpu=self.machine.cpu,
                cores=self.machine.usable_cores,
                fingerprint=self.machine.fingerprint(self.runtime),
            ),
            batching=self.batching,
        )


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise StudyError(f"{folder} is a file; name another folder with --out DIR") from None
    except OSError as error:
        raise StudyError(
            f"cannot make the folder {folder}: {error.strerror}; name another with --out DIR"
        ) from None
    return folder
