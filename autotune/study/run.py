"""A whole study: its options are resolved, configurations are searched, the best are confirmed."""

import math
import secrets
from contextlib import closing
from dataclasses import replace

from autotune.results.result import StudyResult
from autotune.search.record import Record
from autotune.storage.database import Place, quick_commits, quiet_optuna
from autotune.storage.final_comparison import SharedComparison
from autotune.storage.identity import identity_of, notes_on, open_study, related_studies
from autotune.study.earlier import earlier_result
from autotune.study.finish import Finish, Interrupted
from autotune.study.folder import check_folder, emptied_if_refused, take_folder
from autotune.study.measured_trial import MeasuredTrial
from autotune.study.measuring import open_measurer, preparer_of
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress, TimeLeft
from autotune.study.resolve import resolve_study
from autotune.study.seams import Seams
from autotune.study.strategy import search_of

# Of the time that --timeout leaves after setting up; the rest is for the final comparison,
# leave-one-out and writing.
_SEARCH_SHARE = 0.6


def run_study(
    options: StudyOptions,
    report: OnProgress,
    seams: Seams | None = None,
    *,
    compare: bool = True,
) -> StudyResult:
    """Returns the result of a study.

    Args:
        compare: Whether the best are compared in fresh processes; else the result has the numbers
            of the search.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
        Interrupted: Ctrl-C after the default was measured.
    """

    def note(sentence: str) -> None:
        report(Progress(stage="model", note=sentence))

    seams = seams or Seams()
    deadline_s = seams.clock.monotonic() + (options.timeout_s or math.inf)
    report(Progress(stage="model"))
    ctx = resolve_study(options, seams, note)
    place = Place.of(options.storage, ctx.folder)
    check_folder(options, ctx, place)
    with (
        seams.lock(ctx.folder, place.file, wait=options.wait, on_note=note),
        emptied_if_refused(ctx.folder) as begin_measuring,
        quiet_optuna(),
        seams.storage(place, note) as database,
    ):
        take_folder(ctx.folder)
        study = open_study(database, place, ctx, identity_of(ctx), options.study_name)
        asked = options.resolved(ctx)
        study.set_user_attr("request", asked.to_record())
        ctx = replace(ctx, study=study.study_name)
        record = Record(ctx.objectives, ctx.limits)
        record.read(study)
        related = related_studies(database, ctx.study)
        for sentence in (*notes_on(related, ctx.facts, record.trials), *ctx.workload.notes):
            note(sentence)
        if earlier := earlier_result(ctx, options, record):
            result, sentence = earlier
            report(Progress(stage="done", note=sentence))
            return result
        _say_what_begins(len(record.trials), asked, report)
        began_s = seams.clock.monotonic() - record.spent_s
        if compare:
            report = TimeLeft(report, seams.clock.monotonic, began_s, deadline_s)
        preparer = preparer_of(ctx)
        opened = open_measurer(ctx, study, preparer, seams, is_shared=place.is_shared)
        begin_measuring()
        with closing(opened) as measurer, preparer.child.kept(), quick_commits(database, place):
            worker = secrets.token_hex(8) if place.is_shared else ""
            shared = SharedComparison(study, worker, seams.clock) if worker else None
            report = report if shared is None else shared.beating(report)
            objective = MeasuredTrial(study, ctx, record, measurer, report, worker, seams.clock)
            search = search_of(objective, options, related, seams.clock)
            judge = seams.judge(ctx, preparer, report, seams.clock.monotonic, began_s)
            finish = Finish(ctx, options, search, preparer, judge, shared, deadline_s)
            result = _with_other_builds(finish, seams, began_s, compare=compare)
        if ctx.hint:
            note(ctx.hint)
        return result


def _say_what_begins(known: int, asked: StudyOptions, report: OnProgress) -> None:
    """Says whether the default is measured next, or how many trials are taken over."""
    stage = "search" if known else "baseline"
    note = f"Taking over {known} trials of this study." if known else ""
    report(Progress(stage=stage, done=known, total=asked.trials, options=asked, note=note))


def _with_other_builds(
    finish: Finish, seams: Seams, began_s: float, *, compare: bool
) -> StudyResult:
    """Returns the result of a study, and says what a build would bring that it does not search."""
    others = seams.other_builds(
        finish.ctx,
        finish.options,
        finish.search,
        seams.runtimes,
        seams.hardware(),
        seams.providers(),
    )
    result = _run(
        replace(finish, deadline_s=finish.deadline_s - others.reserved_s), began_s, compare=compare
    )
    others.say(result, finish.deadline_s, probes=compare)
    return result


def _run(finish: Finish, began_s: float, *, compare: bool) -> StudyResult:
    """Returns the result of a search and its final comparison; Ctrl-C keeps what is measured."""
    try:
        left_s = max(0.0, finish.deadline_s - finish.search.clock.monotonic())
        search_s = left_s * (_SEARCH_SHARE if compare else 1.0)
        finish.search.run(finish.options.trials, search_s if search_s < math.inf else None)
        return finish.result(began_s) if compare else finish.cut_short()
    except Interrupted:
        raise
    except KeyboardInterrupt:
        baseline = finish.search.baseline
        if baseline is None or baseline.measurement is None:
            raise
        raise Interrupted(finish.cut_short()) from None
