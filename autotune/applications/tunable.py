"""Which sessions of a recording can be tuned, and the stretch of it that is replayed."""

import math
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from autotune.applications.joint import TODAY, JointSession
from autotune.applications.options import ApplicationOptions
from autotune.applications.own_study import OwnStudy
from autotune.applications.recording import Process, RecordedSession, Recording
from autotune.applications.replay import Opening
from autotune.applications.schedule import NoInputsError, Schedule, schedule_of
from autotune.applications.today import today_session
from autotune.deploy.loaded import DataFile
from autotune.deploy.options import RUN_ENTRIES
from autotune.deploy.passed import ONLY_FETCHES
from autotune.deploy.session import SessionConfig
from autotune.errors import AutotuneError, RequestError
from autotune.facts.model import Model, describe
from autotune.facts.runtime import runtime
from autotune.study.progress import OnProgress, Progress

# A process that was forked has none of the threads that its parent's sessions started: two or more
# for operators beside each other let it hang (microsoft/onnxruntime#9800).
_THREADS = frozenset({"intra_op_num_threads", "inter_op_num_threads", "execution_mode"})


@dataclass(kw_only=True)
class Tunable:
    """A session that can be tuned: its model, how it is opened today, and its own study."""

    session: RecordedSession
    model: Model
    today: SessionConfig
    study: OwnStudy | None = None


@dataclass(kw_only=True)
class SessionsState:
    """What an application's study knows so far: the sessions, and what is said of them.

    Attributes:
        options: What it is asked for.
        recording: The recording.
        report: Called as it goes on.
        tunable: The sessions that can be tuned.
        reasons: Why others stay as they are, by their names.
        notes: Remarks, a sentence each.
        told: What was said already.
        began_s: When it began, by the monotonic clock.
    """

    options: ApplicationOptions
    recording: Recording
    report: OnProgress
    tunable: list[Tunable] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """What is left of the time; infinite without a limit."""
        limit_s = self.options.timeout_s
        return math.inf if limit_s is None else self.began_s + limit_s - time.monotonic()

    def note(self, sentence: str) -> None:
        """Keeps a remark, and tells it."""
        self.notes.append(sentence)
        self.report(Progress(stage="", note=sentence))

    def tell(self, progress: Progress) -> None:
        """Passes on how the study of a model goes; what was said of another one is not repeated."""
        if progress.stage == "done":  # it says how to go on with that study alone
            progress = replace(progress, note="its trials are measured already")
        elif progress.note in self.told:
            progress = replace(progress, note="")
        self.told.add(progress.note)
        self.report(progress)


def find_tunable(state: SessionsState) -> None:
    """Finds the sessions that can be tuned, and says why others cannot.

    Raises:
        RequestError: there is none.
    """
    recording = state.recording
    if not recording.sessions:
        raise RequestError(
            f"{recording.folder} holds no session; record the application while it works"
        )
    for session in recording.sessions:
        path = recording.model_path(session)
        try:
            today = today_session(session.opened, runtime().providers)
            model = describe(path)
            _check_inputs(session, model)
            own = DataFile.of(path)
            if own.sha256 != session.opened.sha256:
                raise RequestError(f"{path} has changed since it was recorded; record again")
        except AutotuneError as error:
            leave(state, session.name, str(error))
            continue
        if session.calls:
            state.tunable.append(Tunable(session=session, model=model, today=today))
        else:
            state.reasons[session.name] = "it was never called"
    _check_tunable(state)


def _check_inputs(session: RecordedSession, model: Model) -> None:
    """Refuses a session that is fed what no study of its model feeds.

    Raises:
        RequestError: the application feeds an input with a default, or sets run options that a
            replay cannot.
    """
    repeated = {*RUN_ENTRIES, ONLY_FETCHES}
    options = {name for shape in session.shapes.values() for name in shape.run_options}
    if unknown := sorted(options - repeated):
        raise RequestError(f"its run options have {', '.join(unknown)}, which no replay repeats")
    names = {tensor.name for tensor in model.inputs}
    fed = {item.name for shape in session.shapes.values() for item in shape.inputs}
    if others := sorted(fed - names):
        raise RequestError(
            f"the application feeds {', '.join(others)}, for which the model has a default, and no "
            "study takes such a value from a call"
        )


def leave(state: SessionsState, name: str, reason: str) -> None:
    """Leaves a session as it is, and says why."""
    state.tunable = [item for item in state.tunable if item.session.name != name]
    state.reasons[name] = reason
    state.note(f"{name} stays as it is: {reason}")


def _check_tunable(state: SessionsState) -> None:
    """Raises an error where no session can be tuned."""
    if not state.tunable:
        reasons = "; ".join(f"{name}: {text}" for name, text in state.reasons.items())
        raise RequestError(f"no session of {state.recording.folder} can be tuned: {reasons}")


def stretch_of(state: SessionsState) -> tuple[Process, Schedule]:
    """Returns the process that is replayed, and a stretch of it; leaves what is not in it.

    Raises:
        RequestError: no session can be replayed.
    """
    while True:
        _check_tunable(state)
        models = {item.session.name: item.model for item in state.tunable}
        process = busiest_process(state, models)
        try:
            schedule = schedule_of(process, models, state.options.seed)
        except NoInputsError as error:
            leave(state, error.session, str(error))
            continue
        for name in sorted(models.keys() - {session.name for session in schedule.sessions}):
            reason = "only the busiest process is replayed, and another one calls it"
            leave(state, name, f"{reason}; record that one alone to tune it")
        broken = _broken_chains(state, schedule)
        if not broken:
            return process, schedule
        for name in broken:
            leave(state, name, "it is fed what sessions return that are not replayed")


def _broken_chains(state: SessionsState, schedule: Schedule) -> list[str]:
    """Returns the sessions of which no call is replayed, because it is fed what others return."""
    called = {schedule.sessions[call.session].name for call in schedule.calls}
    return [
        item.session.name
        for item in state.tunable
        if item.session.name not in called
        and any(shape.fed for shape in item.session.shapes.values())
    ]


def busiest_process(state: SessionsState, names: Collection[str]) -> Process:
    """Returns the process that is replayed: the busiest that calls one of these sessions."""
    processes = state.recording.processes
    calling = (
        process
        for process in processes
        if any(session.name in names for session, _ in process.shapes)
    )
    return next(calling, processes[0])


def note_on_schedule(state: SessionsState, process: Process, schedule: Schedule) -> None:
    """Keeps what has to be known of the replay: what it leaves out, and what it makes up."""
    count = len(state.recording.processes)
    if count > 1:
        state.note(
            f"the application has {count} processes; the busiest of those whose "
            "sessions can be tuned is replayed"
        )
    there, here = process.onnxruntime, runtime().version
    if there not in ("", here):
        state.note(
            f"the application uses ONNX Runtime {there}, and this environment has {here}, by which "
            f"everything is measured; install {there} beside autotune and study it there"
        )
    for name, number in Counter(session.name for session in schedule.sessions).items():
        own = next(item.session for item in state.tunable if item.session.name == name)
        if own.is_reopened:
            state.note(
                f"{name} was opened {own.openings:,} times for {own.calls:,} calls; a replay opens "
                "it as often, so the time to open it counts"
            )
        if number > 1:
            state.note(f"{name} is replayed as {number} sessions: so many were open at one time")
    for item in state.tunable:
        if item.session.is_forked:
            state.note(
                f"a fork calls {item.session.name} of the process that opened it, so its threads "
                "stay as the application chose"
            )
    if schedule.generated:
        state.note(
            f"{schedule.generated} shapes have generated inputs, because none of theirs were kept"
        )
    whole = sum(session.calls for session in state.recording.sessions)
    state.note(
        f"a replay makes {schedule.runs:,} of {whole:,} recorded calls, "
        f"{schedule.recorded_s:.1f} s of the application"
    )


def part_of(item: Tunable, options: ApplicationOptions, count: int) -> JointSession:
    """Returns a session of the joint search, with the members of its model's front.

    Args:
        item: The session; its own study is there.
        options: What the study is asked for.
        count: How many of it are open at one time.
    """
    assert item.study is not None
    members = {TODAY: Opening(model=item.model.path, session=item.today)}
    for member in item.study.members:
        session = member.session
        if item.session.is_forked:
            if session.accelerator != item.today.accelerator:
                continue
            session = _with_threads_of(item.today, session)
        members[member.label] = Opening(
            model=member.model, session=session, cache=options.folder / "provider-cache"
        )
    return JointSession(
        name=item.session.name,
        members=members,
        least_threads=2 if item.session.is_asynchronous else 1,
        count=count,
        is_forked=item.session.is_forked,
    )


def _with_threads_of(today: SessionConfig, session: SessionConfig) -> SessionConfig:
    """Returns a session that runs its operators by threads as today's does."""
    others = {name: value for name, value in session.options.items() if name not in _THREADS}
    own = {name: value for name, value in today.options.items() if name in _THREADS}
    return replace(session, options={**others, **own})
