"""ONNX Runtime, or an error that says how to install it."""

from autotune.errors import MissingPackageError

try:
    import onnxruntime
except ImportError as error:
    raise MissingPackageError(
        "onnxruntime is not installed. Install one flavour with autotune: "
        'pip install "ort-autotune[cpu]" (or [gpu], [openvino], [directml]).'
    ) from error

__all__ = ["onnxruntime"]
