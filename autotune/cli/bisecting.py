"""The command ``bisect``: which release of ONNX Runtime brought a change.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import messages, own_cores, present
from autotune.cli.options import DataOption, JsonOption, QuietOption, ShapeOption
from autotune.errors import NotBetterError, RequestError
from autotune.process.signals import signals_later

_MODEL = typer.Argument(metavar="MODEL", help="A model (.onnx), or a config such as best.json.")
_RUNTIMES = typer.Option(
    "--runtimes",
    metavar="A..B",
    help="First and last release, such as onnxruntime==1.22.0..1.28.0.",
)


def bisect_releases(
    model: Annotated[Path, _MODEL],
    runtimes: Annotated[str, _RUNTIMES],
    data: DataOption = None,
    shape: ShapeOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Finds the release of ONNX Runtime that made a model slower, leak, fail or answer differently.

    Releases between both are installed as they are needed, as by `autotune runtimes add`. The exit
    code is 3 if something changed.
    """
    messages().quiet = quiet
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.facts.inputs import workload_for
        from autotune.report.comparison import view_changes
        from autotune.results.subjects import lineup_of, subject_of
        from autotune.results.versions import Bisection
        from autotune.runtimes import environments
        from autotune.runtimes.names import Release, read_release

    start, dots, end = runtimes.partition("..")
    if not dots or "==" not in start:
        raise RequestError(
            f"--runtimes: write the first and the last release as onnxruntime==1.22.0..1.28.0, not "
            f"'{runtimes}'"
        )
    first = read_release(start)
    last = read_release(end if "==" in end else f"{first.name}=={end}")
    if last.name != first.name or last.numbers < first.numbers:
        raise RequestError(f"--runtimes: {last} is no later release of {first.name}")
    lineup = lineup_of([model], None, None)
    workload = workload_for(lineup.model, data, dict(shape or ()))
    releases = environments.releases_between(first, last)
    own = environments.own_release()

    def prepare(release: Release) -> None:
        if release != own and not environments.is_there(str(release)):
            environments.add(release, messages().print)

    with own_cores(), steps("comparing") as on_step:
        bisection = Bisection(
            subject_of(model), lineup, workload, releases, prepare, on_step, messages().print
        )
        changes = bisection.changes()
    names = [str(release) for release in releases]
    present(view_changes(str(first), str(last), names, changes), as_json=as_json)
    if changes:
        raise typer.Exit(NotBetterError.exit_code)
