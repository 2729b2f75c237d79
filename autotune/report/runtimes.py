"""Runtimes as a table, and what became of one."""

from collections.abc import Sequence

from autotune.deploy.providers import WORDS
from autotune.deploy.records import to_plain
from autotune.facts.runtime import Runtime
from autotune.report.view import BLANK, Block, Line, Table, View
from autotune.runtimes.environments import RuntimeEnvironment
from autotune.runtimes.names import Release


def view_runtimes(
    own: Release | None, runtime: Runtime, added: Sequence[RuntimeEnvironment]
) -> View:
    """Returns a row for the user's own runtime and for each that was added.

    Args:
        own: The distribution in the user's environment; None where it is a build of its own.
    """
    name = "onnxruntime" if own is None else own.name
    rows = [(f"{name}=={runtime.version}", _words(runtime.providers), "your environment", "")]
    rows += [
        (str(each.release), _words(each.providers), _size(each.size_bytes), each.sha256[:12])
        for each in added
    ]
    blocks: list[Block] = [
        Table(headings=("runtime", "providers", "size", "checksum"), rows=rows, words=(0, 1, 2, 3)),
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
            f"Added {each.release} ({_words(each.providers)}), {_size(each.size_bytes)}, checksum "
            f"{each.sha256[:12]}.",
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
