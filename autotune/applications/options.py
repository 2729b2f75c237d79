"""What an application's study can be asked for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.confirm import PREFERENCES, MemoryLimits
from autotune.errors import RequestError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class ApplicationOptions:
    """What an application's study is asked for.

    Attributes:
        recording: The folder of the recording.
        out: The folder to write to; the recording's name with ``.tuned`` if None.
        trials: How many configurations to measure in all, of the models and of all together.
        space: Search space of the models' own studies.
        providers: Execution providers that are searched; all if empty.
        max_error: Largest relative L2 error of an output; None means the study's own.
        metric: Rates answers, as in a model's study: ``NAME`` those of all sessions, beside
            `max_error` where that is given; ``SESSION=NAME,...`` those of these sessions alone,
            which `max_error` does not apply to.
        max_drop: How far a metric may fall; None means the study's own.
        max_memory_mib: The most memory that all sessions together may add.
        max_held_memory_mib: The most that they may hold at the end.
        prefer: What decides: ``latency``, ``memory`` or ``balanced``.
        seed: Random seed.
        wait: Whether to wait for another study on the same cores.
    """

    recording: Path
    out: Path | None = None
    trials: int = 100
    space: str = "default"
    providers: tuple[str, ...] = ()
    max_error: float | None = None
    metric: str | None = None
    max_drop: float | None = None
    max_memory_mib: float | None = None
    max_held_memory_mib: float | None = None
    prefer: str = "latency"
    seed: int = 0
    wait: bool = False

    @property
    def folder(self) -> Path:
        """The folder that the study writes to."""
        return self.out or Path(f"{self.recording.resolve().stem}.tuned")

    @property
    def limits(self) -> MemoryLimits:
        """The most memory that all sessions together may add."""
        return MemoryLimits(peak_mib=self.max_memory_mib, held_mib=self.max_held_memory_mib)

    @property
    def session_metrics(self) -> Mapping[str, str]:
        """The metrics of single sessions, by the names of these."""
        text = self.metric or ""
        parts = [part.partition("=") for part in text.split(",")] if "=" in text else []
        return {name.strip(): metric.strip() for name, _, metric in parts}

    def metric_of(self, session: str) -> str | None:
        """Returns the metric that rates the answers of a session; None where none does."""
        own = self.session_metrics
        return own.get(session) if own else self.metric

    def max_error_of(self, session: str) -> float | None:
        """Returns the largest error of a session; None where the study of its model decides."""
        return None if session in self.session_metrics else self.max_error

    def check_sessions(self, sessions: Collection[str]) -> None:
        """Refuses a metric of a session that the recording lacks.

        Raises:
            RequestError: there is one.
        """
        for name, metric in self.session_metrics.items():
            if name not in sessions:
                near = did_you_mean(name, sessions)
                raise RequestError(
                    f"--metric: the recording has no session '{name}'.{near} It has "
                    f"{', '.join(sorted(sessions))}"
                )
            if not metric:
                raise RequestError(f"--metric: {name} has none; write {name}=NAME")

    def check(self) -> None:
        """Refuses values that no study can work with.

        Raises:
            RequestError: there is one.
        """
        if self.trials < 1:
            raise RequestError(f"--trials must be at least 1, not {self.trials}")
        if self.prefer not in PREFERENCES:
            near = did_you_mean(self.prefer, PREFERENCES)
            raise RequestError(
                f"--prefer must be one of {', '.join(PREFERENCES)}, not '{self.prefer}'.{near}"
            )
        if self.max_drop is not None and self.metric is None:
            raise RequestError("--max-drop says how far a metric may fall; name it with --metric")
        if self.folder.resolve() == self.recording.resolve():
            raise RequestError("--out must be another folder than the recording")
