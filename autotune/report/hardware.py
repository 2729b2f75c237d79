"""The machine: its facts, its execution providers, its noise, and what disturbs measurements."""

from collections.abc import Sequence
from dataclasses import asdict

from autotune.facts.hardware import Hardware
from autotune.facts.providers import NO_DEVICE, NOT_INSTALLED, READY, ProviderState
from autotune.facts.runtime import Runtime
from autotune.measure.noise import NoiseCheck
from autotune.report.text import percent
from autotune.report.view import BLANK, Line, Table, View, lines

_STATES = (READY, NO_DEVICE, NOT_INSTALLED)


def view_hardware(
    machine: Hardware,
    runtime: Runtime,
    providers: Sequence[ProviderState],
    check: NoiseCheck | None,
    problems: Sequence[str],
) -> View:
    """Returns a row for each fact and each provider, then what disturbs measurements."""
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
    found = [Line(f"Warning: {problem}.", "warning") for problem in problems]
    return View(
        blocks=[
            *lines(*(f"{name:13} {text}" for name, text in facts.items())),
            BLANK,
            Line("Execution providers", "title"),
            _providers(providers),
            BLANK,
            *(found or [Line("Nothing was found that disturbs measurements.")]),
        ],
        data={
            **asdict(machine),
            "onnxruntime": runtime.version,
            "providers": runtime.providers,
            "execution_providers": [asdict(state) for state in providers],
            "fingerprint": machine.fingerprint(runtime),
            "noise": None if check is None else asdict(check),
            "doubts": list(problems),
        },
    )


def _providers(states: Sequence[ProviderState]) -> Table:
    """Returns a row for each provider: its word, its state, and what brings it or is missing."""
    rows = []
    for state in sorted(states, key=lambda state: _STATES.index(state.state)):
        devices = f" ({', '.join(state.devices)})" if state.devices else ""
        package = f"{state.package}: " if state.package and state.reason else state.package
        rows.append((f"  {state.word}", state.state, f"{package}{state.reason}{devices}"))
    return Table(
        headings=("provider", "state", "package"), rows=rows, words=(0, 1, 2), has_headings=False
    )


def _noise(check: NoiseCheck) -> str:
    """Returns what the noise check showed, in a sentence or two."""
    return (
        f"{percent(check.floor)}: one measurement cannot show smaller differences. "
        f"One configuration was measured {check.repetitions} times; "
        f"{percent(check.contaminated)} of the time slices were disturbed and repeated. "
        f"Without paired measurement the results would differ by {percent(check.plain_spread - 1)}."
    )
