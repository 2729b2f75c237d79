"""The real measurer: a fresh process for each candidate, in a duet with the baseline's."""

import itertools
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from autotune.deploy.config import SessionConfig
from autotune.errors import CannotMeasureError, StorageError
from autotune.facts.feeds import save_samples
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure import answers
from autotune.measure.duet import Duet, play
from autotune.measure.fidelity import Metric, Outputs, compare
from autotune.measure.measure_child import REPLIES
from autotune.measure.outcome import (
    Effort,
    Failure,
    Fidelity,
    IsBeaten,
    Measurement,
    Memory,
    Outcome,
    never_beaten,
)
from autotune.measure.reference import Reference
from autotune.measure.statistics import percentile
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, Message, memory_limit
from autotune.space.candidate import Candidate
from autotune.space.session import session_config

_WORKER = "autotune.measure.measure_child"
# Until the baseline is known; afterwards limits follow it.
_LOAD_LIMIT_S = 600.0
_RUN_LIMIT_S = 300.0
_CALIBRATION_TURNS = 80
_CALIBRATION_BUDGET_S = 5.0


class DuetMeasurer:
    """Measures candidates of one model with one workload; see :class:`Measurer`.

    Args:
        model: The model.
        workload: Its inputs.
        preparer: What makes the files of candidates.
        max_error: Largest fidelity error with which a candidate is still timed.
        metric: The user's own judge of outputs.
        reference_ms: Latency of the baseline as the study knows it; measured if None.
        samples: Folder where the raw run times of each measurement are kept; None keeps none.
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
    ) -> None:
        self._model = model
        self._dimensions = workload.dimensions(model)
        self._one_shape = workload.one_shape
        self._preparer = preparer
        self._twins: dict[str, Candidate] = {}
        self._max_error = max_error
        self._metric = metric
        self._inputs = workload.validation
        self._samples = samples
        self._scratch = tempfile.TemporaryDirectory(dir=scratch.root())
        folder = Path(self._scratch.name)
        self._timing = folder / "timing.npz"
        self._validation = folder / "validation.npz"
        self._answers = folder / "answers.npz"
        save_samples(workload.timing, self._timing)
        save_samples(workload.validation, self._validation)
        self._reference: Reference | None = None
        self._run_limit_s = _RUN_LIMIT_S
        try:
            self._expected = self._reference_answers()
            self._expected_metric = self._judged(self._expected)
            self._reference = Reference(self._open_baseline, lambda: self._run_limit_s)
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
        began = time.monotonic()
        try:
            path = self._path(candidate)
        except PreparationError as error:
            return Failure(kind=error.kind, phase="prepare", message=error.message)
        prepare_s = time.monotonic() - began
        config = session_config(candidate.session.to_json(), self._dimensions)
        found = self.measure_session(path, config, effort, is_beaten, name=candidate.key)
        if isinstance(found, Failure):
            return found
        return replace(found, spent_s={"prepare": prepare_s, **found.spent_s})

    def canonical(self, candidate: Candidate) -> Candidate:
        """Returns the first candidate seen that opens the same session on the same graph.

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
    ) -> Outcome:
        """Returns the outcome of opening `path` as `config` says; see :meth:`measure`.

        Args:
            path: The model's file.
            config: How it is opened.
            effort: How much this may cost.
            is_beaten: Asked meanwhile whether more of it is worth it.
            name: Of the file with the raw run times.
        """
        with Child(_WORKER, memory_limit(), REPLIES) as child:
            visit = _Visit(child)
            try:
                visit.phase = "open"
                visit.opened = self._open(child, path, config, self._load_limit_s)
                visit.lap("start")
                visit.book(visit.opened["load_ms"] / 1e3, "start", "open")
                visit.phase = "run"
                visit.ran = child.request({"do": "first_runs"}, self._run_limit_s)
                visit.lap("first_runs")
                visit.phase = "answers"
                visit.fidelity = self._fidelity(self._run_answers(child, self._run_limit_s))
                visit.lap("answers")
                # infinite: not a number where there should be one, however lenient the limit
                if visit.fidelity.error > self._max_error or visit.fidelity.error == np.inf:
                    return visit.wrong_answers(self._max_error)
                visit.phase = "turns"
                duet = self._duet(visit, effort, is_beaten)
            except ChildFailure as failure:
                return Failure(kind=failure.kind, phase=visit.phase, message=failure.message)
            visit.lap("other")
        for part, seconds in duet.spent_s.items():
            visit.book(seconds, "other", part)
        found = visit.measurement(duet, self._reference_ms)
        return replace(found, samples=self._keep(name, duet))

    def _path(self, candidate: Candidate) -> Path:
        if self._preparer is None:
            return self._model.path.resolve()
        try:
            return self._preparer.prepare(candidate.graph.to_json()).path
        except OSError as error:
            raise StorageError(
                f"cannot write prepared models to {self._preparer.cache.root}: {error.strerror}; "
                "make room and type the same command again"
            ) from None

    def rescale(self, reference_ms: float) -> None:
        """Takes another latency of the baseline to multiply ratios with."""
        self._reference_ms = reference_ms

    def renew(self) -> None:
        """Starts the reference again."""
        if self._reference is None:
            raise RuntimeError("closed")
        self._reference.renew()

    def close(self) -> None:
        """Ends the reference and removes what was written for it."""
        if self._reference is not None:
            self._reference.stop()
            self._reference = None
        self._scratch.cleanup()

    def _open(self, child: Child, model: Path, config: SessionConfig, limit_s: float) -> Message:
        samples = str(self._timing)
        request = {"do": "open", "model": str(model), "session": config.to_json()}
        shapes = {"samples": samples, "one_shape": self._one_shape}
        return child.request({**request, **shapes}, limit_s)

    def _reference_answers(self) -> list[dict[str, np.ndarray]]:
        """Returns the outputs that all others are compared with: no optimisation, on the CPU."""
        plain = SessionConfig(options={"graph_optimization_level": "ORT_DISABLE_ALL"})
        with Child(_WORKER, memory_limit(), REPLIES) as child:
            try:
                self._open(child, self._model.path.resolve(), plain, _LOAD_LIMIT_S)
                return self._run_answers(child, _RUN_LIMIT_S)
            except ChildFailure as failure:
                raise CannotMeasureError(
                    f"{self._model.path.name} does not run on these inputs ({failure.kind}): "
                    f"{failure.message}. Give real ones with --data, or their sizes with --shape."
                ) from None

    def _run_answers(self, child: Child, limit_s: float) -> list[dict[str, np.ndarray]]:
        request = {"do": "answers", "samples": str(self._validation), "to": str(self._answers)}
        self._answers.unlink(missing_ok=True)  # another candidate's must not pass for this one's
        child.request(request, limit_s)
        return answers.read(self._answers)

    def _fidelity(self, outputs: Sequence[Outputs]) -> Fidelity:
        """Returns how far the outputs are from the unoptimised model's."""
        found = compare(self._expected, outputs)
        if self._expected_metric is None or found.error == np.inf:
            return found
        told = self._judged(outputs)
        assert told is not None
        return replace(found, metric=told, drop=self._expected_metric - told)

    def _judged(self, outputs: Sequence[Outputs]) -> float | None:
        return None if self._metric is None else self._metric(outputs, self._expected, self._inputs)

    def _open_baseline(self) -> tuple[Child, float]:
        """Returns a process with the baseline's session, frozen, and the ms of a run."""
        child = Child(_WORKER, memory_limit(), REPLIES)
        config = session_config({}, self._dimensions)
        try:
            opened = self._open(child, self._model.path.resolve(), config, _LOAD_LIMIT_S)
            ran = child.request({"do": "first_runs"}, _RUN_LIMIT_S)
        except ChildFailure as failure:
            child.stop()
            raise CannotMeasureError(
                f"{self._model.path.name} does not run with default options ({failure.kind}): "
                f"{failure.message}"
            ) from None
        except BaseException:
            child.stop()
            raise
        child.freeze()
        # generous: a candidate may well be slower, and the machine busier than now
        self._load_limit_s = max(60.0, 20 * opened["load_ms"] / 1e3)
        self._run_limit_s = max(30.0, 200 * max(ran["first_run_ms"], ran["run_ms"]) / 1e3)
        return child, ran["run_ms"]

    def _duet(self, visit: "_Visit", effort: Effort, is_beaten: IsBeaten) -> Duet:
        """Returns the duet; a reference that died is started again once."""

        def check(duet: Duet) -> bool:
            visit.raced = is_beaten(visit.measurement(duet, self._reference_ms))
            return visit.raced

        visit.before = visit.after = visit.child.request({"do": "held"}, self._run_limit_s)
        visit.child.freeze()
        for last_try in (False, True):
            assert self._reference is not None
            try:
                duet = play(
                    self._reference,
                    visit.child,
                    run_ms=visit.ran["run_ms"],
                    effort=effort,
                    limit_s=self._run_limit_s,
                    is_beaten=check,
                )
            except ChildFailure:
                if last_try or self._reference.is_running():
                    raise
                self._reference.renew()
            else:
                visit.child.thaw()
                visit.after = visit.child.request({"do": "held"}, self._run_limit_s)
                return duet
        raise AssertionError("unreachable")

    def _keep(self, name: str, duet: Duet) -> str | None:
        """Writes the raw run times to a file of their own; returns its name."""
        if self._samples is None:
            return None
        numbers = (f"{name}-{i}.npz" for i in itertools.count(1))
        file = next(f for f in numbers if not (self._samples / f).exists())
        try:
            self._samples.mkdir(exist_ok=True)
            write_raw(duet, self._samples / file)
        except OSError as error:
            raise StorageError(
                f"cannot write raw run times to {self._samples}: {error.strerror}; make room and "
                "type the same command again"
            ) from None
        return file


def write_raw(duet: Duet, path: Path) -> None:
    """Writes a duet's raw times: for each side all runs, one after another, and runs per turn.

    The arrays are ``reference_ns``, ``reference_runs``, ``candidate_ns``, ``candidate_runs``,
    ``candidate_cpu_ns`` (one per turn), ``before`` (number of the reference's turn before each of
    the candidate's) and ``quiet_ms``.
    """
    arrays: dict[str, np.ndarray] = {}
    for side, turns in (("reference", duet.reference), ("candidate", duet.candidate)):
        arrays[f"{side}_ns"] = np.asarray([ns for turn in turns for ns in turn.run_ns])
        arrays[f"{side}_runs"] = np.asarray([len(turn.run_ns) for turn in turns])
    np.savez_compressed(
        path,
        **arrays,  # type: ignore[arg-type]  # numpy's stub takes them for allow_pickle
        candidate_cpu_ns=np.asarray([turn.cpu_ns for turn in duet.candidate]),
        before=np.asarray(duet.before),
        quiet_ms=np.asarray(duet.quiet_ms),
    )


class _Visit:
    """One candidate's process and what it told, phase by phase."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.phase = ""
        self.opened: Message = {}
        self.ran: Message = {}
        self.before: Message = {}
        self.after: Message = {}
        self.fidelity: Fidelity
        self.raced = False
        self._spent_s: dict[str, float] = {}
        self._last = time.monotonic()

    def lap(self, part: str) -> None:
        """Books the time since the last call on `part`."""
        now = time.monotonic()
        self._spent_s[part] = now - self._last
        self._last = now

    def book(self, seconds: float, part: str, to: str) -> None:
        """Books time of one part on another."""
        self._spent_s[part] -= seconds
        self._spent_s[to] = seconds

    def wrong_answers(self, max_error: float) -> Failure:
        """Returns the failure of a candidate whose answers are too far off."""
        error = self.fidelity.error
        if error == np.inf:
            message = "an output has another shape, or NaN or infinity where it should have numbers"
            return Failure(kind="wrong_answers", phase=self.phase, message=message)
        message = f"error {error:.2g} is above {max_error:g}"
        return Failure(kind="wrong_answers", phase=self.phase, message=message, error=error)

    def measurement(self, duet: Duet, reference_ms: float) -> Measurement:
        """Returns the numbers by the turns so far."""
        turns = duet.quiet_candidate
        run_ms = [ns / 1e6 for turn in turns for ns in turn.run_ns]
        p50_ms = percentile(run_ms, 50)
        assert p50_ms is not None
        ratio = duet.ratio
        return Measurement(
            ratio=ratio,
            latency_ms=ratio.value * reference_ms,
            memory=Memory(
                base_mib=self.opened["base_mib"],
                load_peak_mib=self.opened["load_peak_mib"],
                run_peak_mib=self.ran["run_peak_mib"],
                resident_mib=self.after["resident_mib"],
                anonymous_mib=self.after["anonymous_mib"],
                growth_mib=self.after["resident_mib"] - self.before["resident_mib"],
            ),
            fidelity=self.fidelity,
            p50_ms=p50_ms,
            p90_ms=percentile(run_ms, 90),
            p95_ms=percentile(run_ms, 95),
            p99_ms=percentile(run_ms, 99),
            load_ms=self.opened["load_ms"],
            first_run_ms=self.ran["first_run_ms"],
            cpu_s=sum(turn.cpu_ns for turn in turns) / len(run_ms) / 1e9,
            runs=len(run_ms),
            turns=len(duet.candidate),
            quiet_turns=duet.quiet.count(True),
            contaminated_turns=duet.contaminated,
            steady=duet.settled_from is not None,
            raced=self.raced,
            spent_s=self._spent_s,
            samples=None,
        )
