"""Every benchmark runs to its last line, on small models."""

import ast
import contextlib
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import brief_studies
import onnx
import postgresql
import program
import psutil
import pytest
from fakes import Cost, FakeMeasurer, thread_cost
from recording import read
from small_models import BUILDERS

from autotune.deploy import telemetry
from autotune.space.candidate import Candidate
from autotune.study import seams

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
ELSEWHERE = {"hostile": "test_hostile.py", "soak": "test_soak.py"}
"""Benchmarks whose smoke test is one of another file."""
SHORT = ("--max-latency", "1us")
"""Nothing is that fast, so that the final comparison measures the default alone."""

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small models, a space of four candidates, and a folder with one small table."""
    place = tmp_path_factory.mktemp("benchmarks")
    for name in ("cnn", "lstm"):
        onnx.save(BUILDERS[name](), place / f"{name}.onnx")
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
    (place / "tables" / "cnn.jsonl.gz").symlink_to(BENCHMARKS / "tables" / "cnn.jsonl.gz")
    return place


Run = Callable[..., str]
"""Runs a benchmark of this name with these arguments; returns what it prints."""


@pytest.fixture
def run(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Gives a function that runs a benchmark in this process; its measurements take a moment."""
    brief_studies.measure_briefly(monkeypatch.setattr)
    monkeypatch.setattr(program, "AUTOTUNE", brief_studies.AUTOTUNE)
    monkeypatch.setenv(telemetry.VARIABLE, telemetry.OFF)
    monkeypatch.syspath_prepend(BENCHMARKS / "cases")
    monkeypatch.chdir(place)

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        assert not importlib.import_module(name).main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def run_alone(place: Path) -> Run:
    """Gives a function that runs a benchmark as a program, as users start it."""

    def run(name: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / f"{name}.py"), *arguments],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def compute(monkeypatch: pytest.MonkeyPatch, name: str, cost: Cost) -> None:
    """Lets the studies of a benchmark, and its own measurer, compute instead of measuring."""
    for module in (seams, importlib.import_module(name)):
        monkeypatch.setattr(module, "DuetMeasurer", lambda *_, **__: FakeMeasurer(cost))


def _json(run: Run, name: str, *arguments: str) -> Any:
    """Returns the object or list that a benchmark prints as its last line."""
    return json.loads(run(name, *arguments, "--json").splitlines()[-1])


def test_every_benchmark_has_a_smoke_test() -> None:
    """A file with a main function is run by a test of this file, or by one of another file."""
    with_main = {
        path.stem
        for path in BENCHMARKS.rglob("*.py")
        if any(
            isinstance(node, ast.FunctionDef) and node.name == "main"
            for node in ast.parse(path.read_text(encoding="utf-8")).body
        )
    }
    for name, file in ELSEWHERE.items():
        assert f'"{name}.py"' in Path(__file__).with_name(file).read_text(encoding="utf-8")
    assert {f"test_{name}" for name in with_main - ELSEWHERE.keys()} <= globals().keys()


def test_ablation(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each change of a config makes it faster, the steps multiply and none is needless."""

    def cost(candidate: Candidate) -> tuple[float, float]:
        return 10.0 * 0.8 ** len(candidate.values), 100.0

    compute(monkeypatch, "ablation", cost)
    figures = _json(run, "ablation", "lstm.onnx", "--trials", "4")
    assert figures["parts"]["lstm"]["steps"]
    assert figures["parts"]["lstm"]["multiply"]
    assert figures["needless"] == {"lstm": []}


def test_arena(run: Run) -> None:
    """The arena is found, and the study needs no more memory than the default."""
    size = ("--batch", "4", "--size", "64", "--trials", "1")
    figures = _json(run, "arena", *size)
    assert figures["held_without_mib"] < figures["held_mib"]
    assert figures["chosen_peak_mib"] <= figures["default_peak_mib"]


def test_conformance(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of ONNX's own tests has the expected answers; another is refused for its operator."""

    def import_two(package: ModuleType) -> None:
        for name in ("add", "momentum"):
            importlib.import_module(f"{package.__name__}.{name}")

    # all of them take ten seconds
    monkeypatch.setattr("onnx.backend.test.case.node.import_recursive", import_two)
    figures = _json(run, "conformance", "test_add", "test_momentum")
    assert (figures["equal"], figures["refused"], figures["failed"]) == (1, 1, 0)


def test_graphs(run: Run) -> None:
    """A row for each graph half, the default's first."""
    rows = _json(run, "graphs", "lstm.onnx", "--trials", "2", *SHORT)["lstm"]
    assert len(rows) == 2
    assert rows[0]["latency"] == 1.0


def test_large(run: Run) -> None:
    """The study ends with a config that loads."""
    figures = _json(run, "large", "--width", "64", "--trials", "2", *SHORT)
    assert figures["trials"] == 2


def test_layout(run: Run) -> None:
    """Both models change the layout at the full level, and neither does at extended."""
    figures = _json(run, "layout", "--size", "32")
    assert set(figures) == {"convolution", "with pooling"}
    assert all(row["reorders"] >= 1 for row in figures.values())
    assert all(row["share_extended"] == 0 < row["share_all"] for row in figures.values())


def test_live(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both studies are compared in one run-off."""
    compute(monkeypatch, "live", thread_cost)
    figures = _json(run, "live", "lstm.onnx", "--trials", "3", "--random-trials", "2")
    assert figures["trials"] == {"effects": 3, "random": 2}
    assert 0 < figures["hypervolume_random"] <= 1
    assert 0 < figures["hypervolume_default"] <= 1


def test_loader(run_alone: Run) -> None:
    """The loader takes time and memory, as Python does."""
    config = Path(__file__).parent / "data" / "config" / "best.json"
    figures = _json(run_alone, "loader", str(config), "--processes", "1")
    assert figures["import_ms"] > 0
    assert 0 < figures["memory_mib"] < 20


def test_memory(run: Run, place: Path) -> None:
    """Both sides see the memory of a session, with weights in another file as well."""
    (place / "alone").mkdir()
    (place / "alone" / "lstm.onnx").symlink_to(place / "lstm.onnx")
    figures = _json(run, "memory", "alone", "--repeats", "1", "--configs", "2")
    assert [row["config"] for row in figures["rows"]] == ["no NCHWc", "external data"]
    assert all(min(row["trial"] + row["script"]) > 0 for row in figures["rows"])
    assert figures["held"] == 0  # one round has no range


def test_models(run: Run) -> None:
    """The promises hold for a model, by an independent script."""
    options = ("--space", "session", "--trials", "1", "--processes", "1", "--seconds", "0", *SHORT)
    figures = _json(run, "models", "lstm.onnx", *options)
    assert figures["models"]["lstm"]["trials"] == 1
    assert not figures["models"]["lstm"]["wrong"]


def test_all_processes_of_the_independent_script_run_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What one of them measures is not how long the next one runs."""
    models = importlib.import_module("models")
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 0, stdout="0.004 20.0")

    monkeypatch.setattr(subprocess, "run", run)
    config, model, feed = Path("best.json"), Path("m.onnx"), Path("feed.npz")
    assert models.independently(config, model, feed, 3, 1.5) == (1.0, 1.0)
    assert [float(command[-1]) for command in commands] == [1.5] * 6


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


def test_noise(run: Run) -> None:
    """All pairs are measured: the default, one thread, and chains of known work."""
    plan = ("--repetitions", "1", "--tries", "1", "--seconds", "0.05", "--retakes", "0")
    figures = _json(run, "noise", "lstm.onnx", *plan)
    assert figures["repetitions"] == figures["tries"] == 1
    assert figures["rank3_right"] in {0, 1}


def test_overhead(run: Run) -> None:
    """All of a study's time is on some part, and another checkout's study stands beside it."""
    options = ("--trials", "2", "--space", "session", "--against", str(BENCHMARKS.parent))
    figures = _json(run, "overhead", "lstm.onnx", *options)["lstm"]
    assert figures["trials"] == 2
    seconds = [part_s for both in figures["parts"].values() for part_s in both]
    assert sum(seconds) == pytest.approx(figures["wall_s"])
    assert figures["parts"]["making files"][0] > 0
    assert 0 < figures["final"] < 1
    assert figures["there"]["hypervolume"] > 0
    assert min(figures["again"]["here"], figures["again"]["there"]) > 0


def test_providers(run: Run) -> None:
    """Where the CPU provider is the only one, it wins, and its config loads without a word."""
    arguments = ("lstm.onnx", "--trials", "2", "--cpu-python", sys.executable)
    row = _json(run, "providers", *arguments)["models"]["lstm"]
    assert set(row["best"]) == {"cpu"}
    assert row["winner"] == "cpu"
    for where in ("loaded", "loaded_on_cpu"):
        assert row[where]["providers"] == ["CPUExecutionProvider"]
        assert row[where]["said"] == []
        assert row[where]["difference"] <= 0.05


def test_racing(run: Run) -> None:
    """The time of a search is split into parts."""
    figures = _json(run, "racing", "lstm.onnx", "--trials", "2")
    assert figures["trials"] == 2
    assert 0 < figures["inference_share"] < 1


def test_record(run: Run, place: Path) -> None:
    """Every candidate of the space is in the table."""
    rounds = ("--warm-up", "1", "--rounds", "2", "--more-rounds", "0")
    run("record", "lstm.onnx", "space.toml", "out.jsonl.gz", *rounds)
    assert len(read(place / "out.jsonl.gz")) == 4
    assert not (place / "out.jsonl").exists()


def test_roofline(run: Run) -> None:
    """Operations, peaks and the place of the default below the roof."""
    figures = _json(run, "roofline", "cnn.onnx", "--quick")["cnn"]
    assert figures["operations"] > 0
    assert figures["float_per_s"] > 0
    assert figures["share"] == pytest.approx(figures["roof_ms"] / figures["latency_ms"])


def test_search(run_alone: Run) -> None:
    """A recorded table is searched."""
    options = ("--quick", "--seeds", "1", "--tables", "tables", "--strategies", "effects,random")
    figures = _json(run_alone, "search", *options)
    assert figures["tables"] == figures["seeds"] == 1
    assert 0 < figures["strategies"]["random"]["hv"]["100"] <= 1


def test_sensitivity(run: Run) -> None:
    """More nodes in float never make a larger error than all of them in int8, by both rankings."""
    rows = _json(run, "sensitivity", "cnn.onnx", "--most", "1", "--seconds", "0.1")
    assert [(row["kept_in_float"], row["ranking"]) for row in rows] == [
        (0, "outputs"),
        (1, "outputs"),
        (1, "nodes"),
    ]
    assert max(row["error"] for row in rows[1:]) <= rows[0]["error"]


def test_serving(run: Run) -> None:
    """Default and configs side by side in both loops; a config of one trial is the default."""
    options = ("--clients", "2", "--trials", "1", "--rounds", "2", "--load", "0.1")
    row = _json(run, "serving", "lstm.onnx", *options)["lstm"]["2"]
    assert row["gain_clients"] > 0
    for name in ("default", "one_client", "tuned"):
        assert row[name]["throughput_per_s"] > 0
        assert row["open_loop"][name].keys() == {"p50_ms", "p99_ms", "kept_up"}


def test_turns(run: Run) -> None:
    """The ratio of both pairs with turns of both kinds, and its scatter at each cut."""
    options = ("--processes", "2", "--seconds", "0.4")
    figures = _json(run, "turns", "cnn.onnx", *options)["cnn"]
    for pair in ("same", "threads"):
        for kind in ("warm", "cold"):
            row = figures[pair][kind]
            assert row["reference_ms"] > 0
            assert row["ratio"] > 0
            assert list(row["scatter"]) == ["0.05", "0.1", "0.2", "0.4"]


def test_smoothing(run: Run) -> None:
    """The planted outliers cost less once they are smooth: no more nodes have to stay in float."""
    figures = _json(run, "smoothing", "--quick", "--seconds", "0.1")
    (sample,) = figures.values()
    assert {row["failure"] for row in sample["candidates"]} == {None}
    least = {
        (row["precision"], row["change"]): row["least"]["0.1"] for row in sample["nodes_in_float"]
    }
    assert least["dynamic", "smoothed 0.5"] == 0


@pytest.mark.skipif(postgresql.find_programs() is None, reason="PostgreSQL is not installed")
def test_shared(run_alone: Run) -> None:
    """One worker and two measure all trials, none of them twice."""
    pytest.importorskip("psycopg", reason="the driver for PostgreSQL is not installed")
    table = ("--table", str(BENCHMARKS / "tables" / "vit_tiny.jsonl.gz"))
    options = ("--trials", "8", "--trial-s", "0", "--workers", "1,2")
    figures = _json(run_alone, "shared", *table, *options)
    assert figures["trials"] == 8
    assert [fleet["twice"] for fleet in figures["workers"]["0 s"].values()] == [0, 0]


def test_subnormal(run: Run) -> None:
    """Nine tenths of the weights are found, and the study decides by what it measures."""
    figures = _json(run, "subnormal", "--width", "64", "--trials", "2")
    assert "of 16,384 weights" in figures["evidence"]
    assert figures["chosen"] in {True, False}


def test_transfer(run_alone: Run) -> None:
    """Both directions of each pair of tables, with and without what is taken over."""
    figures = _json(run_alone, "transfer", "--seeds", "1", "--trials", "20")
    assert figures["pairs"] == 2
    assert 0 < figures["cold"]["hv_15"] <= 1


def test_sampler(run_alone: Run) -> None:
    """Each sampler has a regret after so many trials, none below 0."""
    shown = _json(run_alone, "sampler", "--seeds", "1", "--trials", "12")
    assert set(shown["regret"]) == {"effects", "tpe", "tpe_independent", "random"}
    assert all(regret["12"] > -1e-9 for regret in shown["regret"].values())
