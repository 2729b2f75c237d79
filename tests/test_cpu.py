"""Names of processors, from texts as kernels write them."""

import io
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.deploy import cpu

X86 = "processor\t: 0\nmodel name\t: AMD EPYC 7B13\nflags\t\t: fpu avx2 fma\n\n"
ARM = (
    "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU architecture: 8\n"
    "CPU variant\t: 0x3\nCPU part\t: {}\n\n"
)
S390 = (
    "vendor_id       : IBM/S390\nfeatures\t: esan3 zarch\n\n"
    "processor 0: version = FF,  identification = 2733E8,  machine = 3906\n"
)
POWER = "processor\t: 0\ncpu\t\t: POWER9 (architected), altivec supported\nrevision\t: 2.3\n\n"
RISC_V = "processor\t: 0\nisa\t\t: rv64imafdc\nuarch\t\t: sifive,u74-mc\n\n"


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Forgets what the kernel said before and after the test."""
    caches = (cpu._cpuinfo, cpu.cpu_model)
    for cached in caches:
        cached.cache_clear()
    monkeypatch.setattr(sys, "platform", "linux")
    yield monkeypatch
    for cached in caches:
        cached.cache_clear()


def _name(kernel: pytest.MonkeyPatch, text: str, machine: str) -> str:
    kernel.setattr(Path, "open", lambda *_, **__: io.StringIO(text))
    kernel.setattr(platform, "machine", lambda: machine)
    kernel.setattr(platform, "processor", lambda: "")
    cpu._cpuinfo.cache_clear()
    cpu.cpu_model.cache_clear()
    return cpu.cpu_model()


def test_processors_have_the_names_that_their_kernels_tell(kernel: pytest.MonkeyPatch) -> None:
    assert _name(kernel, X86, "x86_64") == "AMD EPYC 7B13"
    assert cpu.cpu_features() == {"avx2", "fma"}
    assert _name(kernel, S390, "s390x") == "s390x machine 3906"
    assert _name(kernel, POWER, "ppc64le").startswith("POWER9")
    assert _name(kernel, RISC_V, "riscv64") == "sifive,u74-mc"
    assert _name(kernel, "", "sparc64") == "sparc64"


def test_two_arm_processors_have_two_names(kernel: pytest.MonkeyPatch) -> None:
    """A config of one is not taken for one of the other, and strict=True refuses it."""
    graviton2 = _name(kernel, ARM.format("0xd0c") * 2, "aarch64")
    graviton4 = _name(kernel, ARM.format("0xd4f") * 2, "aarch64")
    assert graviton2 == "aarch64 (implementer 0x41 part 0xd0c variant 0x3)"
    assert graviton4 != graviton2
    # cores of two kinds
    both = _name(kernel, ARM.format("0xd05") + ARM.format("0xd0b"), "aarch64")
    assert both.count("part") == 2


def test_a_mac_tells_its_processor(kernel: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The fake of sysctl stands for the one of macOS, where this was never run."""
    kernel.setattr(sys, "platform", "darwin")
    kernel.setattr(cpu, "_mac_name", lambda: "Apple M3 Pro")
    assert cpu.cpu_model() == "Apple M3 Pro"


def test_of_an_x86_one_core_is_read(kernel: pytest.MonkeyPatch) -> None:
    """The kernel takes milliseconds to write the blocks of a hundred cores."""
    file = io.StringIO(X86 * 100)
    kernel.setattr(file, "close", lambda: None)
    kernel.setattr(Path, "open", lambda *_, **__: file)
    assert cpu.cpu_model() == "AMD EPYC 7B13"
    assert file.readline() == "processor\t: 0\n", "the second core's"
