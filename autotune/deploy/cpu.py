"""The processor, for the study and for the loader. Standard library only."""

import os
import platform
import sys
from functools import cache
from pathlib import Path

from autotune.deploy import cgroups

# The instruction sets that decide which kernels ONNX Runtime picks, by their Linux names.
TUNING_FEATURES = frozenset(
    {
        *("sse4_1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
        *("avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16"),
        *("asimddp", "asimdhp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme"),
    }
)


@cache
def _cpuinfo() -> tuple[dict[str, str], ...]:
    """Returns the blocks of ``/proc/cpuinfo``, one for each core; empty elsewhere.

    The cores of an x86 are alike, and the kernel takes long to write the blocks of a hundred: there
    the first one is all.
    """
    blocks: list[dict[str, str]] = [{}]
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                key, colon, value = line.partition(":")
                if colon:
                    blocks[-1][key.strip()] = value.strip()
                elif "model name" in blocks[-1]:
                    break
                else:
                    blocks.append({})
    except OSError:
        return ()
    return tuple(blocks)


def _first(*names: str) -> str:
    """Returns what ``/proc/cpuinfo`` says first under one of these names; empty if nothing."""
    for name in names:
        for block in _cpuinfo():
            if block.get(name):
                return block[name]
    return ""


@cache
def cpu_model() -> str:
    """Returns the processor's name as the system gives it, such as ``AMD EPYC 7B13``.

    An ARM processor under Linux has numbers in place of a name, for each kind of its cores.
    """
    if sys.platform == "darwin":
        return _mac_name() or platform.machine()
    # in this order: x86 and LoongArch; POWER; RISC-V; MIPS
    name = _first("model name", "Model Name", "cpu", "uarch", "cpu model")
    kinds = dict.fromkeys(
        f"implementer {block.get('CPU implementer', '?')} part {block['CPU part']} "
        f"variant {block.get('CPU variant', '?')}"
        for block in _cpuinfo()
        if block.get("CPU part")
    )
    if kinds:
        return f"{name or platform.machine()} ({'; '.join(kinds)})"
    # s390 writes "version = FF, identification = 2733E8, machine = 3906" for each core
    if machine := _first("processor 0").rpartition("machine = ")[2]:
        name = name or f"{platform.machine()} machine {machine}"
    return name or _first("Hardware") or platform.processor() or platform.machine()


def _mac_name() -> str:
    """Returns a name such as ``Apple M3 Pro``; empty where the system does not tell."""
    import subprocess

    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(
            command, env={}, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def cpu_features() -> frozenset[str]:
    """Returns which of :data:`TUNING_FEATURES` this processor has.

    Only Linux lists them without native code; elsewhere the set is empty, which means unknown.
    """
    return TUNING_FEATURES & frozenset(_first("flags", "Features").split())


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
    quota = cgroups.cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota + 0.5)))
