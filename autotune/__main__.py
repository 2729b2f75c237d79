"""The entry point of the program: ``autotune``, and ``python -m autotune``.

Importing the commands takes a good part of a second, and an interrupt in the middle of an import
would show a traceback. So the signals are handled first. Before this file is reached Python itself
starts, for some hundredths of a second, and shows its own words.
"""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing and types take longer to import than the signal handlers
    from types import FrameType
    from typing import NoReturn


def main() -> None:
    """Runs the command line, and ends with its exit code."""
    try:
        import signal

        for number in (signal.SIGINT, signal.SIGTERM):
            # a shell's background jobs start with Ctrl-C ignored
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _leave)
        from autotune.cli.app import main as run
        from autotune.cli.interrupts import ending_quietly, exit_code
    except KeyboardInterrupt:
        os._exit(130)
    try:
        with ending_quietly():
            run()
    except KeyboardInterrupt:  # it came between the two lines above, or after them
        os._exit(exit_code())


def _leave(number: int, _: "FrameType | None") -> "NoReturn":
    """Ends the program at once: nothing was begun that has to be put in order."""
    os._exit(128 + number)


if __name__ == "__main__":
    main()
