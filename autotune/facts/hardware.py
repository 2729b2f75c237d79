"""This machine: the facts that decide how fast a session is, and what disturbs timings here."""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from autotune.deploy import cgroups, cpu
from autotune.facts.runtime import Runtime
from autotune.process import memory
from autotune.process.child import child_environment

_THERMAL = Path("/sys/devices/system/cpu")
_PEAK_RESET = "/proc/self/clear_refs"
_THROTTLE_COUNTS = "cpu[0-9]*/thermal_throttle/core_throttle_count"


Facts = Mapping[str, str]
"""Facts about a machine and its ONNX Runtime, by name, each for a person to read."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The facts of a machine that decide how fast a session is.

    Attributes:
        features: Its instruction sets that ONNX Runtime chooses kernels by.
        architecture: Such as ``x86_64``.
        usable_cores: Logical cores that this process may keep busy: its affinity, cut down to the
            cgroup's quota.
        quota_cores: The cgroup's CPU quota; None where there is none.
        gpus: Name and driver of each NVIDIA GPU, such as ``NVIDIA H200, driver 570.1``.
        system: Operating system and kernel family, such as ``Linux 6``.
    """

    cpu: str
    features: tuple[str, ...]
    architecture: str
    logical_cores: int
    physical_cores: int
    usable_cores: int
    quota_cores: float | None
    memory_mib: int
    gpus: tuple[str, ...]
    system: str

    def facts(self, runtime: Runtime) -> Facts:
        """Returns the facts that decide whether measurements can mix, by name, to be read."""
        return {
            "CPU": self.cpu,
            "CPU features": ", ".join(sorted(self.features)),
            "architecture": self.architecture,
            "logical cores": str(self.logical_cores),
            "physical cores": str(self.physical_cores),
            "usable cores": str(self.usable_cores),
            "CPU quota": "none" if self.quota_cores is None else f"{self.quota_cores:g}",
            # to the GiB: kernels differ by some pages
            "memory": f"{self.memory_mib / 1024:.0f} GiB",
            "GPU": "; ".join(self.gpus) or "none",
            "system": self.system,
            "ONNX Runtime": runtime.version,
            "ONNX Runtime's build": runtime.build,
            "execution providers": ", ".join(runtime.providers),
            "provider plugins": ", ".join(runtime.plugins) or "none",
        }

    def fingerprint(self, runtime: Runtime) -> str:
        """Returns 16 hexadecimal digits that differ where measurements cannot mix."""
        text = json.dumps(self.facts(runtime), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(here: Facts, there: Facts) -> list[str]:
    """Returns how two machines differ, a phrase for each fact; empty where measurements can mix."""
    names = dict.fromkeys([*here, *there])
    return [
        f"{name}: {here.get(name, 'unknown')} here, {there.get(name, 'unknown')} there"
        for name in names
        if here.get(name) != there.get(name)
    ]


def hardware() -> Hardware:
    """Returns this machine."""
    logical = psutil.cpu_count(logical=True) or 1
    return Hardware(
        cpu=cpu.cpu_model(),
        features=tuple(sorted(cpu.cpu_features())),
        architecture=platform.machine(),
        logical_cores=logical,
        physical_cores=psutil.cpu_count(logical=False) or logical,
        usable_cores=cpu.usable_cores(),
        quota_cores=cgroups.cpu_quota(),
        memory_mib=memory.usable_mib(),
        gpus=_gpus(),
        system=f"{platform.system()} {platform.release().split('.')[0]}",
    )


@cache
def _gpus() -> tuple[str, ...]:
    """Returns name and driver of each GPU, from NVIDIA's own tool; empty where that is missing."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    query = [tool, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        text = subprocess.run(
            query,
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
            env=child_environment(),
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip().replace(", ", ", driver ") for line in text.splitlines() if line)


def timing_warnings(machine: Hardware) -> list[str]:
    """Returns what makes measurements on this machine uncertain now, each with its cure."""
    reasons = []
    quota = machine.quota_cores
    if quota is not None and quota < machine.logical_cores:
        reasons.append(
            f"a CPU quota of {quota:g} cores throttles this process; "
            "give it whole cores (a cpuset) instead"
        )
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor not in {"", "performance"}:
        reasons.append(
            f"the frequency governor is '{governor}'; "
            "set it to 'performance' (cpupower frequency-set -g performance)"
        )
    load = psutil.getloadavg()[0]
    if load > 0.2 * machine.logical_cores:
        reasons.append(
            f"in the last minute {load:.1f} threads wanted to run at a time, on "
            f"{machine.logical_cores} cores; stop what can be stopped"
        )
    busy = psutil.cpu_times_percent(interval=0.2)
    if getattr(busy, "steal", 0.0) > 1:
        reasons.append(
            f"neighbours on the same host take {busy.steal:.0f} % of the cores; "
            "measure at a quieter time or on a machine of your own"
        )
    hot = sum(_count(_read(str(path))) for path in _THERMAL.glob(_THROTTLE_COUNTS))
    if hot:
        reasons.append(
            f"the processor was throttled for heat {hot} times since the start; "
            "see to its cooling, and let it rest before a study"
        )
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is not None and not battery.power_plugged:
        reasons.append("the machine runs on battery; plug it in")
    if sys.platform == "linux" and not os.access(_PEAK_RESET, os.W_OK):
        reasons.append(
            f"this kernel resets no peak memory ({_PEAK_RESET}); what a session needs is an upper "
            "bound here, so measure memory elsewhere"
        )
    if psutil.swap_memory().used > 0.5 * machine.memory_mib * 2**20:
        reasons.append("the machine swaps; free some memory")
    return reasons


def _count(text: str) -> int:
    """Returns the number that a file of the kernel holds; 0 where it holds another text."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else 0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
