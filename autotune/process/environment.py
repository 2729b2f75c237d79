"""The environment variables of child processes.

A child gets what it needs to find its interpreter and its libraries. Storage URLs, tokens and ONNX
Runtime's own overrides (``ORT_INTRA_OP_NUM_THREADS`` resizes its pools) stay out.
"""

import os
import re
from pathlib import Path

from autotune.deploy.telemetry import OFF, VARIABLE

_KEPT = re.compile(
    r"PATH|HOME|USER|LANG|LC_.*|TZ|TMPDIR|TEMP|TMP|SYSTEMROOT|VIRTUAL_ENV"
    r"|PYTHON(PATH|HOME|DONTWRITEBYTECODE)|LD_(LIBRARY_PATH|PRELOAD)|DYLD_.*|MALLOC_.*|CUDA_.*|NVIDIA_.*"
    r"|VK_.*|ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"  # which driver of Vulkan WebGPU takes
)
_SET = {
    # also where the user has it on: its thread and its uploads would disturb what is measured
    VARIABLE: OFF,
    # numpy's pools; the study tunes ONNX Runtime's own pool
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


def child_environment(site: Path | None = None) -> dict[str, str]:
    """Returns the environment of a child, by name."""
    kept = {name: text for name, text in os.environ.items() if _KEPT.fullmatch(name)}
    if site is not None:
        paths = [str(site), *filter(None, [kept.get("PYTHONPATH")])]
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return {**kept, **_SET}
