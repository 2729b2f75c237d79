"""Times an application's command itself, as it is and tuned, in turns."""

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import psutil

from autotune.applications.command import cannot_start, plain_environment, tuned_environment
from autotune.applications.confirm import is_better
from autotune.deploy.config import Interval
from autotune.deploy.files import parse_json, read_bytes
from autotune.deploy.hook import REPORT_VARIABLE
from autotune.deploy.records import Json, Text, from_plain, to_plain
from autotune.errors import CannotMeasureError, typed
from autotune.measure.statistics import mean_log_interval
from autotune.process import scratch

_POLL_S = 0.02
_LARGEST_REPORT_BYTES = 16 << 20
_MOST_ROUNDS = 10
_FEWEST_ROUNDS = 3
_BUDGET_S = 180.0
_LONGEST_LINE, _BEFORE = 80, 20


@dataclass(frozen=True, kw_only=True)
class _Report:
    """What a process says of a session: no reason where it ran tuned."""

    session: Text
    reason: Text


@dataclass(frozen=True, kw_only=True)
class CommandRun:
    """One run of the command.

    Attributes:
        seconds: How long it took, from its start to its end.
        peak_mib: The most memory that its processes held, each at its own peak, added up.
        exit_code: Its exit code.
        output: What it wrote to stdout.
    """

    seconds: float
    peak_mib: float
    exit_code: int
    output: bytes


@dataclass(frozen=True, kw_only=True)
class CommandComparison:
    """A command as it is and tuned.

    Attributes:
        rounds: How often each ran.
        today_s: Median time as it is.
        tuned_s: Median time tuned.
        ratio: Time tuned over time as it is, with its 95 % interval.
        today_peak_mib: Median of the peaks as it is.
        tuned_peak_mib: The same tuned.
        peak_ratio: Peak tuned over peak as it is, with its 95 % interval.
        replaced: The sessions that ran tuned in some process of some tuned run.
        kept: Why other recorded sessions stayed as they were, a sentence each.
        same_output: Whether every run wrote the same to stdout; None where no run wrote anything:
            answers were not compared.
        difference: What a tuned run wrote instead of a line that every run as it is wrote, in
            words; empty where there is no such line.
    """

    rounds: int
    today_s: float
    tuned_s: float
    ratio: Interval
    today_peak_mib: float
    tuned_peak_mib: float
    peak_ratio: Interval
    replaced: tuple[str, ...]
    kept: tuple[str, ...] = ()
    same_output: bool | None = None
    difference: str = ""

    @property
    def is_better(self) -> bool:
        """Whether it is faster by more than the noise, or leaner and not slower."""
        return is_better(self.ratio, self.peak_ratio)

    def to_json(self) -> Json:
        """Returns the comparison as JSON values."""
        data: Json = to_plain(self)
        return {**data, "is_better": self.is_better}


def compare_command(
    folder: Path, command: Sequence[str], on_step: Callable[[int, int], None]
) -> CommandComparison:
    """Returns the comparison of a command as it is and with the sessions of a tuned application.

    Args:
        folder: The tuned application.
        command: The command.
        on_step: Called after each run.

    Raises:
        RequestError: the command cannot be started.
        CannotMeasureError: it fails, or no session ran tuned, so that there is nothing to compare.
    """
    reports: set[tuple[str, str]] = set()
    began = time.monotonic()
    plain: list[CommandRun] = []
    tuned: list[CommandRun] = []
    while len(plain) < _FEWEST_ROUNDS or (
        len(plain) < _MOST_ROUNDS and time.monotonic() - began < _BUDGET_S
    ):
        # each is the first in every second round: the files that it reads are warm for the other
        for runs in (plain, tuned) if len(plain) % 2 == 0 else (tuned, plain):
            if runs is plain:
                run = run_once(command, plain_environment())
            else:
                run = _run_tuned(folder, command, reports)
            if run.exit_code:
                how, remedy = "as it is", "mend it first: it has to end with 0"
                if runs is tuned:
                    how = "tuned"
                    remedy = f"`autotune run --verbose {typed(folder)} -- ...` shows what it says"
                raise CannotMeasureError(
                    f"the command {how} ends with exit code {run.exit_code}; {remedy}"
                )
            runs.append(run)
            on_step(len(plain) + len(tuned), 2 * _MOST_ROUNDS)
    pairs = list(zip(tuned, plain, strict=True))
    outputs = {run.output for run in (*plain, *tuned)}
    return CommandComparison(
        rounds=len(plain),
        today_s=statistics.median(run.seconds for run in plain),
        tuned_s=statistics.median(run.seconds for run in tuned),
        ratio=mean_log_interval([mine.seconds / its.seconds for mine, its in pairs]),
        today_peak_mib=statistics.median(run.peak_mib for run in plain),
        tuned_peak_mib=statistics.median(run.peak_mib for run in tuned),
        peak_ratio=mean_log_interval(
            [max(1.0, mine.peak_mib) / max(1.0, its.peak_mib) for mine, its in pairs]
        ),
        replaced=tuple(sorted({name for name, reason in reports if not reason})),
        kept=tuple(sorted(f"{name}: {reason}" for name, reason in reports if reason)),
        same_output=None if outputs == {b""} else len(outputs) == 1,
        difference=difference([run.output for run in plain], [run.output for run in tuned]),
    )


def _run_tuned(folder: Path, command: Sequence[str], reports: set[tuple[str, str]]) -> CommandRun:
    """Returns a run with the sessions of a tuned application; its processes report what they did.

    Raises:
        CannotMeasureError: no session ran tuned.
    """
    with tempfile.TemporaryDirectory(dir=scratch.root()) as place:
        file = Path(place) / "sessions.jsonl"
        file.touch()
        environment = {**tuned_environment(folder), REPORT_VARIABLE: str(file)}
        run = run_once(command, environment)
        for line in read_bytes(file, _LARGEST_REPORT_BYTES).splitlines():
            said = from_plain(_Report, parse_json(line.decode()))
            reports.add((said.session, said.reason))
    if run.exit_code == 0 and not any(not reason for _, reason in reports):
        reasons = "; ".join(sorted(f"{name}: {reason}" for name, reason in reports))
        why = reasons or (
            "the command opened none of the sessions that were recorded, or did so in a Python "
            "with -I, -E or -S, which is not seen"
        )
        raise CannotMeasureError(
            f"no session ran tuned, so there is nothing to compare: {why}; record and study the "
            "command that you compare"
        )
    return run


def difference(plain: Sequence[bytes], tuned: Sequence[bytes]) -> str:
    """Returns the first line that is always the same as it is, and another one tuned, in words."""
    expected = [output.decode(errors="replace").splitlines() for output in plain]
    for output in tuned:
        lines = output.decode(errors="replace").splitlines()
        for number, own in enumerate(zip_longest(lines, *expected, fillvalue=""), start=1):
            mine, its = own[0], set(own[1:])
            if len(its) == 1 and mine not in its:
                pairs = enumerate(zip_longest(mine, *its))
                first = next(place for place, (one, other) in pairs if one != other)
                begin = max(0, first - _BEFORE)
                texts = [repr(line[begin : begin + _LONGEST_LINE]) for line in (mine, *its)]
                return f"line {number} has {texts[0]} instead of {texts[1]}"
    return ""


def run_once(command: Sequence[str], environment: Mapping[str, str]) -> CommandRun:
    """Returns one run of a command; its stderr goes where this process's goes.

    Raises:
        RequestError: it cannot be started.
    """
    with tempfile.TemporaryFile() as output:
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                list(command), env=dict(environment), stdout=output, close_fds=False
            )
        except OSError as error:
            raise cannot_start(command, error) from None
        peaks: dict[int, float] = {}
        try:
            while True:
                _look(process.pid, peaks)
                try:
                    process.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    continue
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.perf_counter() - began
        output.seek(0)
        return CommandRun(
            seconds=seconds,
            peak_mib=sum(peaks.values()),
            exit_code=process.returncode,
            output=output.read(),
        )


def _look(pid: int, peaks: dict[int, float]) -> None:
    """Takes the memory of a process and of its children down."""
    try:
        family = [psutil.Process(pid)]
        family += family[0].children(recursive=True)
        for process in family:
            used_mib = _peak_mib(process)
            peaks[process.pid] = max(peaks.get(process.pid, 0.0), used_mib)
    except psutil.Error:  # it ended meanwhile
        return


def _peak_mib(process: psutil.Process) -> float:
    """Returns the most that a process held; where the system does not tell, what it holds."""
    try:
        text = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return float(process.memory_info().rss) / 2**20
    for line in text.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0
