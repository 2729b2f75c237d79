"""The real measurer: a fresh process for each candidate, in a duet with the baseline's."""

import tempfile
from pathlib import Path

import numpy as np

from autotune import scratch
from autotune.child import Child, ChildFailure, Message, memory_limit
from autotune.config import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.graph.prepare import prepare
from autotune.measure import answers
from autotune.measure.duet import Duet, Turn, play, take_turn
from autotune.measure.fidelity import compare
from autotune.measure.outcome import Effort, Failure, Fidelity, Measurement, Memory, Outcome
from autotune.measure.statistics import duet_ratio, percentile, quiet_turns
from autotune.measure.worker import REPLIES, save_samples
from autotune.space.candidate import BASELINE, Candidate, session_config

_WORKER = "autotune.measure.worker"
# Until the baseline is known; afterwards limits follow it.
_LOAD_LIMIT_S = 600.0
_RUN_LIMIT_S = 300.0
_CALIBRATION_TURNS = 60


class DuetMeasurer:
    """Measures candidates of one model with one workload; see :class:`Measurer`.

    Args:
        model: The model.
        workload: Its inputs.
        max_error: Largest fidelity error with which a candidate is still timed.
        reference_ms: Latency of the baseline as the study knows it; measured if None.
    """

    def __init__(
        self,
        model: Model,
        workload: Workload,
        *,
        max_error: float,
        reference_ms: float | None = None,
    ) -> None:
        self._model = model
        self._dimensions = workload.dimensions(model)
        self._one_shape = workload.one_shape
        self._max_error = max_error
        self._scratch = tempfile.TemporaryDirectory(dir=scratch.root())
        folder = Path(self._scratch.name)
        self._timing = folder / "timing.npz"
        self._validation = folder / "validation.npz"
        self._answers = folder / "answers.npz"
        save_samples(workload.timing, self._timing)
        save_samples(workload.validation, self._validation)
        self._reference: Child | None = None
        try:
            self._expected = self._reference_answers()
            self._start_reference()
            self._reference_ms = reference_ms or self._calibrate()
        except BaseException:
            self.close()
            raise

    @property
    def reference_ms(self) -> float:
        """Latency of the baseline that ratios are multiplied with."""
        return self._reference_ms

    def measure(self, candidate: Candidate, effort: Effort) -> Outcome:
        """Returns the outcome of measuring `candidate` in a process of its own."""
        prepared = prepare(self._model, candidate)
        return self.measure_session(
            prepared.path, session_config(candidate, self._dimensions), effort
        )

    def measure_session(self, path: Path, config: SessionConfig, effort: Effort) -> Outcome:
        """Returns the outcome of opening `path` as `config` says; see :meth:`measure`."""
        with Child(_WORKER, memory_limit(), REPLIES) as child:
            phase = "open"
            try:
                opened = self._open(child, path, config, self._load_limit_s)
                phase = "run"
                ran = child.request({"do": "first_runs"}, self._run_limit_s)
                phase = "answers"
                fidelity = self._check(child)
                if fidelity.error > self._max_error:
                    return Failure(
                        kind="wrong_answers",
                        phase=phase,
                        message=f"error {fidelity.error:.2g} is above {self._max_error:g}",
                        error=fidelity.error,
                    )
                phase = "turns"
                duet = self._duet(child, ran["run_ms"], effort)
            except ChildFailure as failure:
                return Failure(kind=failure.kind, phase=phase, message=failure.message)
        return self._measurement(opened, ran, fidelity, duet)

    def renew(self) -> None:
        """Starts the reference again."""
        self._start_reference()

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

    def _check(self, child: Child) -> Fidelity:
        return compare(self._expected, self._run_answers(child, self._run_limit_s))

    def _start_reference(self) -> None:
        if self._reference is not None:
            self._reference.stop()
        self._reference = Child(_WORKER, memory_limit(), REPLIES)
        path = prepare(self._model, BASELINE).path
        config = session_config(BASELINE, self._dimensions)
        try:
            opened = self._open(self._reference, path, config, _LOAD_LIMIT_S)
            ran = self._reference.request({"do": "first_runs"}, _RUN_LIMIT_S)
        except ChildFailure as failure:
            raise CannotMeasureError(
                f"{self._model.path.name} does not run with default options ({failure.kind}): "
                f"{failure.message}"
            ) from None
        self._reference.freeze()
        self._reference_run_ms: float = ran["run_ms"]
        # generous: a candidate may well be slower, and the machine busier than now
        self._load_limit_s = max(60.0, 20 * opened["load_ms"] / 1e3)
        self._run_limit_s = max(30.0, 200 * max(ran["first_run_ms"], ran["run_ms"]) / 1e3)

    def _calibrate(self) -> float:
        """Returns the baseline's latency on this machine when it is quiet."""
        assert self._reference is not None
        turns: list[Turn] = []
        spent_ms = 0.0
        while len(turns) < 3 or (len(turns) < _CALIBRATION_TURNS and spent_ms < 5000):
            turns.append(take_turn(self._reference, self._reference_run_ms, self._run_limit_s))
            spent_ms += sum(turns[-1].run_ns) / 1e6
        times = [turn.median_ms for turn in turns]
        quiet = [ms for ms, good in zip(times, quiet_turns(times), strict=True) if good]
        return float(np.median(quiet))

    def _duet(self, child: Child, run_ms: float, effort: Effort) -> Duet:
        """Returns the duet; a reference that died is started again once."""
        child.freeze()
        for last_try in (False, True):
            assert self._reference is not None
            try:
                return play(
                    self._reference,
                    child,
                    reference_run_ms=self._reference_run_ms,
                    candidate_run_ms=run_ms,
                    effort=effort,
                    limit_s=self._run_limit_s,
                )
            except ChildFailure:
                if last_try or self._reference.is_running():
                    raise
                self._start_reference()
        raise AssertionError("unreachable")

    def _measurement(
        self, opened: Message, ran: Message, fidelity: Fidelity, duet: Duet
    ) -> Measurement:
        ratio = duet_ratio(duet.reference_ms, duet.candidate_ms)
        run_ms = [ns / 1e6 for turn in duet.candidate for ns in turn.run_ns]
        p50_ms = percentile(run_ms, 50)
        assert p50_ms is not None
        return Measurement(
            ratio=ratio,
            latency_ms=ratio.value * self._reference_ms,
            memory=Memory(
                base_mib=opened["base_mib"],
                load_peak_mib=opened["load_peak_mib"],
                run_peak_mib=ran["run_peak_mib"],
                resident_mib=ran["resident_mib"],
                anonymous_mib=ran["anonymous_mib"],
            ),
            fidelity=fidelity,
            p50_ms=p50_ms,
            p90_ms=percentile(run_ms, 90),
            p95_ms=percentile(run_ms, 95),
            p99_ms=percentile(run_ms, 99),
            load_ms=opened["load_ms"],
            first_run_ms=ran["first_run_ms"],
            cpu_ms=sum(turn.cpu_ns for turn in duet.candidate) / len(run_ms) / 1e6,
            runs=len(run_ms),
            turns=len(duet.candidate),
            quiet_turns=duet.quiet_count(),
        )
