"""ONNX Runtime without its telemetry, or an error that says how to install it."""

import sys

from autotune.deploy.telemetry import switch_off
from autotune.errors import MissingPackageError

WAS_IMPORTED = "onnxruntime" in sys.modules
"""Whether the application imported it first, and may have registered an allocator."""

switch_off()
try:
    import onnxruntime
except ImportError as error:
    raise MissingPackageError(
        "onnxruntime is not installed. Install one flavour beside autotune: pip install "
        "onnxruntime (or onnxruntime-gpu, onnxruntime-openvino, onnxruntime-directml)."
    ) from error

__all__ = ["WAS_IMPORTED", "onnxruntime"]
