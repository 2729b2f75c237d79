"""What an application's study can be asked for."""

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
        if self.folder.resolve() == self.recording.resolve():
            raise RequestError("--out must be another folder than the recording")
