"""Records the outputs in README.md and docs/ from real runs, or checks that they still hold.

A page marks an output with the command that prints it, above a fenced block::

    <!-- output: autotune hardware -->

The commands of a page run one after another in one empty folder, without a terminal. A page that
works on a model says which files it needs (``<!-- needs: model.onnx inputs.npz -->``); they are
copied from the folder ``--files``. The block gets what the command prints to stdout; a study's
progress goes to stderr and is not recorded.

    python docs/record.py                  # checks: each line without a figure is printed again
    python docs/record.py --write          # writes the blocks anew, and docs/terminal.svg
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/tutorial.md")
PICTURE = ROOT / "docs" / "terminal.svg"
_BLOCK = re.compile(
    r"(<!-- output: (?P<command>[^\n]+) -->\n```\n)(?P<output>.*?)(```\n)", re.DOTALL
)
_NEEDS = re.compile(r"<!-- needs: (?P<names>[^\n]+) -->")
_WIDTH = 100


def main() -> int:
    """Returns 0 if all pages are as their commands print them, or are written; 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the blocks anew")
    parser.add_argument("--files", type=Path, default=Path(), help="folder of the models")
    parser.add_argument("pages", nargs="*", default=PAGES)
    options = parser.parse_args()
    stale = 0
    for name in options.pages:
        path = ROOT / name
        page = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            if missing := _copy(page, options.files, Path(folder)):
                sys.stdout.write(f"{name}: skipped; {missing} is not in {options.files}\n")
                continue
            if options.write:
                path.write_text(_rewritten(page, Path(folder)))
            else:
                stale += _stale(name, page, Path(folder))
    return min(stale, 1)


def _copy(page: str, files: Path, folder: Path) -> str:
    """Copies the files that the page needs; returns the name of one that is missing, or nothing."""
    needs = _NEEDS.search(page)
    for name in needs["names"].split() if needs else ():
        if not (files / name).is_file():
            return name
        shutil.copy(files / name, folder)
    return ""


def _run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command of a page and returns its output.

    Raises:
        SystemExit: it failed.
    """
    environment = {**os.environ, "COLUMNS": str(_WIDTH), "FORCE_COLOR": "1"}
    run = subprocess.run(
        shlex.split(command), cwd=folder, env=environment, capture_output=True, text=True
    )
    if run.returncode:
        sys.exit(f"{command} ended with {run.returncode}:\n{run.stderr}{run.stdout}")
    return run


def _plain(output: str) -> str:
    """Returns the output without colours and without spaces at the ends of lines."""
    lines = Text.from_ansi(output).plain.splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _rewritten(page: str, folder: Path) -> str:
    """Returns the page with all outputs recorded anew; draws the picture if the page shows it."""

    def record(block: re.Match[str]) -> str:
        command = block["command"]
        _prepare(command, folder)
        run = _run(command, folder)
        if "on a busy machine" in run.stdout:
            sys.exit(f"{command} ran on a busy machine; record it again when the machine is quiet")
        if PICTURE.name in page:
            _draw(command, run)
        return f"{block[1]}$ {command}\n{_plain(run.stdout)}{block[4]}"

    return _BLOCK.sub(record, page)


def _prepare(command: str, folder: Path) -> None:
    """Writes the sample model that a command works on, if no other command has written it."""
    if "cnn.onnx" in command and not (folder / "cnn.onnx").exists():
        _run("autotune sample cnn.onnx", folder)


def _stale(name: str, page: str, folder: Path) -> int:
    """Returns how many recorded lines without a figure a run does not print; prints them."""
    count = 0
    for block in _BLOCK.finditer(page):
        _prepare(block["command"], folder)
        printed = set(_plain(_run(block["command"], folder).stdout).splitlines())
        for line in _without_figures(block["output"]):
            if line not in printed:
                count += 1
                sys.stdout.write(f"{name}: `{block['command']}` does not print: {line}\n")
    return count


def _without_figures(output: str) -> Iterator[str]:
    """Yields the recorded lines that every run prints: those without a digit."""
    for line in output.splitlines()[1:]:
        if line.strip() and not re.search(r"[0-9]", line):
            yield line


def _draw(command: str, run: subprocess.CompletedProcess[str]) -> None:
    """Draws the picture of a command and its result in a terminal."""
    with Path(os.devnull).open("w") as nothing:
        console = Console(record=True, width=_WIDTH, file=nothing, force_terminal=True)
        console.print(Text.assemble(("$ ", "bold green"), command))
        console.print(Text.from_ansi(run.stdout))
        console.save_svg(str(PICTURE), title="autotune")


if __name__ == "__main__":
    sys.exit(main())
