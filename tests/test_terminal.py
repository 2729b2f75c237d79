"""What commands print, on terminals of three widths, and into a pipe."""

import re
from io import StringIO

import pytest
from made_results import application, member, part, result, simplification
from pages import profiling
from rich.console import Console
from small_spaces import machine
from test_gate import make_comparison, make_config
from test_inspect import FINDING, made_inspection

from autotune.cli.console import _width
from autotune.deploy.options import Value
from autotune.facts.providers import NO_DEVICE, READY, ProviderState
from autotune.facts.runtime import Runtime
from autotune.inspection.profile import TimeShare
from autotune.report.application import view_application
from autotune.report.changes import view_why
from autotune.report.comparison import view_comparison
from autotune.report.hardware import view_hardware
from autotune.report.inspection import view_inspection
from autotune.report.profile import view_profile
from autotune.report.result import view_effects, view_ending, view_result
from autotune.report.terminal import renderable
from autotune.report.view import Table, View
from autotune.results.gate import judge

_WINNER: dict[str, Value] = {
    "pre_pass": "algebra",
    "precision": "int8_static",
    "per_channel": True,
    "weight_storage": "external_data",
    "intra_op_num_threads": 1,
    "arena": "off",
}
_NODE = TimeShare(
    name="/backbone/stage.3/block.7/conv/Conv", operator="Conv", time_ms=0.123, share=0.4, nodes=3
)
_STUDY = result(
    member(41, _WINNER, 3.517, 15.9, 0.006),
    member(7, {"arena": "off"}, 1.02, 40.0),
    picked=41,
    simplification=simplification(
        41,
        [
            part({"precision": "int8_static", "per_channel": True}, ["latency_ms"], 3.3, 0.5),
            part({"weight_storage": "external_data"}, ["peak_memory_mib"], 1.0, 0.84),
        ],
        3.5,
        0.4,
    ),
)
_COMPARISON = make_comparison(make_config(), make_config("another config.json", 1.1))
_VIEWS = {
    "the end of a study": view_ending(_STUDY, "report.html"),
    "show": view_result(_STUDY),
    "show --why": view_why(_STUDY),
    "show --effects": view_effects(_STUDY),
    "compare": view_comparison(_COMPARISON, judge(_COMPARISON)),
    "inspect": view_inspection(made_inspection(FINDING)),
    "profile": view_profile(profiling(_NODE)),
    "hardware": view_hardware(
        machine(cores=2, features=("avx2", "avx512f", "avx512_vnni")),
        Runtime(version="1.32.0", build="", providers=("CPUExecutionProvider",)),
        (
            ProviderState(word="cpu", state=READY),
            ProviderState(word="cuda", state=NO_DEVICE, reason="there is no driver of NVIDIA's"),
        ),
        None,
        ("in the last minute 4.6 threads wanted to run at a time, on 2 cores",),
    ),
    "a tuned application": view_application(application(), "report.html"),
}


def _lines(view: View, width: int) -> list[str]:
    text = StringIO()
    Console(file=text, width=width, markup=False).print(renderable(view))
    return text.getvalue().splitlines()


@pytest.mark.parametrize("width", [60, 80, 160])
@pytest.mark.parametrize("name", _VIEWS)
def test_nothing_is_lost_or_broken_at_any_width(name: str, width: int) -> None:
    """Every number stands on one line with its brackets, every word is there, the arrow too."""
    view = _VIEWS[name]
    lines = _lines(view, width)
    assert max(map(len, lines)) <= width
    assert [line for line in lines if line != line.rstrip()] == []
    for table in (block for block in view.blocks if isinstance(block, Table)):
        for row in table.rows:
            parts = [cell for n, cell in enumerate(row) if n not in table.words]
            parts += [word for n in table.words for word in row[n].split() if len(word) < 30]
            assert [part for part in parts if not any(part in line for line in lines)] == []
    assert not any(re.match(r" *(%|ms|MiB)\b", line) for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_a_row_of_the_front_is_a_block_on_a_narrow_terminal(width: int) -> None:
    lines = _lines(_VIEWS["the end of a study"], width)
    start = lines.index("→ trial 41")
    block = " ".join(line.strip() for line in lines[start + 1 : start + 5])
    assert block.startswith("latency ms 2.843, speed-up 3.52 (3.48–3.55), memory MiB 15.9, error")
    assert "changes: graph rewrite (algebra), int8 static, per channel, " in block


def test_a_row_of_the_front_is_a_row_on_a_wide_terminal() -> None:
    (row,) = (line for line in _lines(_VIEWS["the end of a study"], 160) if line[:1] == "→")
    assert row.split()[:3] == ["→", "41", "2.843"]
    assert row.endswith(
        "graph rewrite (algebra), int8 static, per channel, external data, no arena, 1 thread"
    )


def test_a_pipe_has_the_width_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert _width(StringIO()) == 160
    monkeypatch.setenv("COLUMNS", "60")
    assert _width(StringIO()) is None  # Rich takes it
    assert Console(file=StringIO(), width=_width(StringIO())).width == 60
