"""Every benchmark runs to its last line, on small models."""

import ast
import contextlib
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import brief_studies
import onnx
import postgresql
import program
import psutil
import pytest
from recording import read
from small_models import BUILDERS

from autotune.deploy import telemetry

pytestmark = pytest.mark.stress

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SHORT = "--max-latency 1us"
"""Nothing is that fast, so that the final comparison measures the default alone."""
_RECORD = "lstm.onnx space.toml out.jsonl.gz --warm-up 1 --rounds 2 --more-rounds 0"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A short form of a benchmark."""

    arguments: str
    holds: Callable[[Any], object]
    alone: bool = False


CASES = {
    "algebra": Case(
        arguments="lstm.onnx --quick --counts",
        holds=lambda it: all(
            row["errors"][1] < 1e-5 and row["nodes"][1] <= row["nodes"][0]
            for model in it["models"].values()
            for row in model["variants"].values()
        ),
    ),
    "arena": Case(
        arguments="--batch 4 --size 64 --trials 1",
        holds=lambda it: (
            it["held_without_mib"] < it["held_mib"]
            and it["chosen_peak_mib"] <= it["default_peak_mib"]
        ),
    ),
    "layout": Case(
        arguments="--size 32",
        holds=lambda it: all(
            row["reorders"] >= 1 and row["share_extended"] == 0 < row["share_all"]
            for row in (it["convolution"], it["with pooling"])
        ),
    ),
    "answers": Case(
        arguments="",
        holds=lambda it: all(
            (row["new"] <= 0.05) == row["change"].startswith("harmless") for row in it["rows"]
        ),
    ),
    "subnormal": Case(
        arguments="--width 64 --trials 2", holds=lambda it: "of 16,384 weights" in it["evidence"]
    ),
    "gpu": Case(
        arguments="--rehearse --minutes 1.5 --models cnn",
        holds=lambda it: len(it["models"]["cnn"]) >= 4,
        alone=True,
    ),
    "memory": Case(
        arguments="alone --repeats 1 --configs 2",
        holds=lambda it: (
            [row["config"] for row in it["rows"]] == ["no NCHWc", "external data"]
            and all(min(row["trial"] + row["script"]) > 0 for row in it["rows"])
        ),
    ),
    "models": Case(
        arguments=f"lstm.onnx --space session --trials 1 --processes 1 --seconds 0 {SHORT}",
        holds=lambda it: it["models"]["lstm"]["trials"] == 1 and not it["models"]["lstm"]["wrong"],
    ),
    "noise": Case(
        arguments="lstm.onnx --repetitions 1 --tries 1 --seconds 0.05 --retakes 0",
        holds=lambda it: it["repetitions"] == it["tries"] == 1,
    ),
    "providers": Case(
        arguments=f"lstm.onnx --trials 2 --cpu-python {sys.executable}",
        holds=lambda it: (
            it["models"]["lstm"]["winner"] == "cpu"
            and all(
                it["models"]["lstm"][where]["providers"] == ["CPUExecutionProvider"]
                and it["models"]["lstm"][where]["difference"] <= 0.05
                for where in ("loaded", "loaded_on_cpu")
            )
        ),
    ),
    "samplers": Case(
        arguments="lstm.onnx --trials 3 --seeds 1",
        holds=lambda it: it["samplers"].keys() == {"effects", "tpe"},
    ),
    "serving": Case(
        arguments="lstm.onnx --clients 2 --trials 1 --rounds 2",
        holds=lambda it: all(
            it["lstm"]["2"][name]["throughput_per_s"] > 0
            for name in ("default", "one_client", "tuned")
        ),
    ),
    "record": Case(arguments=_RECORD, holds=lambda it: len(read(it / "out.jsonl.gz")) == 4),
    "search": Case(
        arguments="--quick --seeds 1 --tables tables --strategies effects,random",
        holds=lambda it: 0 < it["strategies"]["random"]["hv"]["100"] <= 1,
        alone=True,
    ),
    "digits": Case(
        arguments="",
        holds=lambda it: it == {"ranges of digits": "within", "ranges of noise": "beyond"},
    ),
    "shared": Case(
        arguments=f"--table {BENCHMARKS / 'dev/tables/vit_tiny.jsonl.gz'} --trials 8 --trial-s 0 "
        "--workers 1,2",
        holds=lambda it: [row["twice"] for row in it["workers"]["0 s"].values()] == [0, 0],
        alone=True,
    ),
    "zoo": Case(
        arguments="cnn.onnx lstm.onnx transformer.onnx --inputs",
        holds=lambda it: it["runs"] == 3 and it["wrong"] == 0,
    ),
}
"""The short forms of all benchmarks, by name."""
WRITERS = {"record"}
"""Benchmarks that write a file and print no object."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models, a space of four configurations, and one small table."""
    place = tmp_path_factory.mktemp("benchmarks")
    (place / "alone").mkdir()
    for file in ("cnn.onnx", "lstm.onnx", "transformer.onnx", "alone/lstm.onnx"):
        onnx.save(BUILDERS[Path(file).stem](), place / file)
    (place / "space.toml").write_text(
        'description = "arenas"\n'
        "[parameters.arena]\n"
        'values = ["on", "off"]\n'
        'default = "on"\n'
        "[parameters.enable_mem_pattern]\n"
        "values = [true, false]\n"
        "default = true\n"
    )
    (place / "tables").mkdir()
    (place / "tables" / "cnn.jsonl.gz").symlink_to(BENCHMARKS / "dev/tables/cnn.jsonl.gz")
    return place


def test_every_benchmark_has_a_short_form() -> None:
    with_main = {
        path.stem
        for path in BENCHMARKS.rglob("*.py")
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "main"
            for node in ast.parse(path.read_text(encoding="utf-8")).body
        )
    }
    # these need models that no environment of the tests has, have tests of their own below, or are
    # a part of another one
    alone = {"decoder", "gpu_contenders", "hook", "service", "service_application"}
    alone |= {"package_application", "packages"}
    assert with_main - alone == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_a_benchmark_runs_to_its_last_line(
    name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What it prints there is right as far as a moment of measuring can tell."""
    if name == "shared":
        pytest.importorskip("psycopg", reason="the driver for PostgreSQL is not installed")
        if postgresql.find_programs() is None:
            pytest.skip("PostgreSQL is not installed")
    if name == "digits":
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    case = CASES[name]
    arguments = [*case.arguments.split(), *(["--json"] if name not in WRITERS else [])]
    if case.alone:
        (script,) = BENCHMARKS.rglob(f"{name}.py")
        command = [sys.executable, str(script), *arguments]
        printed = subprocess.run(
            command, cwd=place, stdout=subprocess.PIPE, text=True, timeout=600, check=True
        ).stdout
    else:
        _inside(name, arguments, place, monkeypatch)
        printed = capsys.readouterr().out
    assert case.holds(place if name in WRITERS else json.loads(printed.splitlines()[-1])), printed


def _application(
    name: str, arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs a benchmark of an application; its studies take a moment."""
    benchmark = importlib.import_module(name)
    tuning = importlib.import_module("tuning")
    monkeypatch.setattr(tuning, "AUTOTUNE", brief_studies.AUTOTUNE)
    monkeypatch.setenv(telemetry.VARIABLE, telemetry.OFF)
    monkeypatch.setattr(sys, "argv", [name, *arguments.split(), "--json"])
    benchmark.main()
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def _applications(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS / "applications")
    for name in ("hook", "service", "package_application", "tuning"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.usefixtures("_applications")
def test_the_hook_is_timed_beside_plain_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = _application("hook", "--quick --runs 100 --rounds 1", monkeypatch, capsys)
    assert rows.keys() == {"plain", "record", "run"}
    assert all(row["us"] > 0 and row["opening_ms"] > 0 for row in rows.values())


@pytest.mark.usefixtures("_applications")
def test_a_service_is_tuned_together_and_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All three ways answer all requests, and near each other."""
    for package in ("fastapi", "uvicorn"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    arguments = f"--quick --requests 16 --trials 2 --rounds 1 --folder {tmp_path}"
    rows = _application("service", arguments, monkeypatch, capsys)
    assert rows.keys() == {"today", "apart", "together"}
    for row in rows.values():
        assert row["requests_per_s"] > 0
        assert max(row["text_error"], row["image_error"]) < 0.05


@pytest.mark.usefixtures("_applications")
def test_an_application_of_a_package_prints_a_digest_of_its_answers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Equal answers have equal digests, whichever package it is."""
    benchmark = importlib.import_module("package_application")
    answers = iter(["a", "b", "a", "b", "a", "c"])
    monkeypatch.setitem(
        benchmark.APPLICATIONS, "magika", lambda count: [next(answers) for _ in range(count)]
    )
    monkeypatch.setattr(sys, "argv", ["package_application", "magika", "2"])
    for _ in range(3):
        benchmark.main()
    first, same, other = capsys.readouterr().out.splitlines()
    assert first == same != other


def _inside(name: str, arguments: list[str], place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a benchmark in this process; its measurements take a moment."""
    brief_studies.measure_briefly(monkeypatch.setattr)
    monkeypatch.setattr(program, "AUTOTUNE", brief_studies.AUTOTUNE)
    monkeypatch.setenv(telemetry.VARIABLE, telemetry.OFF)
    monkeypatch.syspath_prepend(BENCHMARKS / "cases")
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    benchmark = importlib.import_module(name)
    assert not benchmark.main()


def test_a_neighbour_ends_with_its_benchmark() -> None:
    """Also where the benchmark is killed: it would be a neighbour of the next one."""
    script = (
        "import time, neighbours, psutil\n"
        "with neighbours.neighbours(1, seed=0, longest_s=0.06):\n"
        "    print(psutil.Process().children()[0].pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=BENCHMARKS, stdout=subprocess.PIPE, text=True
    ) as benchmark:
        assert benchmark.stdout is not None
        neighbour = psutil.Process(int(benchmark.stdout.readline()))
        benchmark.kill()
    deadline = time.monotonic() + 30
    with contextlib.suppress(psutil.NoSuchProcess):
        # an orphan may stay a zombie until the first process of the machine looks at it
        while neighbour.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.05)
