"""Where the program prints: results to stdout, all else to stderr."""

import json
import sys
from typing import Any

from rich.console import Console

# Names of models and folders may hold brackets and colons: text is never read as markup.
# A file or a pipe has no width: its lines are not folded at 80 characters.
output = Console(
    highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160
)
messages = Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(document: dict[str, Any]) -> None:
    """Prints one JSON document to stdout."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")
