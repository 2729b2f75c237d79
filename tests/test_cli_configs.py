"""The commands on a config in use, as a user runs them."""

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import brief_studies
import onnx
import pytest
from test_compare import save_model, write_config
from typer.testing import CliRunner, Result

from autotune.cli.app import app, run
from autotune.cli.comparing import _is_ours
from autotune.deploy.config import Serving, TunedConfig
from autotune.export.targets import TARGETS
from autotune.facts import sample_models

DATA = Path(__file__).parent / "data"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(DATA / "config", tmp_path / "lstm.autotune")
    monkeypatch.chdir(tmp_path)
    return Path("lstm.autotune/best.json")


def _ended(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """Runs a command; returns its exit code, its output, and what it says of a fault."""
    ending = run([*arguments])
    return ending.code, capsys.readouterr().out, ending.lines


def test_check(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = _ended(capsys, "check", str(config))
    assert code == 0
    assert "a valid config of the format autotune/1" in text
    code, text, _ = _ended(capsys, "check", str(config), "--json")
    document = json.loads(text)
    assert code == 0
    assert document["valid"] is True
    assert document["files"] == ["best.onnx", "best.onnx.data"]
    config.write_text("{}")
    code, text, _ = _ended(capsys, "check", str(config), "--json")
    assert code == 2
    assert json.loads(text)["valid"] is False


def test_export(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = _ended(capsys, "export", str(config), "--to", "javascript", "--json")
    document = json.loads(text)
    assert code == 0
    assert document["files"] == ["lstm.autotune/lstm_session.mjs"]
    assert "dimension time=1" in document["lost"]
    code, _, words = _ended(capsys, "export", str(config), "--to", "javascript")
    assert code == 2
    assert "nothing is overwritten" in words
    code, text, _ = _ended(capsys, "export", str(config), "--to", "javascript", "--out", "other")
    assert code == 0
    assert "javascript cannot express:" in text


def test_the_help_names_all_targets() -> None:
    result: Result = CliRunner().invoke(app, ["export", "--help"])
    words = set(result.output.replace(",", " ").replace(".", " ").split())
    assert set(TARGETS) <= words


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check"], "CONFIG"),
        (["export", "CONFIG", "--to", "pyhton"], "Did you mean 'python'?"),
        (["compare", "CONFIG", "--min-speedup", "fast"], "'fast' is not a factor"),
        (["compare", "CONFIG", "lstm.autotune", "--trial", "1"], "name its folder alone"),
        (["compare", "lstm.autotune", "--trial", "1"], "is a config without its study"),
        (["compare", "CONFIG", "--junit", "CONFIG"], "nothing is overwritten"),
        (["compare", "CONFIG", "--junit", "lstm.autotune"], "is a folder"),
        (["compare", "CONFIG", "CONFIG"], "is named twice"),
        (["compare", "CONFIG", "--clients", "0"], "--clients"),
        (["compare", "absent.json"], "there is no file or folder absent.json"),
    ],
)
def test_wrong_requests(
    config: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = config.read_bytes()
    given = [str(config) if argument == "CONFIG" else argument for argument in arguments]
    code, text, lines = _ended(capsys, *given)
    assert code == 2
    assert text == ""
    assert words in lines
    assert config.read_bytes() == before


def test_a_file_of_the_user_is_not_overwritten(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before anything is measured, as is one that cannot be written."""
    notes = tmp_path / "notes.md"
    notes.write_text("# mine", encoding="utf-8")
    for path, words in (
        (notes, "nothing is overwritten"),
        (tmp_path / "absent" / "file", "there is no folder"),
    ):
        code, _, lines = _ended(capsys, "compare", str(config), "--junit", str(path))
        assert code == 2
        assert words in lines
    assert notes.read_text(encoding="utf-8") == "# mine"


@pytest.mark.process
@pytest.mark.slow
def test_the_gate_of_a_build(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    brief_studies.measure_briefly(monkeypatch.setattr)
    config = write_config(save_model(tmp_path), threads=1)
    report = tmp_path / "gate.xml"
    arguments = ["compare", str(config), "--min-speedup", "1000x", "--junit", str(report)]
    code, text, _ = _ended(capsys, *arguments, "--json")
    document = json.loads(text)
    assert code == 3
    assert document["passed"] is False
    assert document["baseline"]["name"] == "the default"
    assert document["configs"][0]["numbers"]["gains"]["latency_ms"]["value"] > 0
    broken = [verdict for verdict in document["verdicts"] if not verdict["kept"]]
    assert [verdict["limit"] for verdict in broken] == ["speedup"]
    (suite,) = ET.fromstring(report.read_bytes())
    assert _is_ours(report)
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")


@pytest.mark.stress
def test_a_config_of_batches_is_measured_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the study, and by each command that measures it afterwards; the default runs single ones.

    All runs count as equally long here, so a batch of four has four times the throughput.
    """
    monkeypatch.chdir(tmp_path)
    brief_studies.measure_briefly(monkeypatch.setattr)
    onnx.save(sample_models.cnn(channels=4, size=16, blocks=1), "tiny.onnx")
    space = '[parameters.arena]\nvalues = ["on", "off"]\ndefault = "on"\n'
    Path("space.toml").write_text(space, encoding="utf-8")
    study = ["study", "tiny.onnx", "--batch", "1,4", "--space", "space.toml", "--trials", "4"]
    document = _json(capsys, *study)
    config, folder = "tiny.autotune/best.json", "tiny.autotune"
    assert TunedConfig.read(Path(config)).serving == Serving(clients=1, batch=4, baseline_batch=1)
    (compared,) = _json(capsys, "compare", config)["configs"]
    assert compared["numbers"]["gains"]["throughput_per_s"]["value"] == pytest.approx(4.0)
    trial = str(document["picked"])
    (again,) = _json(capsys, "compare", folder, "--trial", trial)["configs"]
    assert again["numbers"]["gains"]["throughput_per_s"]["value"] == pytest.approx(4.0)
    _, text, _ = _ended(capsys, "check", config)
    assert "batches of 4" in text
    (single,) = _json(capsys, "profile", "tiny.onnx")["sessions"]
    profile = _json(capsys, "profile", folder)
    assert profile["batch"] == 4
    for session in profile["sessions"]:
        assert session["work"]["float_operations"] == 4 * single["work"]["float_operations"]


def _json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    _, text, fault = _ended(capsys, *arguments, "--json")
    assert not fault
    return json.loads(text)
