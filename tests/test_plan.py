"""What a study would do (``--dry-run``), and what is removed of it afterwards (``--clean``)."""

import json
from pathlib import Path

import pytest
from command_line import run
from factories import save_onnx
from fakes import FakeMeasurer, thread_cost

from autotune.errors import StudyError
from autotune.process.scratch import write_mark
from autotune.storage.locks import exclusive_use
from autotune.study import plan
from autotune.study.cleaning import clean
from autotune.study.options import StudyOptions
from autotune.study.plan import plan_of


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model whose default is not really measured."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, "DuetMeasurer", lambda *_, **__: FakeMeasurer(thread_cost))
    save_onnx(tmp_path / "m.onnx", "y = Relu (x)", x="float[rows,3] x", y="float[rows,3] y")
    return tmp_path


def test_a_dry_run_says_what_a_study_would_do_and_writes_nothing(place: Path) -> None:
    done = run(place, "study", "m.onnx", "--dry-run", "--trials", "7", "--fix", "arena=off")
    assert done.returncode == 0, done.stderr
    for words in (
        "Inputs:\n  input 'x'",
        "Search space default:",
        "arena (1)",
        "the model has no convolution",
        "7 trials; the first of them:\n0  the default",
        "Objectives: latency, memory; latency chooses. Limits: error 0.05.",
        "search and final comparison take about",
        "Folder: m.autotune",
    ):
        assert words in done.stdout
    assert [path.name for path in place.iterdir()] == ["m.onnx"]


def test_a_dry_run_as_json(place: Path) -> None:
    done = run(place, "study", "m.onnx", "--dry-run", "--trials", "3", "--json")
    document = json.loads(done.stdout)
    assert document["trials"] == 3
    assert document["first"][0] == {}
    assert len(document["first"]) == 3
    assert document["parameters"]["arena"]
    assert document["estimate_s"] >= document["trial_s"] * 3


def test_a_limit_of_time_bounds_the_estimate(place: Path) -> None:
    options = StudyOptions.of(place / "m.onnx", trials=100_000_000, timeout_s=10.0)
    assert plan_of(options).estimate_s == 10.0


def test_a_dry_run_does_not_wait_for_the_cores(place: Path) -> None:
    with exclusive_use(None):
        done = run(place, "study", "m.onnx", "--dry-run", "-q")
    assert done.stdout == (
        "m.onnx: unknown, because another autotune measures on these cores; type it again later.\n"
    )


def test_a_dry_run_refuses_what_the_study_would_refuse(place: Path) -> None:
    (place / "m.autotune").mkdir()
    (place / "m.autotune" / "best.json").write_text("mine", encoding="ascii")
    done = run(place, "study", "m.onnx", "--dry-run")
    assert done.returncode == 2
    assert "no study of autotune wrote it" in done.stderr


def cached(folder: Path) -> Path:
    """Gives a folder a cache of a MiB; returns the cache."""
    cache = folder / "cache"
    (cache / "entry").mkdir(parents=True)
    write_mark(cache)
    (cache / "entry" / "model.onnx").write_bytes(bytes(1 << 20))
    return cache


def test_cleaning_removes_the_cache_alone(tmp_path: Path, frozen_study: Path) -> None:
    kept = {path.name for path in frozen_study.iterdir()}
    cached(frozen_study)
    done = run(tmp_path, "study", "study", "--clean")
    assert done.returncode == 0, done.stderr
    assert "The cache of study is removed: 1.0 MiB are free." in done.stdout
    assert {path.name for path in frozen_study.iterdir()} - {".lock"} == kept
    again = run(tmp_path, "study", "study", "--clean", "--json")
    assert json.loads(again.stdout) == {"folder": "study", "freed_bytes": 0}


def test_a_tuned_application_is_cleaned_with_its_models_studies(tmp_path: Path) -> None:
    cached(tmp_path / "studies" / "encoder")
    cached(tmp_path / "studies" / "decoder")
    assert clean(tmp_path) > 2 << 20
    assert not list(tmp_path.glob("studies/*/cache"))


def test_a_folder_of_another_program_is_not_cleaned(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "mine").touch()
    with pytest.raises(StudyError, match="holds no study"):
        clean(tmp_path)
    assert (tmp_path / "cache" / "mine").exists()


def test_a_study_at_work_is_not_cleaned(tmp_path: Path) -> None:
    cache = cached(tmp_path)
    with (
        exclusive_use(tmp_path, cores=False),
        pytest.raises(StudyError, match="another autotune is at work"),
    ):
        clean(tmp_path)
    assert (cache / "entry").exists()


def test_a_quiet_command_prints_one_line(place: Path) -> None:
    done = run(place, "inspect", "m.onnx", "--quick", "-q")
    assert done.stdout.startswith("m.onnx: ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
