"""The real measurer: a fresh process for each candidate, in a duet with the baseline's."""

import math
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autotune.deploy.process_options import ProcessOptions
from autotune.deploy.providers import CACHE_FOLDER
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, StorageError
from autotune.facts.model import Model
from autotune.facts.runtime import without_places
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.coverage import coverage_of, incomparable
from autotune.measure.fidelity import Metric, OutputJudge, OutputMismatchError, Outputs, compare
from autotune.measure.outcome import Effort, Failure, Fidelity, IsBeaten, Outcome, never_beaten
from autotune.measure.provider_cache import ProviderCache
from autotune.measure.raw_samples import keep_raw
from autotune.measure.reference import Reference
from autotune.measure.replies import Loaded
from autotune.measure.requests import (
    SampleFiles,
    request_first_runs,
    request_outputs,
    request_session,
)
from autotune.measure.visit import TimeLimits, Visit
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.space.candidate import Candidate
from autotune.space.session import session_config

_WORKER = "autotune.measure.measure_child"
_EMITTED = "autotune.measure.emitted_child"
# Until the speed of the baseline is known; afterwards the limits follow it.
_FIRST_LIMITS = TimeLimits(load_s=600.0, run_s=300.0)
# Another order of the same sums differs by less, in half precision too.
_SAME_ANSWERS = 1e-3
_CALIBRATION_TURNS = 80
_CALIBRATION_BUDGET_S = 5.0


class DuetMeasurer:
    """Measures candidates of one model with one workload.

    It starts the process of the baseline at once, and :meth:`close` ends it.

    Args:
        model: The model.
        workload: Its inputs.
        preparer: Makes the files of candidates; without one every candidate opens the model itself.
        max_error: Largest fidelity error with which a candidate is still timed.
        metric: The user's own judge of outputs.
        reference_ms: Latency of the baseline as the study knows it; measured if None.
        samples: Folder where the raw run times of each measurement are kept; None keeps none.
        provider_cache: Folder where providers keep what they compile; None means a temporary one.

    Raises:
        CannotMeasureError: the model does not run on these inputs, or its answers cannot be
            compared: they are no numbers, or differ from run to run by more than `max_error`.
    """

    def __init__(
        self,
        model: Model,
        workload: Workload,
        preparer: Preparer | None = None,
        *,
        max_error: float,
        metric: Metric | None = None,
        reference_ms: float | None = None,
        samples: Path | None = None,
        provider_cache: Path | None = None,
    ) -> None:
        self._model = model
        self._dimensions = workload.dimensions(model)
        self._preparer = preparer
        self._twins: dict[str, Candidate] = {}
        self._history = 0
        self._max_error = max_error
        self._samples = samples
        self._limits = _FIRST_LIMITS
        self._reference: Reference | None = None
        self._scratch = tempfile.TemporaryDirectory(dir=scratch.root())
        self._provider_cache = ProviderCache(
            provider_cache or Path(self._scratch.name) / CACHE_FOLDER
        )
        try:
            self._files = SampleFiles.write(workload, Path(self._scratch.name))
            self._judge = self._make_judge(workload, metric)
            self._reference = Reference(self._start_baseline, lambda: self._limits.run_s)
            self._reference_ms = reference_ms or self._reference.calibrate(
                _CALIBRATION_TURNS, _CALIBRATION_BUDGET_S
            )
        except BaseException:
            self.close()
            raise

    @property
    def reference_ms(self) -> float:
        """Latency of the baseline that ratios are multiplied with."""
        return self._reference_ms

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Outcome:
        """Returns the outcome of measuring `candidate` in a process of its own."""
        return self._measured(candidate, effort, is_beaten, None)

    def measure_with(
        self, candidate: Candidate, effort: Effort, process: ProcessOptions
    ) -> Outcome:
        """Returns the outcome of measuring `candidate` in a process with these options."""
        return self._measured(candidate, effort, never_beaten, process)

    def _measured(
        self,
        candidate: Candidate,
        effort: Effort,
        is_beaten: IsBeaten,
        process: ProcessOptions | None,
    ) -> Outcome:
        began = time.monotonic()
        try:
            path = self._path(candidate)
        except PreparationError as error:
            return Failure(kind=error.kind, phase="prepare", message=error.message)
        prepare_s = time.monotonic() - began
        config = session_config(candidate.session.to_json(), self._dimensions)
        outcome = self.measure_session(
            path, config, effort, is_beaten, name=candidate.key, process=process
        )
        if isinstance(outcome, Failure):
            return outcome
        return replace(outcome, spent_s={"prepare": prepare_s, **outcome.spent_s})

    def canonical(self, candidate: Candidate) -> Candidate:
        """Returns the first candidate so far that opens the same session on the same graph.

        Two graph halves are the same where ONNX Runtime optimises their files to the same graph
        and stores weights alike. Its own offline passes stand apart: what they save is the
        optimisation itself, in time and memory of loading.
        """
        half = candidate.graph
        if self._preparer is None or "ort_" in str(half.to_json().get("pre_pass", "")):
            return candidate
        try:
            digest = self._preparer.looked_at(half.to_json()).graph_digest
        except PreparationError:
            return candidate
        if digest is None:
            return candidate
        storage = half.to_json().get("storage", "inline")
        first = self._twins.setdefault(f"{digest} {storage}", half)
        return Candidate.of({**candidate.session.to_json(), **first.to_json()})

    def measure_session(
        self,
        path: Path,
        config: SessionConfig,
        effort: Effort,
        is_beaten: IsBeaten = never_beaten,
        *,
        name: str = "session",
        process: ProcessOptions | None = None,
    ) -> Outcome:
        """Returns the outcome of opening `path` as `config` says; see :meth:`measure`.

        Args:
            path: The model's file.
            config: How it is opened.
            effort: How much this may cost.
            is_beaten: Asked meanwhile whether more of it is worth it.
            name: Name of the file with the raw run times.
            process: Options of its process; None leaves them.
        """
        if self._reference is None:
            raise RuntimeError("closed")
        if failure := self._compile(path, config):
            return failure
        with _start_worker() as child:
            visit = Visit(child, self._files, self._limits)
            try:
                if failure := visit.open(
                    path, config, self._provider_cache, history=self._history, process=process
                ):
                    return failure
                visit.first_runs()
                if failure := visit.judge(self._judge, self._max_error):
                    return failure
                duet = visit.play(self._reference, effort, is_beaten, self._reference_ms)
            except ChildFailure as fault:
                return Failure(kind=fault.kind, phase=visit.phase, message=fault.message)
        measurement = visit.measurement(duet, self._reference_ms)
        if self._samples is None:
            return measurement
        return replace(measurement, samples=keep_raw(duet, self._samples, name))

    def _compile(self, path: Path, config: SessionConfig) -> Failure | None:
        """Lets a provider compile the model in a process of its own, once; returns why it cannot.

        The measured process then finds the result in the cache, as an application does from its
        second start on, and its memory is not that of the compiler.
        """
        cache = self._provider_cache
        if not config.provider_cache or cache.first_load_ms(path, config):
            return None
        cache.folder.mkdir(parents=True, exist_ok=True)
        with _start_worker() as child:
            visit = Visit(child, self._files, self._limits)
            try:
                if failure := visit.open(path, config, cache):
                    return failure
            except ChildFailure as fault:
                return Failure(kind=fault.kind, phase=visit.phase, message=fault.message)
        cache.remember(path, config, visit.load_ms)
        return None

    def answers_of(self, config: Path) -> Fidelity | Failure:
        """Returns how right the answers of an emitted config are; see :class:`Measurer`."""
        with Child(_EMITTED, memory_limit()) as child:
            try:
                message = {"do": "load", "config": str(config.resolve())}
                child.request(message, self._limits.load_s, Loaded)
                outputs = request_outputs(child, self._files, self._limits.run_s)
                return self._judge.compare(outputs)
            except ChildFailure as fault:
                return Failure(kind=fault.kind, phase="answers", message=fault.message)
            except OutputMismatchError as mismatch:
                return Failure(kind="wrong_answers", phase="answers", message=str(mismatch))

    def rescale(self, reference_ms: float) -> None:
        """Takes another latency of the baseline to multiply ratios with."""
        self._reference_ms = reference_ms

    def renew(self) -> None:
        """Starts the reference again; later processes have another history of the heap."""
        if self._reference is None:
            raise RuntimeError("closed")
        self._history += 1
        self._reference.renew()

    def close(self) -> None:
        """Ends the reference and removes what was written for it."""
        if self._reference is not None:
            self._reference.stop()
            self._reference = None
        self._scratch.cleanup()

    def _path(self, candidate: Candidate) -> Path:
        if self._preparer is None:
            return self._source
        try:
            return self._preparer.prepare(candidate.graph.to_json()).path
        except OSError as error:
            raise StorageError(
                f"cannot write prepared models to {self._preparer.cache.root}: {error.strerror}; "
                "make room and type the same command again"
            ) from None

    def _make_judge(self, workload: Workload, metric: Metric | None) -> OutputJudge:
        """Returns what compares outputs with those of no optimisation, on the CPU."""
        plain = SessionConfig(options={"graph_optimization_level": "ORT_DISABLE_ALL"})
        with _start_worker() as child:
            try:
                request_session(child, self._files, self._source, plain, self._limits.load_s)
                references = request_outputs(child, self._files, self._limits.run_s)
                repeated = request_outputs(child, self._files, self._limits.run_s)
            except ChildFailure as failure:
                raise CannotMeasureError(
                    f"{self._model.path.name} does not run on these inputs ({failure.kind}): "
                    f"{without_places(failure.message).rstrip('.')}. Give real ones with --data, "
                    "or their sizes with --shape."
                ) from None
        if reason := incomparable(references):
            raise CannotMeasureError(
                f"the answers of {self._model.path.name} cannot be compared on these inputs: "
                f"{reason}. Give other inputs with --data."
            )
        coverage = coverage_of(references, self._repeat_error(references, repeated))
        return OutputJudge(references, workload.validation, metric, coverage)

    def _repeat_error(self, references: Sequence[Outputs], repeated: Sequence[Outputs]) -> float:
        """Returns the error between two runs of the unoptimised model on the same samples.

        Raises:
            CannotMeasureError: it alone is larger than a right answer's may be.
        """
        try:
            error = compare(references, repeated).error
            difference = f"error {error:.2g} between two runs on the same inputs"
        except OutputMismatchError as mismatch:
            error, difference = math.inf, f"in the second run {mismatch}"
        if error < _SAME_ANSWERS:
            return 0.0
        if not (math.isfinite(error) and error <= self._max_error):
            raise CannotMeasureError(
                f"the answers of {self._model.path.name} differ from run to run ({difference}), so "
                "they cannot be compared. Export the model for inference, without dropout and "
                "without random numbers."
            )
        return error

    def _start_baseline(self) -> tuple[Child, float]:
        """Returns a process with the baseline's session, frozen, and the time of a run in ms."""
        config = session_config({}, self._dimensions)
        child = _start_worker()
        try:
            opened = request_session(child, self._files, self._source, config, _FIRST_LIMITS.load_s)
            runs = request_first_runs(child, _FIRST_LIMITS.run_s)
        except ChildFailure as failure:
            child.stop()
            raise CannotMeasureError(
                f"{self._model.path.name} does not run with default options ({failure.kind}): "
                f"{without_places(failure.message)}"
            ) from None
        except BaseException:
            child.stop()
            raise
        child.freeze()
        # generous: a candidate may well be slower, and the machine busier than now
        self._limits = TimeLimits(
            load_s=max(60.0, 20 * opened.load_ms / 1e3),
            run_s=max(30.0, 200 * max(runs.first_run_ms, runs.run_ms) / 1e3),
        )
        return child, runs.run_ms

    @property
    def _source(self) -> Path:
        """The model's own file; children work in other folders than this process."""
        return self._model.path.resolve()


def _start_worker() -> Child:
    return Child(_WORKER, memory_limit())
