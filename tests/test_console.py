"""All printed text passes through two consoles that keep a terminal safe."""

import io
import json
import shutil
import sys
from pathlib import Path

import optuna
import pytest
from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.cli import app, console
from autotune.cli.console import print_json
from autotune.cli.safe_console import SafeConsole
from autotune.report.text import without_controls
from autotune.storage.database import quiet_optuna

# a colour, a title, a bell, a carriage return, a backspace, an 8-bit escape, two marks of direction
HOSTILE = "a\x1b[31m\x1b]0;title\x07\r\x08\x9b1m\u202eb\u2066c"
FOLDER = Path(__file__).parent / "data" / "study"


def is_safe(text: str) -> bool:
    """Returns whether a terminal shows the text and obeys nothing in it but line ends."""
    return all(character.isprintable() or character == "\n" for character in text)


def printed(renderable: object, monkeypatch: pytest.MonkeyPatch) -> str:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    SafeConsole(width=300).print(renderable)
    return stream.getvalue()


def test_no_control_character_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    for renderable in (HOSTILE, Text(HOSTILE), table, Group(Text(HOSTILE), HOSTILE)):
        text = printed(renderable, monkeypatch)
        assert is_safe(text)
        assert "title" in text


def test_text_for_people_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letters of all scripts, the signs of our own output and line ends are printed as they are."""
    text = "2.45× (1.84–3.25) … ← naïve 模型 модель [bold]x[/] :smile:\nnext"
    assert printed(text, monkeypatch).strip() == text
    assert without_controls(text) == text


def test_colours_of_our_own_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1mwords\x1b[0m" in printed(Text("words", style="bold"), monkeypatch)


def test_names_of_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A stranger's model, folder and words reach the terminal without escapes, and as no markup."""
    folder = tmp_path / "study[bold]"
    shutil.copytree(FOLDER, folder)
    front = json.loads((folder / "front.json").read_text(encoding="utf-8"))
    front["model"] = f"/models/net[red]{HOSTILE}.onnx"
    for member in front["members"]:
        member["words"] = f"words[/]{HOSTILE}"
    front["files"] = [HOSTILE]
    (folder / "front.json").write_text(json.dumps(front), encoding="utf-8")
    ending = app.run(["show", str(folder)])
    assert ending.code == 0, ending.lines
    text = capsys.readouterr().out
    assert is_safe(text)
    for shown in ("a?[31m", "net[red]a", "words[/]a", "study[bold]"):
        assert shown in text


@pytest.mark.parametrize(
    "arguments",
    [
        [HOSTILE],
        ["study", f"--{HOSTILE}"],
        ["study", f"{HOSTILE}.onnx"],
        ["study", "m.onnx", HOSTILE],
        ["study", "m.onnx", "--shape", HOSTILE],
        ["study", "m.onnx", "--trials", HOSTILE],
        ["show", HOSTILE],
        ["study", HOSTILE],
        ["study", f"postgresql://me:pass@{HOSTILE}:x/y"],
        ["spaces", HOSTILE],
        ["sample", "m.onnx", "--kind", HOSTILE],
        ["show", "bytes\udcff"],
    ],
    ids=lambda arguments: f"{len(arguments)} {ascii(arguments[0])[:9]}",
)
def test_names_in_refusals(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["autotune", *arguments])
    monkeypatch.setattr(sys, "stderr", sys.stderr)  # main wraps it; it comes back afterwards
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 2
    outputs = capsys.readouterr()
    assert outputs.out == ""
    assert is_safe(outputs.err)
    assert "Error: " in outputs.err


def test_names_in_a_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study").mkdir()
    with quiet_optuna():
        study = optuna.create_study(
            study_name=HOSTILE, storage=f"sqlite:///{tmp_path / 'study' / 'study.db'}"
        )
    for name in ("model_sha256", "model", "objectives"):
        study.set_user_attr(name, HOSTILE)
    ending = app.run(["show", f"sqlite:///{tmp_path}/study/study.db"])
    console.messages().print(ending.lines)
    outputs = capsys.readouterr()
    assert is_safe(outputs.out + outputs.err)
    assert "a?[31m" in outputs.out + outputs.err


def test_a_traceback_is_cleaned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> None:
        raise ZeroDivisionError(f"{HOSTILE} postgresql://me:s3cr3t@host")

    monkeypatch.setattr("autotune.results.result.StudyResult.read", fail)
    monkeypatch.setattr(sys, "argv", ["autotune", "show", "x"])
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    with pytest.raises(SystemExit) as end:
        app.main()
    assert end.value.code == 1
    text = capsys.readouterr().err
    assert "ZeroDivisionError" in text
    assert "s3cr3t" not in text
    assert is_safe(text)


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"name": HOSTILE})
    text = capsys.readouterr().out
    assert json.loads(text) == {"name": HOSTILE}
    assert text.isascii()
    assert is_safe(text)
