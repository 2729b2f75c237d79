"""The command that repeats a study."""

import inspect
import shlex

import pytest
import typer

from autotune.cli.app import app
from autotune.cli.study import study
from autotune.report.page.command import FLAGS, command_of
from autotune.study.options import StudyOptions

# They name files and places, and change nothing in what a study does. Traffic becomes data.
_OF_ONE_RUN = {
    *("out", "storage", "study_name", "first", "wait", "model", "what", "as_json", "quiet"),
    "traffic",
    "more",
}


def test_every_option_is_repeated() -> None:
    parameters = {p.removeprefix("no_") for p in inspect.signature(study).parameters}
    assert set(FLAGS) == parameters - _OF_ONE_RUN


def test_defaults_are_left_out() -> None:
    kept = StudyOptions.from_record(StudyOptions.of("/models/my model.onnx").to_record())
    command = command_of(kept, "")
    assert command == "autotune study '/models/my model.onnx' --trials 100"


def test_the_command_of_a_decoder_gives_its_options_back(monkeypatch: pytest.MonkeyPatch) -> None:
    options = StudyOptions.of(
        "/models/decoder.onnx",
        generate="/models/prompts.jsonl",
        new_tokens=32,
        pairs={"past": "present"},
        max_perplexity_rise=0.05,
    )
    assert _asked_by(command_of(options, ""), monkeypatch) == [options]
    options = StudyOptions.of("/models/decoder.onnx", prompt_tokens=(16, 64))
    assert _asked_by(command_of(options, ""), monkeypatch) == [options]


def _asked_by(command: str, monkeypatch: pytest.MonkeyPatch) -> list[StudyOptions]:
    """Returns the options of the studies that a command runs."""
    asked: list[StudyOptions] = []
    monkeypatch.setattr("autotune.cli.study.run_study", lambda options, **_: asked.append(options))
    words = shlex.split(command)
    typer.main.get_command(app).main(words[1:], standalone_mode=False)
    return asked


def test_the_command_gives_the_options_back(monkeypatch: pytest.MonkeyPatch) -> None:
    options = StudyOptions.of(
        "/models/tiny.onnx",
        trials=20,
        timeout_s=90.0,
        space="session",
        fix={"arena": "off"},
        providers=("cpu",),
        batch=(1, 4),
        shapes={"x": (1, 3)},
        max_error=0.01,
        metric="judge:top1",
        max_drop=0.02,
        max_memory_mib=300.0,
        max_held_memory_mib=200.0,
        max_latency_ms=10.0,
        objectives=("latency_ms", "cpu_s"),
        prefer="cpu",
        seed=3,
        sampler="tpe",
        early_stop=False,
        process_options=True,
    )
    kept = StudyOptions.from_record(options.to_record())
    assert _asked_by(command_of(kept, "judge:top1"), monkeypatch) == [options]
