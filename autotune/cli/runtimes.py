"""The command ``runtimes``: other ONNX Runtimes, each in an environment of its own.

Commands import what they need when they run, so that ``--help`` and refusals come at once.
"""

from typing import Annotated

import typer

from autotune.cli.console import messages, present
from autotune.cli.options import JsonOption, QuietOption
from autotune.errors import RequestError, did_you_mean
from autotune.process.signals import signals_later

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
    with signals_later():
        from autotune.report.runtimes import view_added, view_removed, view_runtimes
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
