"""Memory of NVIDIA devices that this process holds, from the driver's library NVML.

Needs the package ``nvidia-ml-py`` (extra ``nvidia``); without it, or without a driver, nothing is
measured.
"""

import os
from dataclasses import dataclass
from typing import Any

from autotune.deploy.records import MeasuredAmount


@dataclass(frozen=True, kw_only=True)
class DeviceUsage:
    """Memory of the devices.

    Attributes:
        mib: Memory that this process holds, or, if `by_difference`, that has come to be used on
            the devices since :class:`DeviceMemory` was made.
        by_difference: Whether the driver does not tell the memory of single processes. What other
            processes allocate meanwhile counts as well then.
    """

    mib: MeasuredAmount
    by_difference: bool


class DeviceMemory:
    """The memory of all NVIDIA devices, as it grows from now on.

    Args:
        nvml: The module ``pynvml``, initialised.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._used_before = self._used()

    @classmethod
    def start(cls) -> "DeviceMemory | None":
        """Returns the memory of the devices; None where the package or the driver is missing."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
            return cls(pynvml)
        except pynvml.NVMLError:
            return None

    def usage(self) -> DeviceUsage:
        """Returns the memory that this process holds now."""
        if own := self._own():
            return DeviceUsage(mib=sum(own) / 2**20, by_difference=False)
        grown = max(0, self._used() - self._used_before)
        return DeviceUsage(mib=grown / 2**20, by_difference=True)

    def _own(self) -> list[int]:
        """Returns this process's bytes on each device; empty where the driver does not tell.

        In a container it may report process numbers of another namespace, and no sizes.
        """
        try:
            return [
                int(process.usedGpuMemory)
                for device in self._devices
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
                if process.pid == os.getpid() and process.usedGpuMemory is not None
            ]
        except self._nvml.NVMLError:
            return []

    def _used(self) -> int:
        return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(device).used) for device in self._devices)
