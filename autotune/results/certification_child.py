"""The child in whose limits a program runs that opens a stranger's model, emulated or not."""

import os
import subprocess

from autotune.process.child_end import Message, serve


def run(message: Message) -> dict[str, object]:
    """Runs the program ``command`` with more ``environment``; returns its exit code and last line.

    The parent limits the time, and ends the program with this process.
    """
    done = subprocess.run(
        message["command"],
        env={**os.environ, **message["environment"]},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    return {"code": done.returncode, "words": lines[-1] if lines else ""}


if __name__ == "__main__":
    serve({"run": run})
