"""The process-wide CPU allocator of ONNX Runtime.

Needs the standard library and onnxruntime, and nothing else of autotune's dependencies.
"""

import threading
from collections.abc import Mapping

from autotune.deploy.runtime import onnxruntime
from autotune.errors import ConfigError

_registered: dict[str, int] = {}
_registering = threading.Lock()


def register_allocator(chosen: Mapping[str, int]) -> None:
    """Registers the CPU arena that sessions with ``session.use_env_allocators`` share.

    It is one for the whole process: ONNX Runtime keeps the first, so a second, different request
    is refused rather than ignored.

    Raises:
        ConfigError: this process already has another allocator.
    """
    with _registering:
        if _registered:
            if _registered != dict(chosen):
                raise ConfigError(
                    f"this process already has a CPU allocator with {_registered}; "
                    f"a config that asks for {dict(chosen)} needs a process of its own"
                )
            return
        memory = onnxruntime.OrtMemoryInfo(
            "Cpu",
            onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
            0,
            onnxruntime.OrtMemType.DEFAULT,
        )
        arena = {"max_mem": 0, "initial_chunk_size_bytes": -1, "max_dead_bytes_per_chunk": -1}
        settings = onnxruntime.OrtArenaCfg({**arena, **chosen})
        onnxruntime.create_and_register_allocator(memory, settings)
        _registered.update(chosen)
