"""Commands that look into a model: ``inspect`` and ``profile``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli import parsing
from autotune.cli.console import messages, own_cores, present
from autotune.cli.options import (
    DataOption,
    JsonOption,
    ModelOption,
    PairOption,
    QuietOption,
    ShapeOption,
    ValueOption,
)
from autotune.cli.report import write_last_page


def inspect_file(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The .onnx file of the model.")],
    data: DataOption = None,
    shape: ShapeOption = None,
    value: ValueOption = None,
    pairs: PairOption = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", metavar="", help="Only read the file; measure nothing."),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Shows what holds a model back on this machine, and what helps."""
    messages().quiet = quiet
    from autotune.cli.progress import steps
    from autotune.inspection.inspect import inspect_model
    from autotune.report.inspection import view_inspection

    with nullcontext() if quick else own_cores(), steps("inspecting") as on_step:
        inspection = inspect_model(
            model,
            data=data,
            shapes=dict(shape or ()),
            values=parsing.numbers(value),
            pairs=dict(pairs or ()),
            quick=quick,
            on_step=on_step,
        )
    present(view_inspection(inspection), as_json=as_json)


def profile_session(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|CONFIG|DIR",
            help="A model, a tuned config such as best.json, or the folder of a study.",
        ),
    ],
    model: ModelOption = None,
    data: DataOption = None,
    shape: ShapeOption = None,
    value: ValueOption = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Shows where the time of a run goes, and how far it is from the machine's peak.

    A tuned config is shown beside the default. The profile of a study is kept in its folder, and
    report.html shows it.
    """
    messages().quiet = quiet
    from autotune.cli.progress import steps
    from autotune.deploy.files import is_folder
    from autotune.report.profile import view_profile
    from autotune.results.profiling import profile
    from autotune.results.writing import PAGE

    with own_cores(), steps("profiling") as on_step:
        profiling = profile(
            what,
            model,
            data=data,
            shapes=dict(shape or ()),
            values=parsing.numbers(value),
            on_step=on_step,
        )
    present(view_profile(profiling), as_json=as_json)
    if is_folder(what):
        problem = write_last_page(what)
        messages().print(problem or f"Report: {what / PAGE}", soft_wrap=True)
