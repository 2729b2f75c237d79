"""The processor, for the study and for the loader. Standard library only."""

import os
import platform
import sys
from functools import cache
from pathlib import Path

# The instruction sets that decide which kernels ONNX Runtime picks, by their Linux names.
TUNING_FEATURES = frozenset(
    {
        *("sse4_1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
        *("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16"),
        *("asimddp", "asimdhp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme"),
    }
)


@cache
def _cpuinfo() -> dict[str, str]:
    """Returns the first processor's block of ``/proc/cpuinfo``; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def cpu_model() -> str:
    """Returns the processor's name as the system gives it, such as ``AMD EPYC 7B13``."""
    info = _cpuinfo()
    name = info.get("model name") or info.get("Hardware") or platform.processor()
    return name or platform.machine()


def cpu_features() -> frozenset[str]:
    """Returns which of :data:`TUNING_FEATURES` this processor has.

    Only Linux lists them without native code; elsewhere the set is empty, which means unknown.
    """
    info = _cpuinfo()
    flags = info.get("flags") or info.get("Features") or ""
    return TUNING_FEATURES & frozenset(flags.split())


def is_x86() -> bool:
    """Returns whether this processor is an x86 one."""
    return platform.machine().lower() in {"x86_64", "amd64", "i386", "i686"}


def has_vnni() -> bool | None:
    """Returns whether an x86 processor has the instructions for eight-bit products (VNNI).

    None where the features of the processor are unknown.
    """
    features = cpu_features()
    return bool(features & {"avx512_vnni", "avx_vnni"}) if features else None


def computes_in_half() -> bool:
    """Returns whether ONNX Runtime's CPU provider computes nodes of float16 in float16.

    It does on ARM with arithmetic of half precision, and elsewhere casts to float32. What is
    unknown of a processor that is no x86 counts as such arithmetic.
    """
    features = cpu_features()
    return not is_x86() and (not features or bool(features & {"asimdhp", "fphp"}))


def weight_block() -> int:
    """Returns the size of the blocks in which ONNX Runtime lays out weights (NCHWc); 0 if unknown.

    MLAS takes 16 with AVX-512 and 8 with any other x86 (``platform.cpp``, ``NchwcBlockSize``).
    """
    features = cpu_features()
    if not is_x86() or not features:
        return 0
    return 16 if "avx512f" in features else 8


def usable_cores() -> int:
    """Returns how many logical cores this process may keep busy, at least 1.

    That is its affinity mask, cut down to the cgroup's CPU quota. ONNX Runtime itself looks at
    neither when ``intra_op_num_threads`` is 0 (microsoft/onnxruntime#29510).
    """
    if sys.platform == "linux":
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = cgroup_quota()
    return max(1, cores if quota is None else min(cores, int(quota + 0.5)))


def cgroup_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Returns the CPU quota in cores, such as 1.5; None where there is none (or no cgroup)."""
    try:
        limit, period = (root / "cpu.max").read_text(encoding="ascii").split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:  # cgroup v1
        limit_us = int((root / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((root / "cpu/cpu.cfs_period_us").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return limit_us / period_us if limit_us > 0 and period_us > 0 else None
