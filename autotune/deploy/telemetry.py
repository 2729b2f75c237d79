"""ONNX Runtime's telemetry, which autotune switches off. Standard library only.

Wheels since 1.29 have it on by default: importing them starts a thread, writes a device number and
a database of events to the user's cache folder and a file to the temporary folder, and uploads
the events. ONNX Runtime looks at the variable once, when it is imported (``Privacy.md`` in its
package), so the variable is set before.
"""

import os

VARIABLE = "ORT_DISABLE_TELEMETRY"
"""Environment variable of ONNX Runtime; only the text ``1`` switches its telemetry off."""

OFF = "1"
"""The text of the variable that switches it off."""


def switch_off() -> None:
    """Switches telemetry off in this process, unless its environment has the variable already.

    A program that wants to send telemetry sets the variable to ``0``, or imports onnxruntime before
    it imports autotune.
    """
    os.environ.setdefault(VARIABLE, OFF)
