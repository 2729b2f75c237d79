"""This machine, as a study sees it."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autotune.facts.hardware import Hardware
from autotune.facts.providers import NO_DEVICE, NOT_INSTALLED, READY, ProviderState
from autotune.facts.runtime import Runtime
from autotune.measure.noise import NoiseCheck
from autotune.report.text import percent

_STATES = (READY, NO_DEVICE, NOT_INSTALLED)


def render_hardware(
    machine: Hardware,
    runtime: Runtime,
    providers: Sequence[ProviderState],
    check: NoiseCheck | None,
    problems: Sequence[str],
) -> RenderableType:
    """Returns a line for each fact, then what disturbs measurements.

    Args:
        machine: The machine.
        runtime: The installed ONNX Runtime.
        providers: The execution providers.
        check: The noise check; None where it was left out.
        problems: What makes measurements on the machine doubtful.
    """
    facts = {
        "CPU": machine.cpu,
        "features": ", ".join(machine.features) or "unknown",
        "cores": f"{machine.usable_cores} usable; the machine has {machine.logical_cores} logical, "
        f"{machine.physical_cores} physical",
        "memory": f"{machine.memory_mib} MiB",
        "system": f"{machine.system}, {machine.architecture}",
        "ONNX Runtime": runtime.version,
        "fingerprint": machine.fingerprint(runtime),
    }
    if check is not None:
        facts["noise floor"] = _noise(check)
    lines: list[RenderableType] = [Text(f"{name:13} {text}") for name, text in facts.items()]
    lines += ["", Text("Execution providers"), _providers(providers), ""]
    lines += [Text(f"Warning: {problem}.", style="yellow") for problem in problems]
    return Group(*lines, *([] if problems else [Text("No problems found.")]))


def _providers(states: Sequence[ProviderState]) -> RenderableType:
    """Returns a row for each provider: its word, its state, and what brings it or keeps it out."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    for state in sorted(states, key=lambda state: _STATES.index(state.state)):
        devices = f" ({', '.join(state.devices)})" if state.devices else ""
        package = f"{state.package}: " if state.package and state.reason else state.package
        table.add_row(
            Text(f"  {state.word}"), Text(state.state), Text(f"{package}{state.reason}{devices}")
        )
    return table


def _noise(check: NoiseCheck) -> str:
    """Returns what the noise check showed, in a sentence or two."""
    return (
        f"{percent(check.floor)}; one measurement cannot show smaller differences. "
        f"{check.repetitions} repetitions of one configuration; {percent(check.contaminated)} of "
        "the turns were disturbed and repeated. Without measuring in pairs, the repetitions "
        f"would differ by {percent(check.plain_spread - 1)}."
    )
