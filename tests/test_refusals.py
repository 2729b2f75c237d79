"""What a new user types by mistake: one sentence that says what was wrong, and what to type."""

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from command_line import run
from factories import save_onnx

from autotune.applications import layout
from autotune.cli import app
from autotune.deploy import application, kinds
from autotune.results.result import FRONT
from autotune.storage.locks import DATABASE


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files and folders of every kind that a user may name."""
    place = tmp_path_factory.mktemp("first hour")
    save_onnx(place / "cnn.onnx", "y = Relu (x)", x="float[rows,3] x", y="float[rows,3] y")
    for name in "a.pt a.safetensors a.tflite a.pb a.keras a.pkl a.ort a.PTH noise.onnx".split():
        (place / name).write_bytes(b"x")
    marks = (
        ("app.rec", "recording.json"),
        ("app.tuned", "application.json"),
        ("done.autotune", "front.json"),
        ("begun.autotune", "study.db"),
        ("saved", "saved_model.pb"),
        ("hub", "model.safetensors"),
        ("copied", "best.json"),
        ("models", "net.onnx"),
    )
    for folder, file in marks:
        (place / folder).mkdir()
        (place / folder / file).touch()
    (place / "empty").mkdir()
    np.savez(place / "call.npz", x=np.ones((2, 3), np.float32))
    np.savez(place / "names.npz", X=np.ones((2, 1, 3), np.float32))
    np.savez(place / "dtype.npz", x=np.ones((2, 1, 3)))
    return place


REFUSALS = [
    # a command that other programs have, or none
    ("tune cnn.onnx", "there is no command 'tune'. Type autotune study."),
    ("benchmark cnn.onnx", "Type autotune compare."),
    ("clean done.autotune", "Type autotune study DIR --clean."),
    ("help", "Type autotune --help."),
    ("cnn.onnx", "Type autotune study cnn.onnx."),
    ("stduy cnn.onnx", "Did you mean 'study'?"),
    ("quantize cnn.onnx", "Type autotune study MODEL --space quantize."),
    ("load copied", "Type autotune check."),
    ("record -o out python -c 1", "Write the application's command, with its options, after --."),
    ("record -o cnn.onnx/out -- true", "cnn.onnx is a file; name another folder."),
    ("study cnn.onnx --providers CUDAExecutionProvider", "Did you mean 'cuda'?"),
    ("study https://host/cnn.onnx", "a file is named by its path; download it first."),
    ("quux", "autotune --help lists the commands."),
    # a name that is nearly right
    ("study cnn", "there is no file or folder cnn. Did you mean 'cnn.onnx'?"),
    ("inspect ccn.onnx", "Did you mean 'cnn.onnx'?"),
    ("show done", "Did you mean 'done.autotune'?"),
    ("profile nothing.like.it", "there is no file or folder nothing.like.it."),
    # a model that is not ONNX
    ("study a.pt", "a.pt is a file of PyTorch, not an ONNX model; export it in Python: torch"),
    ("inspect a.PTH", "torch.onnx.export(model, args, 'a.onnx')"),
    ("study a.safetensors", "optimum-cli export onnx"),
    ("study a.tflite", "python -m tf2onnx.convert --tflite a.tflite --output a.onnx"),
    ("inspect a.pb", "python -m tf2onnx.convert --saved-model DIR --output a.onnx"),
    ("study a.keras", "model.export('a.onnx', format='onnx')"),
    ("study a.pkl", "skl2onnx.to_onnx(model, x[:1])"),
    ("study a.ort", "name the .onnx file from which it was made"),
    ("compare a.pt", "a.pt is a file of PyTorch, not a tuned config"),
    ("inspect saved", "python -m tf2onnx.convert --saved-model saved --output saved.onnx"),
    ("study hub", "optimum-cli export onnx --model hub OUT"),
    ("study noise.onnx", "noise.onnx cannot be used: it is no ONNX model"),
    # a thing of another kind
    ("show cnn.onnx", "is an ONNX model, not the folder of a study; `autotune study cnn.onnx`"),
    ("pick cnn.onnx", "is an ONNX model, not the folder of a study"),
    (
        "report app.rec",
        "app.rec is a recording, not the folder of a study; `autotune study app.rec`",
    ),
    ("compare app.rec", "app.rec is a recording, not a tuned config"),
    ("compare done.autotune", "holds no best.json yet; `autotune pick done.autotune` writes it."),
    ("compare begun.autotune", "holds no best.json yet; `autotune study begun.autotune` does."),
    ("compare done.autotune/front.json", "is a file in the folder of a study, not a tuned config"),
    ("show done.autotune/front.json", "name the folder, done.autotune."),
    ("export app.tuned --to python", "app.tuned is a tuned application, not a tuned config"),
    ("study app.tuned", "`autotune run app.tuned -- COMMAND` runs it"),
    ("inspect done.autotune", "`autotune show done.autotune` shows its result"),
    ("study copied/best.json", "name the model, or the folder of its study, copied"),
    (
        "show copied",
        "copied is a config without its study, not the folder of a study; `autotune check",
    ),
    ("inspect models", "models is a folder of models, not an ONNX model; name one of them"),
    ("compare empty", "there is no file or folder empty/best.json."),
    ("show begun.autotune", "holds no result of a study (front.json is missing)"),
    # a tuned application that is not there
    (
        "run app.tune -- python app.py",
        "there is no folder app.tune; `autotune study app.rec` writes",
    ),
    ("run", "name the folder of a tuned application and, after --, the command"),
    ("run done.autotune -- app", "is the folder of a study, not a tuned application"),
    ("show sqlite:///nothing.db", "there is no file nothing.db; name the storage of a study"),
    # inputs that do not fit
    ("study cnn.onnx --data call.npz", "Type numpy.savez(file, x=x[:, None]) for 2 samples, or"),
    ("study cnn.onnx --data names.npz", "the model has no input 'X'. Its inputs are x."),
    ("study cnn.onnx --data dtype.npz", "convert it with .astype('float32')"),
    ("study cnn.onnx --data noise.onnx", "is no readable .npz file"),
    # values of options
    ("study cnn.onnx --trials abc", "'abc' is not a whole number. Write a number such as 20."),
    ("compare done.autotune --trial x", "'x' is not a whole number"),
    ("study cnn.onnx --trials -3", "--trials must be at least 1, not -3"),
    (f"study cnn.onnx --trials {'9' * 30}", "is too large. Write a number such as 20."),
    ("study cnn.onnx --set seed=x", "Invalid value for '--set': 'x' is not a whole number."),
    ("study -- -x.onnx", "there is no file or folder -x.onnx."),
    ("study モデル.onnx", "there is no file or folder モデル.onnx."),
    ("study cnn.onnx --trials 0", "--trials must be at least 1, not 0"),
    (
        "study cnn.onnx --timeout 40",
        "'40' has no unit. Write a number above 0 and one of the units s",
    ),
    ("study cnn.onnx --max-memory 1", "'1' has no unit."),
    ("study cnn.onnx --max-latency nan", "'nan' is not a latency."),
    ("study cnn.onnx --max-drop -1", "--max-drop"),
    ("study cnn.onnx --value sr=fast", "'fast' is not a number, such as 16000 or 0.5."),
    ("study cnn.onnx --value sr=1", "has no input 'sr'"),
    ("profile cnn.onnx --value sr=1", "has no input 'sr'"),
    ("compare cnn.onnx --value sr=1", "has no input 'sr'"),
    ("inspect cnn.onnx --quick --value sr=1", "has no input 'sr'"),
    ("report done.autotune --format png", "No such option: --format"),
    ("study --clean", "name the study to clean: autotune study DIR --clean."),
    ("study empty --clean", "empty holds no study"),
    ("study app.rec --dry-run", "--dry-run is for a model; type autotune show app.rec instead."),
    ("study cnn.onnx --dry-run --fix nothing=1", "nothing"),
    ("study app.rec --timeout 30", "'30' has no unit."),
]


@pytest.mark.parametrize(("line", "phrase"), REFUSALS, ids=[line for line, _ in REFUSALS])
def test_a_mistake_is_answered_by_what_to_type(place: Path, line: str, phrase: str) -> None:
    before = sorted(place.rglob("*"))
    done = run(place, *line.split())
    said = " ".join(done.stderr.split()).removeprefix("reading the model ... ")
    assert done.returncode == 2, said
    assert phrase in said
    assert said.count("Error: ") == 1
    assert done.stdout == ""
    for fault in ("Traceback", "..", "?.", ".?", "';'"):
        assert fault not in said.replace("NAME,...", "")
    assert sorted(place.rglob("*")) == before, "nothing is left behind"


@pytest.mark.parametrize(
    "line", ["show nothing --json", "study a.pt --json", "compare x.json --json", "tune --json"]
)
def test_a_refusal_is_json_where_json_was_asked_for(place: Path, line: str) -> None:
    done = run(place, *line.split())
    error = json.loads(done.stdout)["error"]
    assert error["code"] == done.returncode == 2
    assert error["message"] in " ".join(done.stderr.split())
    assert not error["message"].startswith("Error")


def test_json_after_two_dashes_is_the_commands_own(place: Path) -> None:
    assert run(place, "run", "nothing", "--", "app", "--json").stdout == ""


def test_check_names_the_kind_as_well(place: Path) -> None:
    done = run(place, "check", "cnn.onnx")
    assert done.returncode == 2
    assert "cnn.onnx is an ONNX model, not a tuned config; `autotune study" in done.stdout


@pytest.mark.skipif(os.name != "posix", reason="the permissions are those of POSIX")
def test_a_file_that_this_user_may_not_read() -> None:
    app.run(["inspect", "--quick", "nothing.onnx"])  # imports all that the command needs
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        Path(file.name).chmod(0)
        root = os.geteuid() == 0  # may read everything
        if root:
            os.seteuid(12345)
        try:
            ending = app.run(["inspect", "--quick", file.name])
        finally:
            if root:
                os.seteuid(0)
    assert ending.code == 2
    assert f"cannot read {file.name}: Permission denied" in ending.lines


def test_a_folder_is_known_by_the_files_that_its_room_writes(tmp_path: Path) -> None:
    """The lowest room cannot import their names from the rooms above."""
    for name, kind in (
        (layout.SETTINGS, kinds.RECORDING),
        (application.FILE, kinds.APPLICATION),
        (FRONT, kinds.STUDY),
        (DATABASE, kinds.STUDY),
    ):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).touch()
        assert kinds.is_folder_of(kind, folder)


def test_a_name_with_braces_is_no_template(tmp_path: Path) -> None:
    (tmp_path / "{x}.pt").touch()
    assert "'{x}.onnx'" in kinds.mistaken(tmp_path / "{x}.pt", kinds.MODEL)
