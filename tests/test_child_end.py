"""The child's end of the channel, in this process."""

import pytest
from command_line import printed

from autotune.process.child_end import printable


def test_printable_keeps_one_line() -> None:
    assert printable("a\n\tb\x1b[0m  c\x00") == "a b [0m c"


@pytest.mark.process
def test_the_childs_end_needs_the_standard_library_alone() -> None:
    script = "import sys, autotune.process.child_end; print(*sys.modules)"
    modules = printed(script).split()
    ours = {name for name in modules if name.split(".")[0] == "autotune"}
    # the package itself switches telemetry off before onnxruntime can be imported
    telemetry = {"autotune.deploy", "autotune.deploy.telemetry"}
    assert ours == {"autotune", "autotune.process", "autotune.process.child_end", *telemetry}
    assert not {"numpy", "psutil", "filelock", "subprocess", "onnxruntime"} & set(modules)
