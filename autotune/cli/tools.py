"""Commands around a study: ``sample``, ``hardware`` and ``spaces``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import output, print_json
from autotune.cli.options import DataOption, JsonOption, ShapeOption
from autotune.errors import RequestError, did_you_mean
from autotune.process.signals import signals_later


def write_sample(
    path: Annotated[
        Path, typer.Argument(metavar="FILE.onnx", help="The file to write the model to.")
    ],
    kind: Annotated[
        str,
        typer.Option(metavar="cnn|transformer|lstm", help="Which kind of model to write."),
    ] = "cnn",
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite the file if it exists.")
    ] = False,
) -> None:
    """Writes a sample model to try autotune with."""
    with signals_later():
        from autotune.facts.sample_models import KINDS, write

    if kind not in KINDS:
        near = did_you_mean(kind, KINDS)
        raise RequestError(f"--kind must be one of {', '.join(KINDS)}, not '{kind}'.{near}")
    if path.exists() and not force:
        raise RequestError(f"{path} exists already; name another file, or add --force")
    try:
        write(kind, path)
    except OSError as error:
        raise RequestError(f"cannot write {path}: {error.strerror}") from None
    output.print(
        f"Wrote {path}. Next: autotune study {shlex.quote(str(path))} --trials 20", soft_wrap=True
    )


def show_hardware(
    noise: Annotated[
        bool, typer.Option(help="Measure the noise floor as well; it takes about ten seconds.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Shows this machine, its providers and its noise.

    It also says what disturbs timings.
    """
    with signals_later():
        from autotune.cli.progress import steps
        from autotune.facts.hardware import doubts, hardware
        from autotune.facts.providers import provider_states
        from autotune.facts.runtime import runtime
        from autotune.measure.noise import noise_check
        from autotune.report.hardware import render_hardware

    installed = runtime()
    machine = hardware()
    providers = provider_states()
    # before the noise check, which keeps the machine busy itself
    problems = doubts(machine)
    check = None
    if noise:
        with steps("noise check") as on_step:
            check = noise_check(on_step)
    if as_json:
        print_json(
            {
                **asdict(machine),
                "onnxruntime": installed.version,
                "providers": installed.providers,
                "execution_providers": [asdict(state) for state in providers],
                "fingerprint": machine.fingerprint(installed),
                "noise": None if check is None else asdict(check),
                "doubts": problems,
            }
        )
    else:
        output.print(render_hardware(machine, installed, providers, check, problems))


def show_spaces(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE", help="Show this preset or TOML file instead of the list."
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(help="Show only what applies to this model on this machine."),
    ] = None,
    data: DataOption = None,
    shape: ShapeOption = [],
) -> None:
    """Lists the presets of search spaces, or shows one in full."""
    with signals_later():
        from autotune.report.space import render_count, render_space, render_spaces
        from autotune.space.files import find_space, presets

    if name is None and model is None:
        output.print(render_spaces(map(find_space, presets())))
        return
    space = find_space(name or "default")
    if model is None:
        output.print(render_space(space))
        return
    with signals_later():
        from autotune.facts.hardware import hardware
        from autotune.facts.model import describe
        from autotune.facts.providers import choose_providers, provider_states
        from autotune.facts.workload import workload_for
        from autotune.space.resolve import resolve

    description = describe(model)
    workload = workload_for(description, data, dict(shape))
    providers = choose_providers((), provider_states())
    resolved = resolve(space, description, workload, hardware(), providers=providers)
    output.print(render_space(resolved), "", render_count(resolved), sep="\n")
