"""What `autotune check` says of a config, and its exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_config import make_config, requiring
from test_loader import processor, write_config
from views import words_of

from autotune.deploy import cpu
from autotune.deploy.check import check
from autotune.deploy.config import Serving
from autotune.deploy.loaded import Environment
from autotune.deploy.options import Value
from autotune.deploy.session import SessionConfig
from autotune.report.deploying import view_check


def test_a_config_of_this_machine(model: Path) -> None:
    checked = check(write_config(model, make_config()))
    assert checked.valid
    assert checked.format == "autotune/1"
    assert checked.files == ("best.onnx",)
    assert checked.outcome == "autotune.load opens the model as tuned."
    assert checked.exit_code(strict=True) == 0


def test_what_was_done_to_the_model_is_said(model: Path) -> None:
    """A file of fixed shapes takes no others, so the command names them."""
    path = write_config(model, make_config())
    plain = json.loads(path.read_text(encoding="utf-8"))
    plain["model"]["steps"] = ["shapes fixed in the file: x [2, 3]", "int8 static"]
    path.write_text(json.dumps(plain), encoding="utf-8")
    text = words_of(view_check(check(path), "best.json"))
    assert "by shapes fixed in the file: x [2, 3], int8 static." in text


def test_a_config_of_another_machine(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    there = Environment(autotune="0.1.0", onnxruntime="1.0", cpu="x", cores=8, fingerprint="f")
    config = make_config(environment=there)
    config = replace(config, session=replace(config.session, options={"intra_op_num_threads": 8}))
    checked = check(write_config(model, config))
    assert checked.valid
    assert len(checked.differences) == 3
    assert (
        checked.adapted == "at most 2 threads are used, because this process may use no more cores"
    )
    assert "warns that the machine is another" in checked.outcome
    assert checked.exit_code(strict=False) == 0
    assert checked.exit_code(strict=True) == 4


def test_a_missing_requirement(model: Path) -> None:
    """The default options are used, which no exit code of 0 may hide."""
    checked = check(write_config(model, make_config(requires=requiring("NoSuch"))))
    assert checked.valid
    assert list(checked.lacking) == ["the NoSuch (this ONNX Runtime was built without it)"]
    assert "default options" in checked.outcome
    assert checked.exit_code(strict=False) == 4


def test_a_processor_on_which_the_answers_would_be_wrong(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(monkeypatch, {"avx2"})
    checked = check(write_config(model, make_config(requires=requiring(weight_block=16))))
    assert checked.outcome == "autotune.load refuses this config on this processor."
    assert checked.exit_code(strict=False) == 4
    text = words_of(view_check(checked, "best.json"))
    assert "wrong answers on this processor: its weights lie in blocks of 16" in text


def test_another_model_file(model: Path) -> None:
    path = write_config(model, make_config())
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    checked = check(path)
    assert not checked.valid
    assert "not the file that was tuned" in checked.problem
    assert checked.outcome == "autotune.load opens this config, and refuses it with strict=True."
    assert checked.exit_code(strict=False) == 2
    model.write_bytes(bytes(data) + b"x")
    assert check(path).outcome == "autotune.load refuses this config."


def test_the_folder_of_a_study_stands_for_its_config(model: Path) -> None:
    path = write_config(model, make_config())
    assert check(path.parent) == check(path)


def test_a_config_of_a_newer_format_asks_for_a_newer_autotune(model: Path) -> None:
    path = write_config(model, make_config())
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "format": "autotune/99"}), encoding="utf-8")
    assert "A newer autotune wrote it; upgrade autotune." in check(path).problem
    data["session"]["options"] = {"intra_op_num_thread": 2}
    path.write_text(json.dumps(data), encoding="utf-8")
    assert "'intra_op_num_threads'? `autotune pick DIR`" in check(path).problem


def test_what_an_application_must_know_of_its_calls(model: Path) -> None:
    options: dict[str, Value] = {"execution_mode": "ORT_PARALLEL", "intra_op_num_threads": 1}
    checked = check(write_config(model, make_config(session=SessionConfig(options=options))))
    text = words_of(view_check(checked, "best.json"))
    assert "after the fork" in text
    assert "run_async" in text


def test_the_sizes_that_a_config_takes_are_named(model: Path) -> None:
    session = SessionConfig(free_dimensions={"tracks": 3})
    text = words_of(
        view_check(check(write_config(model, make_config(session=session))), "best.json")
    )
    assert "It takes tracks = 3 only" in text


def test_a_config_of_several_clients(model: Path) -> None:
    checked = check(write_config(model, make_config(serving=Serving(clients=8))))
    assert checked.tuned_for == "tuned for 8 clients, which share one session"
    assert check(write_config(model, make_config())).tuned_for == ""
