"""The machine: its facts, execution providers, noise and disturbances; and its ONNX Runtimes."""

from collections.abc import Sequence
from dataclasses import asdict

from autotune.deploy.providers import WORDS
from autotune.deploy.records import to_plain
from autotune.facts.hardware import Hardware
from autotune.facts.providers import NO_DEVICE, NOT_INSTALLED, READY, ProviderState
from autotune.facts.runtime import Runtime
from autotune.measure.noise import NoiseCheck
from autotune.report.text import percent
from autotune.report.view import BLANK, Block, Line, Table, View
from autotune.runtimes.environments import RuntimeEnvironment
from autotune.runtimes.names import Release

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
    warnings = [Line(f"Warning: {problem}.", "warning") for problem in problems]
    return View(
        blocks=[
            Table(
                headings=("fact", ""), rows=list(facts.items()), words=(0, 1), has_headings=False
            ),
            BLANK,
            Line("Execution providers", "title"),
            _providers(providers),
            BLANK,
            *(warnings or [Line("Nothing was found that disturbs measurements.")]),
        ],
        data={
            **asdict(machine),
            "onnxruntime": runtime.version,
            "providers": runtime.providers,
            "execution_providers": [asdict(state) for state in providers],
            "fingerprint": machine.fingerprint(runtime),
            "noise": None if check is None else asdict(check),
            "warnings": list(problems),
        },
    )


def _providers(states: Sequence[ProviderState]) -> Table:
    """Returns a row for each provider: its word, its state, and what brings it or is missing."""
    rows = []
    for state in sorted(states, key=lambda state: _STATES.index(state.state)):
        devices = f" ({', '.join(state.devices)})" if state.devices else ""
        package = f"{state.package}: " if state.package and state.reason else state.package
        rest = f"{package}{state.reason}{devices}"
        rows.append((f"  {state.word}", f"{state.state}; {rest}" if rest else state.state))
    return Table(headings=("provider", "state"), rows=rows, words=(0, 1), has_headings=False)


def _noise(check: NoiseCheck) -> str:
    """Returns what the noise check showed, in a sentence or two."""
    return (
        f"{percent(check.floor)}: one measurement cannot show smaller differences. "
        f"One configuration was measured {check.repetitions} times; "
        f"{percent(check.contaminated)} of the time slices were disturbed and repeated. "
        f"Without paired measurement the results would differ by {percent(check.plain_spread - 1)}."
    )


def view_runtimes(
    own: Release | None, runtime: Runtime, added: Sequence[RuntimeEnvironment]
) -> View:
    """Returns a row for the user's own runtime and for each that was added.

    Args:
        own: The distribution in the user's environment; None where it is a build of its own.
    """
    name = "onnxruntime" if own is None else own.name
    rows = [(f"{name}=={runtime.version}", _words(runtime.providers), "your environment")]
    rows += [(str(each.release), _words(each.providers), _size(each.size_bytes)) for each in added]
    blocks: list[Block] = [
        Table(headings=("runtime", "providers", "size"), rows=rows, words=(0, 1, 2)),
        BLANK,
        Line("autotune runtimes add NAME[==VERSION] adds one; study --runtimes searches them."),
    ]
    data = {
        "own": {"name": name, "version": runtime.version, "providers": list(runtime.providers)},
        "added": [to_plain(each) for each in added],
    }
    return View(blocks=blocks, data=data)


def view_added(made: Sequence[RuntimeEnvironment]) -> View:
    """Returns what was added, and what to type next."""
    blocks = [
        Line(
            f"Added {each.release} ({_words(each.providers)}), {_size(each.size_bytes)}.",
            "good",
        )
        for each in made
    ]
    names = ",".join(str(each.release) for each in made)
    blocks.append(Line(f"Next: autotune study MODEL --runtimes {names}"))
    return View(blocks=blocks, data={"added": [to_plain(each) for each in made]})


def view_removed(releases: Sequence[Release], freed_bytes: int) -> View:
    """Returns what was removed."""
    names = ", ".join(map(str, releases))
    return View(
        blocks=[Line(f"Removed {names}; {_size(freed_bytes)} are free again.")],
        data={"removed": [str(release) for release in releases], "freed_bytes": freed_bytes},
    )


def _words(providers: Sequence[str]) -> str:
    # every wheel has that of Azure, which runs no model here
    return ", ".join(WORDS[name] for name in providers if name in WORDS) or "cpu"


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f} MiB"
