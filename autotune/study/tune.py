"""The study: from a model and a wish to a tuned config that is proven."""

import math
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune import __version__
from autotune.deploy.config import Environment
from autotune.deploy.records import to_plain
from autotune.errors import RequestError, StudyError
from autotune.facts import workload as workloads
from autotune.facts.hardware import hardware
from autotune.facts.model import describe
from autotune.facts.runtime import runtime
from autotune.graph.prepare import Preparer
from autotune.results.emit import CACHE
from autotune.results.result import StudyResult
from autotune.search.objective import DEFAULT, check_preference
from autotune.search.objective import find as find_objectives
from autotune.search.portfolio import DEFAULT_SAMPLER
from autotune.search.transfer import prior, starting_points
from autotune.search.trial import Limits
from autotune.space import space as spaces
from autotune.space.resolve import resolve
from autotune.space.start import read_candidate
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.storage.identity import Identity, notes_on, open_study
from autotune.storage.locks import exclusive_use
from autotune.storage.relatives import relatives
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, driver_of
from autotune.study.job import Job
from autotune.study.metric import load as load_metric
from autotune.study.progress import OnProgress, Progress
from autotune.study.request import Request
from autotune.study.sampler import check_sampler

_MAX_ERROR = 0.05


def tune(
    model: str | os.PathLike[str],
    *,
    trials: int = 100,
    timeout_s: float | None = None,
    space: str = "default",
    fix: Mapping[str, str] | None = None,
    data: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    max_error: float | None = None,
    metric: str | None = None,
    max_drop: float = 0.01,
    max_memory_mib: float | None = None,
    max_latency_ms: float | None = None,
    objectives: Sequence[str] = DEFAULT,
    prefer: str | None = None,
    out: str | os.PathLike[str] | None = None,
    storage: str | None = None,
    seed: int = 0,
    sampler: str = DEFAULT_SAMPLER,
    first: Sequence[str | os.PathLike[str]] = (),
    early_stop: bool = True,
    on_progress: OnProgress | None = None,
) -> StudyResult:
    """Finds how ONNX Runtime runs `model` best on this machine, and writes it down.

    The same job as ``autotune study``. A study that exists in the folder goes on; nothing is
    measured twice. Call it from the main thread: measuring processes end with the thread that
    started them.

    Args:
        model: The .onnx file; it is never written to.
        trials: How many candidates to measure in all, earlier runs of the study included.
        timeout_s: Stop searching after this time; the run-off follows.
        space: Name of a preset, or a TOML file.
        fix: Parameters that have one value in all candidates but the baseline.
        data: Samples: an .npz file or a folder of them; generated if None.
        shapes: Shapes of generated inputs by name.
        max_error: Largest relative L2 error of an output; 0.05 if None, and no limit where there is
            a `metric`.
        metric: ``module:function``, called with outputs, references and inputs (a list each, of
            samples that map names to arrays); returns a number that is better the higher it is.
        max_drop: By how much the metric may fall below that of the unoptimised model.
        max_memory_mib: Largest peak memory that a session may add.
        max_latency_ms: Longest run.
        objectives: What to make small, by name: of ``latency_ms``, ``peak_memory_mib``, ``cpu_s``
            (CPU seconds a run), ``load_ms`` (cold start) and ``p99_ms``.
        prefer: What to emit of the front: the word of an objective (``latency``, ``memory``,
            ``cpu``, ``load``, ``p99``) or ``balanced``; the first objective if None.
        out: The folder to write to; ``model.autotune`` beside the working directory if None.
        storage: URL of the storage that keeps the record, such as ``postgresql://user@host/name``,
            which many machines of one kind may share; the variable ``AUTOTUNE_STORAGE`` if None, a
            SQLite file in the folder if that is not set either.
        seed: Of everything random.
        sampler: What chooses the candidates, by name: ``effects`` (a model of the effects of all
            values), or Optuna's ``tpe``, ``tpe_independent``, ``nsga2``, ``random``, ``brute``.
        first: Files with what is measured right after the default: tuned configs, or JSON objects
            of parameters and values.
        early_stop: Whether the search ends when the front has not moved for long and no candidate
            promises more; only ``effects`` knows.
        on_progress: Called as the study goes on.

    Returns:
        What was found; ``result.folder / "best.json"`` is what :func:`autotune.load` takes.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
        Interrupted: Ctrl-C after the baseline was measured.
    """
    report = on_progress or (lambda _: None)
    if max_error is None:
        max_error = _MAX_ERROR if metric is None else math.inf
    _check_request(trials, timeout_s, max_error, max_drop)
    judge = None if metric is None else load_metric(metric)
    wished = find_objectives(objectives)
    prefer = prefer or wished[0].word
    check_preference(prefer, wished)
    check_sampler(sampler)
    tried = [read_candidate(Path(file)) for file in first]
    installed = runtime()
    wanted = spaces.find(space)
    limits = Limits(
        max_error=max_error,
        max_memory_mib=max_memory_mib,
        max_latency_ms=max_latency_ms,
        max_drop=None if metric is None else max_drop,
    )
    path = Path(model)
    report(Progress(stage="model"))
    if data is not None and shapes:
        raise RequestError("--data brings its own shapes; leave --shape out")
    found = describe(path)
    if data is None:
        workload = workloads.generate(found, shapes or {}, seed)
    else:
        workload = workloads.read(found, Path(data))
    machine = hardware()
    resolved = resolve(wanted, found, workload, machine, fix)
    folder = _make_folder(Path(out) if out is not None else Path(f"{path.stem}.autotune"))
    place = Place.of(storage, folder)
    request = Request(
        model=path.resolve(),
        trials=trials,
        timeout_s=timeout_s,
        space=space if space in spaces.presets() else str(Path(space).resolve()),
        fix=dict(fix or {}),
        data=None if data is None else Path(data).resolve(),
        shapes={name: tuple(sizes) for name, sizes in (shapes or {}).items()},
        max_error=max_error if math.isfinite(max_error) else None,
        max_drop=max_drop,
        max_memory_mib=max_memory_mib,
        max_latency_ms=max_latency_ms,
        objectives=tuple(objectives),
        prefer=prefer,
        seed=seed,
        sampler=sampler,
        early_stop=early_stop,
    )
    with exclusive_use(folder, place.file), quiet_optuna(), open_storage(place) as database:
        identity = Identity(
            model_sha256=found.sha256,
            workload=workload.signature(),
            space=resolved.digest(),
            machine=machine.fingerprint(installed),
            objectives=",".join(objective.name for objective in wished),
            metric=metric or "",
        )
        study = open_study(database, place, folder, path, identity, machine.facts(installed))
        study.set_user_attr("request", to_plain(request))
        kin = relatives(database, study.study_name)
        for note in notes_on(kin, machine.facts(installed), study):
            report(Progress(stage="model", note=note))
        job = Job(
            study=study,
            record=Record(study, driver_of(folder), platform.node(), shared=place.is_shared),
            spool=Spool(folder, study.study_name),
            folder=folder,
            model=found,
            workload=workload,
            preparer=Preparer(
                found, folder / CACHE, workload=workload, signature=workload.signature()
            ),
            metric=judge,
            space=resolved,
            objectives=wished,
            limits=limits,
            prefer=prefer,
            seed=seed,
            report=report,
            environment=Environment(
                autotune=__version__,
                onnxruntime=installed.version,
                cpu=machine.cpu,
                cores=machine.usable_cores,
                fingerprint=machine.fingerprint(installed),
            ),
            sampler=sampler,
            first=[
                *tried,
                *starting_points(kin, resolved, machine.usable_cores, limits, wished),
            ],
            prior=prior(kin, resolved, machine.usable_cores, wished),
            early_stop=early_stop,
        )
        return job.run(trials, timeout_s)


def _check_request(trials: int, timeout_s: float | None, max_error: float, max_drop: float) -> None:
    if trials < 1:
        raise RequestError(f"--trials must be at least 1, not {trials}")
    if timeout_s is not None and timeout_s <= 0:
        raise RequestError(f"--timeout must be more than 0, not {timeout_s:g} s")
    if not max_error > 0:
        raise RequestError(f"--max-error must be more than 0, not {max_error:g}")
    if not 0 <= max_drop < math.inf:
        raise RequestError(f"--max-drop must be at least 0, not {max_drop:g}")


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
