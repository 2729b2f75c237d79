"""Commands that look into a model: ``inspect`` and ``profile``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import messages, output, print_json
from autotune.cli.options import DataOption, JsonOption, ShapeOption
from autotune.cli.report import write_last_page
from autotune.process.signals import signals_later


def inspect_file(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The .onnx file of the model.")],
    data: DataOption = None,
    shape: ShapeOption = [],
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Only read the file. Without it, each suspicion is measured as well."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows what holds a model back on this machine, and what helps."""
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.inspection.inspect import inspect_model
        from autotune.report.inspection import render_inspection

    with steps("inspecting") as on_step:
        inspection = inspect_model(
            model, data=data, shapes=dict(shape), quick=quick, on_step=on_step
        )
    if as_json:
        print_json(inspection.to_json())
    else:
        output.print(render_inspection(inspection))


def profile_session(
    what: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL|CONFIG|DIR",
            help="A model, a tuned config such as best.json, or the folder of a study.",
        ),
    ],
    model: Annotated[
        Path | None,
        typer.Option(
            help="The original model of a config. Needed only where the study's folder does not "
            "know it."
        ),
    ] = None,
    data: DataOption = None,
    shape: ShapeOption = [],
    as_json: JsonOption = False,
) -> None:
    """Shows where the time of a run goes.

    It also shows how far a run is from what the machine could do at most. A tuned config is shown
    beside the default. The profile of a study's folder is kept there, and its report.html shows it.
    """
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.deploy.files import is_folder
        from autotune.report.profile import render_profiling
        from autotune.results.profiling import profile, profile_study

    measure = profile_study if is_folder(what) else profile
    with steps("profiling") as on_step:
        profiling = measure(what, model, data=data, shapes=dict(shape), on_step=on_step)
    if as_json:
        print_json(profiling.to_json())
    else:
        output.print(render_profiling(profiling))
    if is_folder(what):
        messages.print(write_last_page(what), soft_wrap=True)
