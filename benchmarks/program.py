"""How benchmarks start autotune in a process of its own."""

import sys

AUTOTUNE: tuple[str, ...] = (sys.executable, "-m", "autotune")
"""The command line of the program; its arguments follow."""
