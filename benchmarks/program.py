"""What the command lines of benchmarks share, and how they start autotune."""

import argparse
import json
import sys

AUTOTUNE: tuple[str, ...] = (sys.executable, "-m", "autotune")
"""The command line of the program; its arguments follow."""


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser that shows a module's docstring as it is and knows ``--json``."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="a JSON object as the last line")
    return parser


def print_json(given: argparse.Namespace, results: object) -> None:
    """Prints the results as the last line, where ``--json`` asks for that."""
    if given.json:
        print(json.dumps(results))
