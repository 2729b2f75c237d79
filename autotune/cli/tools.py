"""Commands around a study: ``sample``, ``hardware``, ``spaces`` and ``runtimes``.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.console import messages, output, own_cores, present
from autotune.cli.options import JsonOption, QuietOption
from autotune.errors import RequestError, did_you_mean, typed


def write_sample(
    path: Annotated[
        Path, typer.Argument(metavar="FILE.onnx", help="The file to write the model to.")
    ],
    kind: Annotated[
        str,
        typer.Option(
            metavar="cnn|transformer|lstm", help="Kind of the model (cnn).", show_default=False
        ),
    ] = "cnn",
    force: Annotated[
        bool, typer.Option("--force", metavar="", help="Overwrite the file if it exists.")
    ] = False,
) -> None:
    """Writes a sample model on which to try autotune."""
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
    output().print(f"Wrote {path}. Next: autotune study {typed(path)} --trials 20", soft_wrap=True)


def show_hardware(
    noise: Annotated[
        bool,
        typer.Option(metavar="", help="Measure the noise floor (ten seconds).", show_default=False),
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Shows this machine, its execution providers, its noise, and what disturbs timings."""
    from autotune.cli.progress import steps
    from autotune.facts.hardware import hardware, timing_warnings
    from autotune.facts.providers import provider_states
    from autotune.facts.runtime import runtime
    from autotune.measure.noise import noise_check
    from autotune.report.hardware import view_hardware

    installed = runtime()
    machine = hardware()
    providers = provider_states()
    # before the noise check, which keeps the machine busy itself
    problems = timing_warnings(machine)
    check = None
    if noise:
        with own_cores(), steps("noise check") as on_step:
            check = noise_check(on_step)
    view = view_hardware(machine, installed, providers, check, problems)
    present(view, as_json=as_json)


def show_spaces(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE", help="Show this preset or TOML file instead of the list."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Lists the presets of search spaces, or shows one in full."""
    from autotune.report.spaces import view_space, view_spaces
    from autotune.space.files import find_space, presets

    view = view_spaces(map(find_space, presets())) if name is None else view_space(find_space(name))
    present(view, as_json=as_json)


_ACTIONS = ("list", "add", "remove")
_ACTION = typer.Argument(metavar="[add|remove]", help="What to do; list them if left out.")
_NAMES = typer.Argument(
    metavar="NAME[==VERSION]",
    help="Runtimes such as onnxruntime-openvino, or onnxruntime==1.28.0,1.30.0.",
)


def runtimes(
    action: Annotated[str, _ACTION] = "list",
    names: Annotated[list[str] | None, _NAMES] = None,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Lists, adds and removes other builds and versions of ONNX Runtime.

    Each is installed into a folder of its own in your cache, with uv or pip; your environment stays
    as it is. `study --runtimes` then searches them beside yours.
    """
    messages().quiet = quiet
    from autotune.report.hardware import view_added, view_removed, view_runtimes
    from autotune.runtimes import environments
    from autotune.runtimes.names import read_releases

    if action not in _ACTIONS:
        raise RequestError(
            f"runtimes does {', '.join(_ACTIONS)}, not '{action}'.{did_you_mean(action, _ACTIONS)}"
        )
    if action == "list":
        from autotune.facts.runtime import runtime

        own = environments.own_release()
        present(view_runtimes(own, runtime(), environments.added()), as_json=as_json)
        return
    releases = read_releases(names or [])
    if not releases:
        raise RequestError(f"name what to {action}, such as onnxruntime-openvino")
    if action == "add":
        made = [environments.add(each, messages().print) for each in releases]
        present(view_added(made), as_json=as_json)
    else:
        freed_bytes = sum(environments.remove(each) for each in releases)
        present(view_removed(releases, freed_bytes), as_json=as_json)
