"""What an application's study can be asked for."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.applications.confirm import PREFERENCES, MemoryLimits
from autotune.errors import RequestError, did_you_mean
from autotune.study.options import CommonOptions

DEFAULT_TIMEOUT_S = 330.0
"""How long a study takes that is asked for neither trials nor a time."""


@dataclass(frozen=True, kw_only=True)
class ApplicationOptions(CommonOptions):
    """What an application's study is asked for.

    Trials are those of the models and of all sessions together, and limits of memory those of all
    sessions together. A metric ``NAME`` rates the answers of all sessions, beside `max_error` where
    that is given; ``SESSION=NAME,...`` those of these sessions alone, which `max_error` does not
    apply to. What decides is ``latency``, ``memory`` or ``balanced``.

    Attributes:
        recording: The folder of the recording.
    """

    recording: Path

    @property
    def preference(self) -> str:
        """What decides: the latency if nobody says."""
        return self.prefer or PREFERENCES[0]

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
        super().check()
        if self.preference not in PREFERENCES:
            near = did_you_mean(self.preference, PREFERENCES)
            raise RequestError(
                f"--prefer must be one of {', '.join(PREFERENCES)}, not '{self.preference}'.{near}"
            )
        if self.max_drop is not None and self.metric is None:
            raise RequestError("--max-drop says how far a metric may fall; name it with --metric")
        if self.folder.resolve() == self.recording.resolve():
            raise RequestError("--out must be another folder than the recording")
