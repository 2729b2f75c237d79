"""Memory of devices, by a driver that is made up."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.measure.device_memory import DeviceMemory, DeviceUsage

_MIB = 2**20


class FakeDriver:
    """NVML of a machine with two devices, in bytes."""

    class NVMLError(Exception):
        """As of pynvml."""

    def __init__(self) -> None:
        self.used = [300 * _MIB, 0]
        self.processes: list[list[tuple[int, int | None]]] = [[], []]
        self.tells = True

    def nvmlInit(self) -> None:  # noqa: N802  # pynvml's name
        """Finds the driver."""

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.used)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:  # noqa: N802
        return SimpleNamespace(used=self.used[device])

    def nvmlDeviceGetComputeRunningProcesses(self, device: int) -> list[Any]:  # noqa: N802
        if not self.tells:
            raise self.NVMLError("not supported")
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in self.processes[device]
        ]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    made = FakeDriver()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def _started() -> DeviceMemory:
    memory = DeviceMemory.start()
    assert memory is not None
    return memory


def test_the_memory_of_this_process_is_summed_over_devices(driver: FakeDriver) -> None:
    memory = _started()
    driver.used = [1000 * _MIB, 900 * _MIB]
    driver.processes = [[(os.getpid(), 64 * _MIB), (1, 500 * _MIB)], [(os.getpid(), 32 * _MIB)]]
    assert memory.usage() == DeviceUsage(mib=96.0, by_difference=False)


@pytest.mark.parametrize("known_as", ["another number", "no size", "nothing"])
def test_where_processes_are_not_told_growth_counts(driver: FakeDriver, known_as: str) -> None:
    """A container has other process numbers, or sizes are hidden, or the driver tells nothing."""
    memory = _started()
    own = os.getpid()
    if known_as == "another number":
        driver.processes[0] = [(own + 1, 64 * _MIB)]
    elif known_as == "no size":
        driver.processes[0] = [(own, None)]
    driver.tells = known_as != "nothing"
    driver.used = [428 * _MIB, 0]
    assert memory.usage() == DeviceUsage(mib=128.0, by_difference=True)


def test_memory_that_others_give_back_is_no_negative_use(driver: FakeDriver) -> None:
    memory = _started()
    driver.used = [100 * _MIB, 0]
    assert memory.usage() == DeviceUsage(mib=0.0, by_difference=True)


def test_without_a_driver_nothing_is_measured(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package may be there without a driver, or be missing itself."""

    def fail() -> None:
        raise FakeDriver.NVMLError("driver not loaded")

    monkeypatch.setattr(driver, "nvmlInit", fail)
    assert DeviceMemory.start() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert DeviceMemory.start() is None
