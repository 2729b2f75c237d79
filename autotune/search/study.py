"""The study: from a model and a wish to a tuned config that is proven."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna

from autotune import __version__
from autotune.config import Environment, Evidence, Interval, Requires
from autotune.errors import CannotMeasureError, RequestError, StudyError
from autotune.facts import workload as workloads
from autotune.facts.hardware import Hardware, hardware
from autotune.facts.model import Model, describe
from autotune.facts.runtime import Runtime, runtime
from autotune.facts.workload import Workload
from autotune.graph.prepare import prepare
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Failure, Measurer
from autotune.search import pareto, storage
from autotune.search.emit import emit
from autotune.search.loop import OnProgress, Progress, Search
from autotune.search.result import Member, StudyResult
from autotune.search.runoff import Finalist, choose, finalists, run_off
from autotune.search.trial import Limits, Trial
from autotune.space import space as spaces
from autotune.space.space import Space


class Interrupted(KeyboardInterrupt):
    """A study was interrupted after its baseline was measured; the best so far is written.

    Attributes:
        result: What was written, with the numbers of the search.
    """

    def __init__(self, result: StudyResult) -> None:
        super().__init__()
        self.result = result


def tune(
    model: str | os.PathLike[str],
    *,
    trials: int = 100,
    timeout_s: float | None = None,
    space: str = "default",
    fix: Mapping[str, str] | None = None,
    data: str | os.PathLike[str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    max_error: float = 0.05,
    max_memory_mib: float | None = None,
    max_latency_ms: float | None = None,
    prefer: pareto.Preference = "latency",
    out: str | os.PathLike[str] | None = None,
    seed: int = 0,
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
        max_error: Largest relative L2 error of an output.
        max_memory_mib: Largest peak memory that a session may add.
        max_latency_ms: Longest run.
        prefer: What to emit of the front.
        out: The folder to write to; ``model.autotune`` beside the working directory if None.
        seed: Of everything random.
        on_progress: Called as the study goes on.

    Returns:
        What was found; ``result.folder / "best.json"`` is what :func:`autotune.load` takes.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
        Interrupted: Ctrl-C after the baseline was measured.
    """
    report = on_progress or (lambda _: None)
    _check_request(trials, timeout_s, max_error, prefer)
    installed = runtime()
    wanted = spaces.find(space)
    limits = Limits(
        max_error=max_error, max_memory_mib=max_memory_mib, max_latency_ms=max_latency_ms
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
    resolved = spaces.resolve(wanted, found, workload, machine, fix)
    folder = _make_folder(Path(out) if out is not None else Path(f"{path.stem}.autotune"))
    with storage.sole_driver(folder), storage.quiet_optuna(), storage.storage_faults(folder):
        study = _open_study(folder, found, workload, resolved, machine, installed)
        job = _Job(
            study=study,
            folder=folder,
            model=found,
            workload=workload,
            space=resolved,
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
        )
        return job.run(trials, timeout_s)


def _check_request(trials: int, timeout_s: float | None, max_error: float, prefer: str) -> None:
    if trials < 1:
        raise RequestError(f"--trials must be at least 1, not {trials}")
    if timeout_s is not None and timeout_s <= 0:
        raise RequestError(f"--timeout must be more than 0, not {timeout_s:g} s")
    if not max_error > 0:
        raise RequestError(f"--max-error must be more than 0, not {max_error:g}")
    if prefer not in pareto.PREFERENCES:
        raise RequestError(pareto.unknown_preference(prefer))


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


def _open_study(
    folder: Path,
    model: Model,
    workload: Workload,
    space: Space,
    machine: Hardware,
    installed: Runtime,
) -> optuna.Study:
    """Returns the study of exactly this model, workload, space and machine, new or to go on with.

    Raises:
        StudyError: the folder belongs to another model.
    """
    database = storage.open_storage(folder)
    for other in database.get_all_studies():
        theirs = other.user_attrs.get("model_sha256")
        if theirs is not None and theirs != model.sha256:
            raise StudyError(
                f"{folder} holds a study of another model "
                f"({other.user_attrs.get('model', 'unknown')}, or an earlier version of this one); "
                "give this one a folder of its own with --out DIR"
            )
    parts = [
        model.sha256,
        workload.signature(),
        space.digest(),
        machine.fingerprint(installed),
    ]
    name = f"{model.path.stem}-{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:12]}"
    study = optuna.create_study(
        storage=database,
        study_name=name,
        directions=["minimize", "minimize"],
        load_if_exists=True,
    )
    if "model_sha256" not in study.user_attrs:
        study.set_metric_names(storage.METRICS)
        study.set_user_attr("model", model.path.name)
        for key, part in zip(("model_sha256", "workload", "space", "machine"), parts, strict=True):
            study.set_user_attr(key, part)
    return study


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One call of :func:`tune`, everything about it settled."""

    study: optuna.Study
    folder: Path
    model: Model
    workload: Workload
    space: Space
    limits: Limits
    prefer: pareto.Preference
    seed: int
    report: OnProgress
    environment: Environment

    def run(self, trials: int, timeout_s: float | None) -> StudyResult:
        """Returns the result after searching and the run-off."""
        for note in self.workload.notes:
            self.report(Progress(stage="model", note=note))
        known = storage.trials(self.study)
        if len(known) >= trials and (earlier := self._earlier_result(len(known))):
            return earlier
        self.report(Progress(stage="baseline"))
        measurer = self._open_measurer()
        try:
            search = Search(
                study=self.study,
                space=self.space,
                limits=self.limits,
                measurer=measurer,
                seed=self.seed,
                report=self.report,
            )
            try:
                search.run(trials, timeout_s)
                return self._conclude(search, measurer)
            except KeyboardInterrupt:
                if search.baseline is None or search.baseline.measurement is None:
                    raise
                raise Interrupted(self._cut_short(search, search.baseline)) from None
        finally:
            measurer.close()

    def _earlier_result(self, count: int) -> StudyResult | None:
        """Returns what the folder holds already, if it is of this study as it stands."""
        try:
            earlier = StudyResult.read(self.folder)
        except StudyError:
            return None
        same = (
            earlier.complete
            and earlier.study == self.study.study_name
            and earlier.trials == count
            and earlier.prefer == self.prefer
            and earlier.limits == _plain_limits(self.limits)
        )
        if not same:
            return None
        self.report(
            Progress(
                stage="done",
                note=f"all {count} trials are measured already; --trials {2 * count} goes on",
            )
        )
        return earlier

    def _open_measurer(self) -> Measurer:
        known_ms = self.study.user_attrs.get("reference_ms")
        measurer = DuetMeasurer(
            self.model, self.workload, max_error=self.limits.max_error, reference_ms=known_ms
        )
        if known_ms is None:
            self.study.set_user_attr("reference_ms", measurer.reference_ms)
        return measurer

    def _conclude(self, search: Search, measurer: Measurer) -> StudyResult:
        """Returns the result by the run-off, written down."""
        baseline = search.baseline
        if baseline is None or baseline.measurement is None:
            reason = (
                baseline.outcome.message
                if baseline and isinstance(baseline.outcome, Failure)
                else "no trial"
            )
            raise CannotMeasureError(f"the default itself could not be measured: {reason}")
        began = time.monotonic()

        def on_step(done: int, total: int) -> None:
            remaining = (time.monotonic() - began) / done * (total - done)
            self.report(Progress(stage="run-off", done=done, total=total, remaining_s=remaining))

        chosen = finalists(search.trials, self.limits)
        self.report(Progress(stage="run-off", total=1))
        found = run_off(measurer, baseline, chosen, seed=self.seed, on_step=on_step)
        picked = choose(found, self.limits, self.prefer)
        best = pareto.front(found, lambda f: (f.latency_ms, f.peak_memory_mib))
        kept = [found[0], *(item for item in best if item is not found[0])]
        if picked not in kept:
            kept.append(picked)
        return self._write(search, kept, picked, complete=True)

    def _cut_short(self, search: Search, baseline: Trial) -> StudyResult:
        """Returns the result by the search's own numbers, written down."""
        found = [_unconfirmed(t, baseline) for t in finalists(search.trials, self.limits)]
        everything = [_unconfirmed(baseline, baseline), *found]
        picked = choose(everything, self.limits, self.prefer)
        return self._write(search, everything, picked, complete=False)

    def _write(
        self, search: Search, found: Sequence[Finalist], picked: Finalist, *, complete: bool
    ) -> StudyResult:
        members = tuple(self._member(item, found[0]) for item in found)
        failures = Counter(t.outcome.kind for t in search.trials if isinstance(t.outcome, Failure))
        result = StudyResult(
            study=self.study.study_name,
            folder=self.folder,
            model=self.model.path.resolve(),
            model_sha256=self.model.sha256,
            picked=picked.trial.number,
            prefer=self.prefer,
            limits=_plain_limits(self.limits),
            members=(members[0], *sorted(members[1:], key=lambda m: m.evidence.latency_ms)),
            trials=len(search.trials),
            failed=dict(failures),
            left_out=self.space.left_out,
            notes=self.workload.notes,
            dimensions=self.workload.dimensions(self.model),
            requires=Requires(providers=("CPUExecutionProvider",)),
            environment=self.environment,
            complete=complete,
            files=(),
        )
        return emit(result, prepare(self.model, picked.trial.candidate))

    def _member(self, item: Finalist, baseline: Finalist) -> Member:
        candidate = item.trial.candidate
        return Member(
            candidate=candidate.to_json(),
            words=candidate.in_words(),
            admitted=self.limits.admit(item.latency_ms, item.peak_memory_mib, item.error),
            evidence=Evidence(
                latency_ms=item.latency_ms,
                baseline_latency_ms=baseline.latency_ms,
                speedup=item.speedup,
                peak_memory_mib=item.peak_memory_mib,
                baseline_peak_memory_mib=baseline.peak_memory_mib,
                error=item.error,
                error_data=self.workload.source,
                rounds=item.rounds,
                significant=item.significant,
                trial=item.trial.number,
            ),
        )


def _unconfirmed(trial: Trial, baseline: Trial) -> Finalist:
    """Returns a trial as a finalist by the search's numbers; see :class:`Evidence`."""
    mine, base = trial.measurement, baseline.measurement
    assert mine is not None
    assert base is not None
    scale = base.ratio.value
    own = trial is baseline
    speedup = Interval(
        value=1.0 if own else scale / mine.ratio.value,
        low=1.0 if own else scale / mine.ratio.high,
        high=1.0 if own else scale / mine.ratio.low,
    )
    return Finalist(
        trial=trial,
        speedup=speedup,
        latency_ms=mine.latency_ms,
        peak_memory_mib=mine.peak_memory_mib,
        error=mine.fidelity.error,
        rounds=0,
        # one process each, and the luckiest of many: only a clear lead counts
        significant=speedup.low > 1.05,
    )


def _plain_limits(limits: Limits) -> dict[str, float | None]:
    return {
        "max_error": limits.max_error,
        "max_memory_mib": limits.max_memory_mib,
        "max_latency_ms": limits.max_latency_ms,
    }
