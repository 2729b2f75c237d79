"""The real measurer: a fresh process for each configuration, in a duet with the baseline's."""

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from autotune.deploy.config import SHARED, TunedConfig
from autotune.deploy.options import OWN
from autotune.deploy.providers import CACHE_FOLDER
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError
from autotune.facts.batches import Batching
from autotune.facts.model import Model
from autotune.facts.runtime import without_places
from autotune.facts.workload import Workload
from autotune.graph.prepare import PreparationError, Preparer
from autotune.measure.answers import Metric, OutputMismatchError
from autotune.measure.configuration_files import ConfigurationFiles
from autotune.measure.configuration_run import (
    FIRST_LIMITS,
    ConfigurationRun,
    TimeLimits,
)
from autotune.measure.duet import Reference
from autotune.measure.held_text import text_set
from autotune.measure.outcome import (
    NO_RUNTIME,
    Effort,
    Failure,
    Fidelity,
    IsDominated,
    Measurement,
    Outcome,
    never_dominated,
)
from autotune.measure.provider_cache import ProviderCache
from autotune.measure.raw_samples import keep_raw
from autotune.measure.replies import Done, FirstRuns
from autotune.measure.requests import request_of_config, request_outputs, request_session
from autotune.measure.sample_sets import SampleSet, sample_sets
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.runtimes.environments import is_there, site_of
from autotune.space.configuration import Configuration
from autotune.space.session import SESSIONS, WITHOUT_ANSWERS, session_config

_WORKER = "autotune.measure.measure_child"
_CALIBRATION_SLICES = 80
_CALIBRATION_BUDGET_S = 5.0
_PROMPT_SLICES = 12


class DuetMeasurer:
    """Measures configurations of one model with one workload.

    It starts the process of the baseline at once, and :meth:`close` ends it.

    Args:
        preparer: Makes the files of configurations; without one every configuration opens the model
            itself.
        timed_error: Largest one with which a configuration is still timed; None means `max_error`.
        reference_ms: Latency of the baseline as the study knows it; measured if None.
        samples: Folder where the raw run times of each measurement are kept; None keeps none.
        provider_cache: Folder where providers keep what they compile; None means a temporary one.
        batching: The batch sizes, the baseline's first; None means that each run has one sample.
        clients: How many clients call at once. Those of the baseline share one session.

    Raises:
        CannotMeasureError: the model does not run on these inputs, or its answers cannot be
            compared: they are no numbers, or differ from run to run by more than `max_error`; or
            it does not run in batches.
    """

    def __init__(
        self,
        model: Model,
        workload: Workload,
        preparer: Preparer | None = None,
        *,
        max_error: float,
        timed_error: float | None = None,
        metric: Metric | None = None,
        reference_ms: float | None = None,
        samples: Path | None = None,
        provider_cache: Path | None = None,
        batching: Batching | None = None,
        clients: int = 1,
    ) -> None:
        self._model = model
        self._configuration_files = ConfigurationFiles(model, preparer)
        self._answers: dict[str, Fidelity | Failure] = {}
        self._history = 0
        self._timed_error = max_error if timed_error is None else timed_error
        self._clients = clients
        self._samples = samples
        self._limits = FIRST_LIMITS
        self._reference: Reference | None = None
        self._next: Child | None = None
        self._first_ttft_ms = 0.0
        self._scratch = tempfile.TemporaryDirectory(dir=scratch.root())
        self._provider_cache = provider_cache or Path(self._scratch.name) / CACHE_FOLDER
        try:
            with _start_worker() as child:
                folder = Path(self._scratch.name)
                if workload.plan is not None:
                    self._sets = text_set(child, model, workload, folder)
                else:
                    self._sets = sample_sets(
                        child,
                        model,
                        workload,
                        folder,
                        batching=batching,
                        metric=metric,
                        max_error=max_error,
                    )
            self._reference = Reference(self._start_baseline, lambda: self._limits.run_s, clients)
            self._reference_ms = reference_ms or self._reference.calibrate(
                _CALIBRATION_SLICES, _CALIBRATION_BUDGET_S
            )
            self._reference_ttft_ms = self._calibrate_prompts(self._reference)
        except BaseException:
            self.close()
            raise

    @property
    def reference_ms(self) -> float:
        """Latency of the baseline that ratios are multiplied with."""
        return self._reference_ms

    def measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
    ) -> Outcome:
        """Returns the outcome of measuring `configuration` in a process of its own."""
        runtime = configuration.runtime
        outcome = self._measure(configuration, effort, is_dominated)
        if isinstance(outcome, Failure) and runtime != OWN and not is_there(runtime):
            message = f"{runtime} is no longer there"
            return replace(outcome, kind=NO_RUNTIME, message=message)
        return outcome

    def _measure(
        self,
        configuration: Configuration,
        effort: Effort,
        is_dominated: IsDominated,
    ) -> Outcome:
        began = time.monotonic()
        try:
            path, sha256 = self._configuration_files.file(configuration)
        except PreparationError as error:
            return Failure(
                kind=error.kind, phase="prepare", message=error.message, unfit=error.unfit
            )
        prepare_s = time.monotonic() - began
        batch = configuration.batch(self._smallest)
        config = session_config(
            configuration.session.to_json(), self._sets[batch].dimensions, self._model.breaking
        )
        sessions = str(configuration.to_json().get(SESSIONS, SHARED))
        outcome = self.measure_session(
            path,
            config,
            effort,
            is_dominated,
            name=configuration.key,
            batch=batch,
            sessions=sessions,
            site=site_of(configuration.runtime),
            answers=_answers_name(configuration),
            is_unchanged=is_unchanged(configuration),
        )
        if is_dominated is not never_dominated:  # in a search, where something comes in between:
            # it imports its packages while the trial is stored and the next file is made
            self._next = self._next_worker()
        if isinstance(outcome, Failure):
            return outcome
        spent_s = {"prepare": prepare_s, **outcome.spent_s}
        return replace(outcome, spent_s=spent_s, files_sha256=sha256)

    def canonical(self, configuration: Configuration) -> Configuration:
        """Returns the first configuration so far that opens the same session on the same graph."""
        return self._configuration_files.canonical(configuration)

    def measure_session(
        self,
        path: Path,
        config: SessionConfig,
        effort: Effort,
        is_dominated: IsDominated = never_dominated,
        *,
        name: str = "session",
        batch: int | None = None,
        sessions: str = SHARED,
        site: Path | None = None,
        answers: str = "",
        is_unchanged: bool | None = None,
    ) -> Outcome:
        """Returns the outcome of opening `path` as `config` says; see :meth:`measure`.

        Answers that were right once are compared again only if `effort` says so; where that costs
        seconds, those of the same name are compared once.

        Args:
            batch: Samples of a run; None means the baseline's.
            answers: The same for all that differ in threads, memory and storage alone; empty where
                that is not known.
            is_unchanged: Whether its graph is the model's own; if None, whether it is its file.
        """
        samples = self._sets[batch or self._smallest]
        judge = samples.judge
        if is_unchanged is None:
            is_unchanged = path == self._model.path.absolute()
        if judge.only_unchanged and not is_unchanged:
            return Failure(kind="wrong_answers", phase="answers", message=judge.only_unchanged)
        same = f"{site} {path} {samples.files.batch} {json.dumps(config.to_json())}"
        if judge.is_costly:
            same = answers or same
        compares = effort.compares_answers and not judge.is_costly
        earlier = None if compares else self._answers.get(same)
        if isinstance(earlier, Failure):
            return earlier
        if failure := self._compile(path, config, samples, site):
            return failure
        with self._next_worker(site) as child:
            run = ConfigurationRun(
                child, samples.files, self._limits_of(samples), self._clients, sessions
            )
            try:
                cache = self._cache_of(site)
                if failure := run.open(path, config, cache, self._history):
                    return failure
                if failure := run.lost_inputs(self._model):
                    return failure
                if failure := run.first_runs(gives_up=is_dominated is not never_dominated):
                    return failure
                failure = run.judge(judge, self._timed_error, earlier)
                self._answers[same] = failure or run.fidelity
                return failure or self._played(run, effort, is_dominated, name)
            except ChildFailure as fault:
                return Failure(kind=fault.kind, phase=run.phase, message=fault.message)

    def _played(
        self, run: ConfigurationRun, effort: Effort, is_dominated: IsDominated, name: str
    ) -> Measurement:
        """Returns the numbers of a session whose answers are right, in a duet with the baseline."""
        reference = self._running_reference()
        if self._reference_ttft_ms is not None:
            run.play_prompts(reference, effort, self._reference_ttft_ms)
        duet = run.play(reference, effort, is_dominated, self._reference_ms)
        measurement = run.measurement(duet, self._reference_ms)
        if self._samples is None:
            return measurement
        return replace(measurement, samples=keep_raw(duet, self._samples, name))

    def _compile(
        self, path: Path, config: SessionConfig, samples: SampleSet, site: Path | None
    ) -> Failure | None:
        """Lets a provider compile the model in a process of its own, once; returns why it cannot.

        The measured process then finds the result in the cache, as an application does from its
        second start on, and its memory is not that of the compiler.
        """
        cache = self._cache_of(site)
        if not config.provider_cache or cache.first_load_ms(path, config):
            return None
        cache.folder.mkdir(parents=True, exist_ok=True)
        with _start_worker(site) as child:
            run = ConfigurationRun(child, samples.files, self._limits_of(samples))
            try:
                if failure := run.open(path, config, cache):
                    return failure
            except ChildFailure as fault:
                return Failure(kind=fault.kind, phase=run.phase, message=fault.message)
        cache.remember(path, config, run.load_ms)
        return None

    def _cache_of(self, site: Path | None) -> ProviderCache:
        """Returns what a runtime's providers keep; another version may not read it."""
        folder = self._provider_cache
        return ProviderCache(folder if site is None else folder / site.name)

    def answers_of(self, config: Path) -> Fidelity | Failure:
        """Returns how right the answers of a written config are; see :class:`Measurer`."""
        written = TunedConfig.read(config)
        serving = None if len(self._sets) == 1 else written.serving
        needed = written.requires.runtime
        site = None if needed is None else site_of(str(needed))
        batch = None if serving is None else serving.batch
        samples = self._sets[batch or self._smallest]
        limits = self._limits_of(samples)
        with _start_worker(site) as child:
            try:
                message = request_of_config(config, samples.files)
                child.request(message, limits.load_s, Done)
                outputs = request_outputs(child, samples.files, limits.run_s)
                fidelity = samples.judge.compare(outputs)
            except ChildFailure as fault:
                return Failure(kind=fault.kind, phase="answers", message=fault.message)
            except OutputMismatchError as mismatch:
                return Failure(kind="wrong_answers", phase="answers", message=str(mismatch))
        if samples.judge.only_unchanged and not is_unchanged(
            Configuration.of(written.configuration)
        ):
            reason = samples.judge.only_unchanged
            return Failure(kind="wrong_answers", phase="answers", message=reason)
        return fidelity

    def rescale(self, reference_ms: float) -> None:
        """Takes another latency of the baseline to multiply ratios with."""
        self._reference_ms = reference_ms

    def renew(self) -> None:
        """Starts the reference again; later processes have another history of the heap."""
        self._history += 1
        self._next = self._next_worker()  # it imports its packages meanwhile
        self._running_reference().renew()

    def close(self) -> None:
        """Ends the reference and removes what was written for it."""
        if self._reference is not None:
            self._reference.stop()
            self._reference = None
        if self._next is not None:
            self._next.stop()
            self._next = None
        self._scratch.cleanup()

    def _next_worker(self, site: Path | None = None) -> Child:
        """Returns a process that may have been started before; with a `site` it never is."""
        if site is not None:
            return _start_worker(site)
        child, self._next = self._next, None
        if child is not None and not child.is_running():
            child.stop()
            child = None
        return child or _start_worker()

    def _running_reference(self) -> Reference:
        if self._reference is None:
            raise RuntimeError("closed")
        return self._reference

    def _calibrate_prompts(self, reference: Reference) -> float | None:
        """Returns the time of a decoder's prompts on a quiet machine, in ms; None without any."""
        if not self._first_ttft_ms:
            return None
        with reference.prompts(self._first_ttft_ms):
            return reference.calibrate(_PROMPT_SLICES, _CALIBRATION_BUDGET_S)

    def _start_baseline(self) -> tuple[Child, float]:
        """Returns a process with the baseline's session, frozen, and the time of a run in ms."""
        samples, source = self._sets[self._smallest], self._configuration_files.source
        files, config = samples.files, self._model.default_session
        child = _start_worker()
        try:
            opened = request_session(
                child, files, source, config, FIRST_LIMITS.load_s, clients=self._clients
            )
            limit_s = FIRST_LIMITS.of_runs(files.first_runs)
            runs = child.request({"do": "first_runs"}, limit_s, FirstRuns)
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
        self._limits = TimeLimits.beside(opened, runs)
        self._first_ttft_ms = runs.ttft_ms
        return child, runs.run_ms

    def _limits_of(self, samples: SampleSet) -> TimeLimits:
        """Returns how long to wait for a process that runs these samples."""
        factor = (samples.files.batch or 1) / self._smallest
        return replace(self._limits, run_s=factor * self._limits.run_s)

    @property
    def _smallest(self) -> int:
        """The baseline's batch size."""
        return next(iter(self._sets))


def is_unchanged(configuration: Configuration) -> bool:
    """Returns whether a configuration opens the model's own graph, however its weights lie."""
    return configuration.graph.to_json().keys() <= WITHOUT_ANSWERS


def _answers_name(configuration: Configuration) -> str:
    """Returns a name that configurations share whose answers differ in the last digits at most."""
    chosen = configuration.to_json().items()
    return json.dumps({name: value for name, value in chosen if name not in WITHOUT_ANSWERS})


def _start_worker(site: Path | None = None) -> Child:
    return Child(_WORKER, memory_limit(), site, measures=True)
