"""The study of an application: each model for itself, then all sessions together."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from sqlalchemy.engine import URL

from autotune.applications.chains import ChainAnswers, Play, chained, play, samples_of_chains
from autotune.applications.confirm import (
    FEWEST_ROUNDS,
    ROUNDS,
    Confirmed,
    Today,
    confirm,
    finalists,
    joined,
    select,
)
from autotune.applications.joint import (
    TODAY,
    JointSearch,
    JointTrial,
    choices_in_words,
    conditions_of,
    joint_study,
    session_in_words,
)
from autotune.applications.options import ApplicationOptions
from autotune.applications.own_study import OwnStudy, own_study, trials_of
from autotune.applications.recording import RecordedSession, Recording
from autotune.applications.replay import Arrangement, Opening, ReplayMeasurer, Replays
from autotune.applications.result import (
    FRONT,
    MOST_SHAPES,
    ApplicationResult,
    SessionResult,
    ShapeResult,
)
from autotune.applications.schedule import Schedule
from autotune.applications.tunable import (
    SessionsState,
    find_tunable,
    leave,
    note_on_schedule,
    part_of,
    stretch_of,
)
from autotune.applications.writing import Replacement, new_folders, write_application
from autotune.deploy.config import TunedConfig
from autotune.deploy.cpu import usable_cores
from autotune.deploy.loaded import DataFile
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, DataError
from autotune.facts.feeds import Feed
from autotune.measure.outcome import Fidelity
from autotune.process.durable import write_json
from autotune.search.trial import Limits
from autotune.storage.database import Place, open_storage, quick_commits, quiet_optuna
from autotune.storage.locks import exclusive_use
from autotune.study.progress import OnProgress, Progress

TOGETHER = "together.db"
"""Optuna's study of all sessions together, in the folder of the tuned application."""

_JOINT_SHARE = 0.3
# The first points of the joint search, with the combinations that win most often.
_FEWEST_JOINT, _MOST_JOINT = 4, 60
# Shares of a limit of time: of the models' own studies, and of the end in what is left then.
_OWN_SHARE, _CONFIRM_SHARE = 0.4, 0.55
_FEWEST_ENTRANTS, _MOST_ENTRANTS = 2, 5
# The rounds at the end are what is compared; within one, two replays are enough.
_FINAL_TURNS = 2
# For the estimate of the time: a trial of a model takes so long, and so many calls.
_TRIAL_S, _TRIAL_CALLS = 3.0, 60
_DEFAULTS = "ONNX Runtime's defaults"


def study_application(
    options: ApplicationOptions,
    report: OnProgress,
    measure: Callable[[Schedule, Arrangement], Replays] = ReplayMeasurer,
    study: Callable[..., OwnStudy] = own_study,
    play: Play = play,
) -> ApplicationResult:
    """Returns the result of an application's study, and writes the tuned application.

    Args:
        options: What the study is asked for.
        report: Called as the study goes on.
        measure: Makes what replays arrangements; tests bring their own.
        study: The study of one model; tests bring their own.
        play: Makes the calls of chains; tests bring their own.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
    """
    options.check()
    state = SessionsState(
        options=options, recording=Recording.read(options.recording), report=report
    )
    options.check_sessions([session.name for session in state.recording.sessions])
    find_tunable(state)
    options.folder.mkdir(parents=True, exist_ok=True)
    with exclusive_use(options.folder, cores=False, wait=options.wait, on_note=state.note):
        return _study(state, measure, study, play)


def _study(
    state: SessionsState,
    measure: Callable[[Schedule, Arrangement], Replays],
    study: Callable[..., OwnStudy],
    play: Play,
) -> ApplicationResult:
    """Studies each model, then all sessions together; writes the tuned application."""
    options = state.options
    process, schedule = stretch_of(state)
    tunable = list(state.tunable)
    joint = min(_MOST_JOINT, max(_FEWEST_JOINT, round(_JOINT_SHARE * options.trials)))
    budgets = trials_of([item.session for item in tunable], max(1, options.trials - joint))
    words = _duration_in_words(state, schedule, budgets, joint)
    state.report(Progress(stage="", note=words))
    samples = _chain_samples(state, schedule, play)
    for item in tunable:
        name = item.session.name
        if item not in state.tunable:
            continue
        try:
            limit_s = _own_limit_s(state, item.session)
            inputs = samples.pop(name, ())
            item.study = study(
                *(options, item.session, item.model, state.tell),
                trials=budgets[name],
                timeout_s=limit_s,
                samples=inputs,
            )
        except (DataError, CannotMeasureError) as error:
            leave(state, name, str(error))
        else:
            state.notes += item.study.notes
    if len(state.tunable) < len(tunable):
        process, schedule = stretch_of(state)
    note_on_schedule(state, process, schedule)
    counts = Counter(session.name for session in schedule.sessions)
    parts = [part_of(item, options, counts[item.session.name]) for item in state.tunable]
    search = JointSearch(parts=parts, cores=usable_cores(), seed=options.seed, turns=schedule.turns)
    answers = ChainAnswers(
        schedule=schedule, today=_today(state), limits=_error_limits(state), play=play
    )
    base, confirmed = _together(state, search, schedule, joint, measure, answers)
    best = select(base, confirmed, options.preference, options.limits)
    changes = _write(state, search, best)
    if best is not None:
        _note_on_answers(state, answers.of(search.arrangement(best.choices or {})))
    result = ApplicationResult(
        recording=str(options.recording),
        folder=str(options.folder),
        replayed_calls=schedule.runs,
        recorded_s=schedule.recorded_s,
        today=base,
        confirmed=tuple(confirmed),
        selected=None if best is None else confirmed.index(best),
        sessions=_session_results(state, changes),
        searched=tuple(search.trials),
        notes=tuple(state.notes),
        prefer=options.preference,
        limits=options.limits,
        point_count=search.size,
        base_mib=process.base_mib,
    )
    write_json(result.to_json(), options.folder / FRONT)
    return result


def _together(
    state: SessionsState,
    search: JointSearch,
    schedule: Schedule,
    trials: int,
    measure: Callable[[Schedule, Arrangement], Replays],
    answers: ChainAnswers,
) -> tuple[Today, list[Confirmed]]:
    """Searches all sessions together; returns today's numbers and those of the best."""
    today = answers.today
    names = [part.name for part in search.parts]
    began_s = time.monotonic()

    def on_trial(done: int, trial: JointTrial) -> None:
        left_s = (time.monotonic() - began_s) / done * (trials - done)
        words = f"{done:6}/{trials}  {_numbers_of(trial)}  {choices_in_words(trial.choices, names)}"
        state.report(
            Progress(stage="together", done=done, total=trials, remaining_s=left_s, note=words)
        )

    def on_step(done: int, total: int) -> None:
        state.report(Progress(stage="confirming", done=done, total=total))

    state.report(Progress(stage="together", total=trials))
    place = _place(state.options.folder)
    with (
        exclusive_use(None, wait=state.options.wait, on_note=state.note),
        quiet_optuna(),
        open_storage(place) as storage,
        closing(measure(schedule, today)) as measurer,
        quick_commits(storage, place),
    ):
        study = joint_study(storage, search, conditions_of(schedule, today))
        until_s = None if state.left_s == math.inf else (1 - _CONFIRM_SHARE) * state.left_s
        search.run(measurer, trials, on_trial, study, until_s)
        cost_s = (time.monotonic() - began_s) / max(1, len(search.trials))
        most = max(
            _FEWEST_ENTRANTS, int(min(state.left_s / (FEWEST_ROUNDS * cost_s), _MOST_ENTRANTS))
        )
        entrants = _rated_entrants(search, measurer, state, answers, most)
        return confirm(
            measurer,
            entrants,
            on_step,
            min(schedule.turns, _FINAL_TURNS),
            seed=state.options.seed,
            left_s=lambda: state.left_s,
        )


def _today(state: SessionsState) -> Arrangement:
    """Returns the sessions that can be tuned as the application opens them."""
    return Arrangement(
        openings={
            item.session.name: Opening(model=item.model.path, session=item.today)
            for item in state.tunable
        }
    )


def _chain_samples(state: SessionsState, schedule: Schedule, play: Play) -> dict[str, list[Feed]]:
    """Returns samples of sessions in chains; leaves those whose calls cannot be made."""
    try:
        return samples_of_chains(schedule, _today(state), play)
    except DataError as error:
        for name in chained(schedule):
            leave(state, name, f"its calls cannot be made again: {error}")
        return {}


def _error_limits(state: SessionsState) -> dict[str, float]:
    """Returns the largest error of the sessions that no metric rates alone."""
    options = state.options
    limits: dict[str, float] = {}
    for item in state.tunable:
        name = item.session.name
        limit = options.max_error_of(name)
        if limit is None and options.metric_of(name) is None:
            limit = Limits().max_error
        if limit is not None:
            limits[name] = limit
    return limits


def _note_on_answers(state: SessionsState, rated: Mapping[str, Fidelity] | str) -> None:
    for name, own in rated.items() if isinstance(rated, Mapping) else ():
        share = own.agreement
        agree = "" if share is None else f" (the likeliest answer is the same in {share:.0%})"
        state.note(
            f"the answers of {name} have an error of {own.error:.2g}{agree} where it is fed what "
            "the tuned sessions return"
        )


def _own_limit_s(state: SessionsState, session: RecordedSession) -> float | None:
    """Returns how long the study of a session's model may take; None without a limit."""
    limit_s = state.options.timeout_s
    if limit_s is None:
        return None
    whole = sum(item.session.seconds for item in state.tunable) or 1.0
    return max(1.0, _OWN_SHARE * limit_s * session.seconds / whole)


def _duration_in_words(
    state: SessionsState, schedule: Schedule, budgets: Mapping[str, int], joint: int
) -> str:
    """Returns how long the study takes, in a sentence."""
    limit_s = state.options.timeout_s
    if limit_s is not None:
        return (
            f"this study takes about {math.ceil(limit_s / 60)} min (--timeout), and up to a minute "
            "more for what runs at its end"
        )
    own_s = sum(
        budgets[item.session.name]
        * (_TRIAL_S + _TRIAL_CALLS * item.session.seconds / max(1, item.session.calls))
        for item in state.tunable
    )
    replay_s = (2 * schedule.turns + 2) * schedule.recorded_s
    minutes = (own_s + (joint + ROUNDS * _MOST_ENTRANTS) * replay_s) / 60
    return f"this study takes about {math.ceil(minutes)} min; --timeout bounds it as a whole"


def _numbers_of(trial: JointTrial) -> str:
    if trial.played is None:
        return trial.failure
    return f"{trial.played.ratio:.2f} of the time  {trial.played.peak_mib:.0f} MiB"


def _place(folder: Path) -> Place:
    """Returns where the search over all sessions lies."""
    return Place(URL.create("sqlite", database=str(folder.resolve() / TOGETHER)))


def _rated_entrants(
    search: JointSearch, measurer: Replays, state: SessionsState, answers: ChainAnswers, most: int
) -> dict[str, Arrangement]:
    """Returns what takes part at the end, without what gives wrong answers in a chain."""
    failed = [trial.failure for trial in search.trials if trial.failure]
    if failed:
        state.notes.append(f"{len(failed)} configurations failed, such as: {failed[0]}")
    while True:
        right = [
            trial
            for trial in search.trials
            if not answers.is_refused(search.arrangement(trial.choices))
        ]
        candidates = _entrants(replace(search, trials=right), measurer, state)
        right_ones = [item for item in candidates.items() if not answers.is_refused(item[1])]
        entrants = dict(right_ones[:most])
        problems = {label: answers.problem(own) for label, own in entrants.items()}
        if not any(problems.values()):
            return entrants
        for label, problem in problems.items():
            if problem:
                state.note(f"{label} is left out: {problem}")


def _entrants(
    search: JointSearch, measurer: Replays, state: SessionsState
) -> dict[str, Arrangement]:
    """Returns what takes part at the end: the best of the search, and the defaults."""
    chosen = finalists(search, measurer.baseline.peak_mib, state.options.limits)
    ranked = [
        (trial.label or f"configuration {number}", trial.choices)
        for number, trial in enumerate(chosen, start=1)
    ]
    if (both := joined(search)) is not None:
        ranked.insert(1, ("the best of both, joined", both))
    entrants = {label: search.arrangement(choices) for label, choices in ranked}
    plain = {
        part.name: Opening(model=part.members[TODAY].model, session=SessionConfig())
        for part in search.parts
    }
    if any(plain[part.name] != part.members[TODAY] for part in search.parts):
        entrants[_DEFAULTS] = Arrangement(openings=plain)
    return entrants


def _write(state: SessionsState, search: JointSearch, best: Confirmed | None) -> Mapping[str, str]:
    """Writes the tuned application; returns what changes by session, in words."""
    arrangement = None if best is None else search.arrangement(best.choices or {})
    threads = None if arrangement is None else arrangement.pool_threads
    changes: dict[str, str] = {}
    tuned: dict[str, Replacement] = {}
    names = [session.name for session in state.recording.sessions]
    folders = new_folders(state.options.folder, names)
    for item in state.tunable:
        session, name = item.session, item.session.name
        opening = None if arrangement is None else arrangement.openings[name]
        unchanged = Opening(model=item.model.path, session=item.today)
        data = tuple(DataFile.of(path) for path in item.model.data_files)
        if best is None or opening is None or (opening == unchanged and threads is None):
            tuned[name] = Replacement(session=session, data_files=data, config=None, source=None)
            continue
        assert item.study is not None
        label = str((best.choices or {}).get(f"{name}.member", TODAY))
        config, source = item.study.write(label, folders[name])
        tuned[name] = Replacement(
            session=session,
            data_files=data,
            config=_opened_as(config, opening.session),
            source=source,
        )
        words = session_in_words(best.choices or {}, name)
        if label != TODAY:
            words = words.replace(label, f"{label} ({item.study.words(label)})", 1)
        pool = f"from the pool of {threads} threads" if threads else ""
        changes[name] = ", ".join(filter(None, [words, pool]))
    for session in state.recording.sessions:
        tuned.setdefault(session.name, Replacement(session=session, config=None, source=None))
    write_application(state.options.folder, list(tuned.values()), threads)
    return changes


def _opened_as(config: TunedConfig, session: SessionConfig) -> TunedConfig:
    """Returns a config whose model is opened as `session` says."""
    providers = tuple(name for name, _ in session.providers)
    return replace(config, session=session, requires=replace(config.requires, providers=providers))


def _session_results(state: SessionsState, changes: Mapping[str, str]) -> tuple[SessionResult, ...]:
    whole = sum(session.seconds for session in state.recording.sessions) or 1.0
    studies = {item.session.name: item.study for item in state.tunable}
    results = []
    for session in state.recording.sessions:
        study = studies.get(session.name)
        results.append(
            SessionResult(
                name=session.name,
                share=session.seconds / whole,
                study="" if study is None else str(study.folder),
                changes=changes.get(session.name, ""),
                reason=state.reasons.get(session.name, ""),
                passed=session.opened.passed,
                calls=session.calls,
                shapes=_shapes(session),
                shape_count=len(session.shapes),
            )
        )
    return tuple(results)


def _shapes(session: RecordedSession) -> tuple[ShapeResult, ...]:
    """Returns the shapes of a session that take most time."""
    shapes = sorted(session.shapes.values(), key=lambda shape: shape.seconds, reverse=True)
    return tuple(
        ShapeResult(
            inputs={item.name: item.shape for item in shape.inputs},
            calls=shape.calls,
            seconds=shape.seconds,
            kept=len(shape.files),
        )
        for shape in shapes[:MOST_SHAPES]
    )
