"""A whole study: its options are resolved, configurations are searched, the best are confirmed."""

from contextlib import closing
from dataclasses import replace

from autotune.results.result import StudyResult
from autotune.storage.database import Place, quiet_optuna
from autotune.storage.identity import notes_on, related_studies
from autotune.storage.store import Store
from autotune.study.finish import Finish, Interrupted, earlier_result
from autotune.study.folder import check_folder, take_folder
from autotune.study.loop import Search
from autotune.study.measuring import open_measurer, preparer_of
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress
from autotune.study.resolve import resolve_study
from autotune.study.seams import Seams
from autotune.study.strategy import strategy_of


def run_study(options: StudyOptions, report: OnProgress, seams: Seams | None = None) -> StudyResult:
    """Returns the result of a study.

    Raises:
        AutotuneError: the request is wrong, or nothing can be measured here.
        Interrupted: Ctrl-C after the default was measured.
    """

    def note(sentence: str) -> None:
        report(Progress(stage="model", note=sentence))

    seams = seams or Seams()
    report(Progress(stage="model"))
    ctx = resolve_study(options, seams)
    place = Place.of(options.storage, ctx.folder)
    check_folder(options, ctx, place)
    with (
        seams.lock(ctx.folder, place.file, wait=options.wait, on_note=note),
        quiet_optuna(),
        seams.storage(place) as database,
    ):
        take_folder(ctx.folder)
        store = Store.open(database, place, ctx, options.study_name, seams.clock, note)
        asked = options.resolved(ctx)
        store.study.set_user_attr("request", asked.to_record())
        ctx = replace(ctx, study=store.study.study_name)
        related = related_studies(database, ctx.study)
        for sentence in (*notes_on(related, ctx.facts, store.trials), *ctx.workload.notes):
            note(sentence)
        tried_all = store.has_tried_all(ctx)
        if earlier := earlier_result(ctx, options, len(store.trials), has_tried_all=tried_all):
            result, sentence = earlier
            report(Progress(stage="done", note=sentence))
            return result
        report(Progress(stage="baseline", options=asked))
        began_s = seams.clock.monotonic() - store.spent_s
        preparer = preparer_of(ctx)
        with closing(open_measurer(ctx, store, preparer, seams)) as measurer, preparer.child.kept():
            strategy = strategy_of(ctx, options, related, store.count)
            search = Search(strategy, store, measurer, report, seams.clock)
            judge = seams.judge(ctx, preparer, report, seams.clock.monotonic, began_s)
            finish = Finish(ctx, options, search, preparer, judge)
            try:
                search.run(options.trials, options.timeout_s)
                result = finish.result(began_s)
            except Interrupted:
                raise
            except KeyboardInterrupt:
                if search.baseline is None or search.baseline.measurement is None:
                    raise
                raise Interrupted(finish.cut_short()) from None
        store.clear_spool()
        if ctx.hint:
            note(ctx.hint)
        return result
