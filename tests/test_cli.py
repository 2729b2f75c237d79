"""The program, as a user runs it."""

import json
import re
import signal
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import brief_studies
import onnx
import pytest
import typer
from command_line import run
from fakes import FakeMeasurer, thread_cost
from typer.testing import CliRunner

import autotune
from autotune.cli import interrupts
from autotune.cli.app import COMMANDS, app
from autotune.cli.faults import ending_of
from autotune.cli.study import run_study
from autotune.errors import CannotMeasureError, RequestError, StudyError
from autotune.facts import sample_models
from autotune.measure import noise
from autotune.storage.locks import exclusive_use
from autotune.study import seams
from autotune.study import tune as tuning
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress


def one_line(text: str) -> str:
    """Returns the text without its line breaks, which depend on the width."""
    return " ".join(text.split())


def refused(folder: Path, *arguments: str) -> str:
    """Checks that the request is refused; returns what was said, on one line."""
    done = run(folder, *arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return one_line(done.stderr)


def test_version(tmp_path: Path) -> None:
    assert run(tmp_path, "--version").stdout.strip() == f"autotune {autotune.__version__}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("spaces", "default latency memory session"),
        ("spaces default", "graph_optimization_level ORT_ENABLE_EXTENDED arena spinning"),
    ],
)
def test_spaces_are_listed_and_shown(tmp_path: Path, arguments: str, words: str) -> None:
    done = run(tmp_path, *arguments.split())
    assert done.returncode == 0
    assert all(word in done.stdout for word in words.split())


@pytest.mark.process
@pytest.mark.slow
def test_hardware_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief_studies.measure_briefly(monkeypatch.setattr)
    monkeypatch.setattr(noise, "REPETITIONS", 2)
    done = CliRunner().invoke(app, ["hardware", "--json", "--noise"])
    first = json.loads(done.stdout)
    second = json.loads(run(tmp_path, "hardware", "--json", "--no-noise").stdout)
    assert 0 <= first["noise"]["floor"] < 1
    assert first["noise"]["repetitions"] == 2
    assert second["noise"] is None
    assert isinstance(second["warnings"], list)
    assert first["usable_cores"] >= 1
    assert "CPUExecutionProvider" in first["providers"]
    assert re.fullmatch(r"[0-9a-f]{16}", first["fingerprint"])
    assert first["fingerprint"] == second["fingerprint"]


def test_hardware_in_words(tmp_path: Path) -> None:
    done = run(tmp_path, "hardware", "--no-noise")
    assert done.returncode == 0
    assert "fingerprint" in done.stdout
    assert "Nothing was found that disturbs" in done.stdout or "Warning: " in done.stdout


@pytest.mark.parametrize(
    ("command", "measures"),
    [
        ("inspect model.onnx", "autotune.inspection.inspect.inspect_model"),
        ("profile model.onnx", "autotune.results.profiling.profile"),
        ("hardware", "autotune.measure.noise.noise_check"),
    ],
)
def test_what_is_timed_has_the_cores_to_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, measures: str
) -> None:
    def measure(*_: object, **__: object) -> None:
        with pytest.raises(StudyError, match="measures on these cores"), exclusive_use(None):
            pass
        raise CannotMeasureError("it has them")

    monkeypatch.setattr(measures, measure)
    assert "it has them" in run(tmp_path, *command.split()).stderr


@pytest.mark.parametrize("kind", sorted(sample_models.KINDS))
def test_sample_writes_a_model(tmp_path: Path, kind: str) -> None:
    done = run(tmp_path, "sample", "a model.onnx", "--kind", kind)
    assert done.returncode == 0
    onnx.checker.check_model(onnx.load(tmp_path / "a model.onnx"), full_check=True)
    assert "autotune study 'a model.onnx'" in one_line(done.stdout)


def test_sample_does_not_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"mine")
    assert "model.onnx exists already" in refused(tmp_path, "sample", "model.onnx")
    assert path.read_bytes() == b"mine"
    assert run(tmp_path, "sample", "model.onnx", "--force").returncode == 0
    assert path.read_bytes() != b"mine"


def test_sample_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    assert "Did you mean 'lstm'?" in refused(tmp_path, "sample", "a.onnx", "--kind", "lstmm")
    assert "cannot write absent/a.onnx" in refused(tmp_path, "sample", "absent/a.onnx")
    assert list(tmp_path.iterdir()) == []


def options_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> StudyOptions:
    """Returns the options with which the command would run a study."""
    received: list[StudyOptions] = []

    def keep(options: StudyOptions, *, as_json: bool) -> None:
        received.append(options)

    monkeypatch.setattr("autotune.cli.study.run_study", keep)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    return received[0]


def test_the_help_names_the_defaults_of_the_record() -> None:
    command = typer.main.get_command(app).commands["study"]  # type: ignore[attr-defined]
    help_of = {parameter.name: getattr(parameter, "help", "") for parameter in command.params}
    default = StudyOptions(model=Path("m.onnx"))
    assert f"({default.trials})." in help_of["trials"]
    assert f"({default.error_limit})" in help_of["max_error"]


def test_a_second_model_is_a_second_study() -> None:
    """Whoever names an encoder and its decoder reads what to type instead."""
    done = CliRunner().invoke(app, ["study", "encoder.onnx", "decoder.onnx"])
    assert isinstance(done.exception, RequestError)
    assert "decoder.onnx is another one" in str(done.exception)


def test_the_defaults_are_those_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    assert options_of(monkeypatch, "study", "m.onnx") == StudyOptions(model=Path("m.onnx"))


# an option of the command line, and the field that it sets
FIELDS: list[tuple[list[str], dict[str, Any]]] = [
    (["--trials", "7"], {"trials": 7}),
    (["--sampler", "tpe"], {"sampler": "tpe"}),
    (["--timeout", "1.5h"], {"timeout_s": 5400.0}),
    (["--generate", "p.jsonl"], {"generate": Path("p.jsonl")}),
    (["--prompt-tokens", "64,512"], {"prompt_tokens": (64, 512)}),
    (["--set", "new_tokens=32"], {"new_tokens": 32}),
    (["--set", "pair=past.0=present.0"], {"pairs": {"past.0": "present.0"}}),
    (["--max-error", "3%"], {"max_error": 0.03}),
    (["--space", "session"], {"space": "session"}),
    (["--fix", "arena=off", "--fix", "a = b=c"], {"fix": {"arena": "off", "a": "b=c"}}),
    (["--providers", "cpu, openvino"], {"providers": ("cpu", "openvino")}),
    (["--runtimes", "all"], {"runtimes": ("all",)}),
    (["--outputs", "a,b"], {"outputs": ("a", "b")}),
    (["--data", "inputs"], {"data": Path("inputs")}),
    (["--shape", "x=1,3", "--shape", "y=2"], {"shapes": {"x": (1, 3), "y": (2,)}}),
    (["--value", "sr=8e3", "--value", "t=.5"], {"values": {"sr": 8000.0, "t": 0.5}}),
    (["--max-error", "1e-3"], {"max_error": 0.001}),
    (["--metric", "mine:judge"], {"metric": "mine:judge"}),
    (["--max-drop", "0"], {"max_drop": 0.0}),
    (["--max-memory", "2GiB"], {"max_memory_mib": 2048.0}),
    (["--max-held-memory", "200MiB"], {"max_held_memory_mib": 200.0}),
    (["--max-latency", "500us"], {"max_latency_ms": 0.5}),
    (["--objective", "cpu_s", "--objective", "load_ms"], {"objectives": ("cpu_s", "load_ms")}),
    (["--prefer", "memory"], {"prefer": "memory"}),
    (["--prefer", "peak_memory_mib"], {"prefer": "memory"}),
    (["--objective", "cpu"], {"objectives": ("cpu_s",)}),
    (["-n", "7", "-o", "there"], {"trials": 7, "out": Path("there")}),
    (["--storage", "sqlite:///x.db"], {"storage": "sqlite:///x.db"}),
    (["--set", "seed=3"], {"seed": 3}),
    (["--set", "study_name=mine"], {"study_name": "mine"}),
    (["--try", "a.json", "--try", "b.json"], {"first": (Path("a.json"), Path("b.json"))}),
    (["--set", "early_stop=no"], {"early_stop": False}),
    (["--set", "wait=yes"], {"wait": True}),
    (["--clients", "4"], {"clients": 4}),
    (["--batch", "1,2"], {"batch": (1, 2)}),
]


@pytest.mark.parametrize(("arguments", "changes"), FIELDS)
def test_options_set_the_fields_of_the_record(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], changes: dict[str, Any]
) -> None:
    options = options_of(monkeypatch, "study", "m.onnx", *arguments)
    assert options == replace(StudyOptions(model=Path("m.onnx")), **changes)


def test_all_fields_are_tested() -> None:
    tested = {name for _, changes in FIELDS for name in changes}
    assert tested == {item.name for item in fields(StudyOptions)} - {"model"}


@dataclass(frozen=True, kw_only=True)
class Made:
    """A study that was made: where, and what the program said."""

    place: Path
    stdout: str

    @property
    def result(self) -> dict[str, Any]:
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        return document

    @property
    def folder(self) -> Path:
        return self.place / "model.autotune"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Gives the folder of one small study, made by a measurer that computes."""
    place = tmp_path_factory.mktemp("study")
    sample_models.write("lstm", place / "model.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(seams, "DuetMeasurer", lambda *_, **__: FakeMeasurer(thread_cost))
        done = CliRunner().invoke(app, ["study", "model.onnx", "--trials", "4", "--json"])
    assert done.exit_code == 0, done.stderr
    return Made(place=place, stdout=done.stdout)


def test_a_study_prints_one_document(made: Made) -> None:
    result = made.result
    assert made.stdout == json.dumps(result, indent=2) + "\n"
    assert result["trials"] == 4
    assert result["complete"] is True
    assert result["members"][0]["configuration"] == {}
    kept = json.loads((made.folder / "front.json").read_text(encoding="utf-8"))
    assert kept == result


def test_a_study_leaves_its_files(made: Made) -> None:
    names = {path.name for path in made.folder.iterdir()} - {".lock", "cache"}
    assert names == {*made.result["files"], "study.db", "report.html"}
    assert (made.place / "model.onnx").read_bytes() == sample_models.lstm().SerializeToString()


def test_show_repeats_the_result(made: Made) -> None:
    done = run(made.place, "show", "model.autotune", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == made.result
    table = run(made.place, "show", "model.autotune")
    assert table.returncode == 0
    assert "default" in table.stdout
    effects = run(made.place, "show", "model.autotune", "--effects")
    assert effects.returncode == 0
    assert "How much each value alone changes an objective." in one_line(effects.stdout)
    why = run(made.place, "show", "model.autotune", "--why")
    assert why.returncode == 0
    assert "model.onnx: " in why.stdout
    assert "trial  latency ms" not in why.stdout


def test_a_study_ends_with_the_line_that_loads_its_config(made: Made) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.place)
        done = CliRunner().invoke(app, ["study", "model.onnx", "--trials", "4"])
    assert done.exit_code == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("model.onnx: ")
    assert lines[-2].startswith("Details: autotune show model.autotune")
    assert lines[-1] == 'Load it: session = autotune.load("model.autotune/best.json")'
    assert len(lines) < 20


def test_a_quiet_study_prints_the_result_alone(made: Made) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made.place)
        done = run(made.place, "study", "model.onnx", "--trials", "4", "-q")
    assert done.returncode == 0
    assert done.stdout.startswith("model.onnx: ")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


def test_a_folder_in_place_of_the_model_continues(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = options_of(monkeypatch, "study", str(made.place / "model.onnx"), "--trials", "4")
    again = options_of(monkeypatch, "study", str(made.folder), "--trials", "9", "--set", "wait=yes")
    expected = replace(
        first,
        trials=9,
        wait=True,
        max_error=first.error_limit,
        prefer=first.preference,
        out=made.folder,
        storage=f"sqlite:///{made.folder / 'study.db'}",
        clients=1,
    )
    assert again == expected
    elsewhere = options_of(monkeypatch, "study", str(made.folder), "--out", "there")
    assert (elsewhere.trials, elsewhere.wait, elsewhere.out) == (4, False, Path("there"))


def test_picking_what_is_no_member(made: Made) -> None:
    said = refused(made.place, "pick", "model.autotune", "--trial", "99")
    members = ", ".join(str(member["evidence"]["trial"]) for member in made.result["members"])
    assert f"trial 99 is not on the front; its members are {members}" in said


@pytest.mark.parametrize(
    ("arguments", "phrase"),
    [
        (["study", "model.onnx", "--set", "model=x"], "is for a study that is continued"),
        (["pick", "model.autotune", "--prefer", "speed"], "latency, memory, balanced"),
        (["pick", "model.autotune", "--trial", "0", "--prefer", "memory"], "--trial"),
        (["pick", "model.autotune", "--max-memory", "lots"], "'--max-memory': 'lots'"),
        (["pick", "model.autotune", "--max-latency", "0.0000001ms"], "no member of the front"),
        (["show", "absent"], "there is no file or folder absent"),
        (["compare", "model.autotune/front.json"], "front.json"),
        (["compare", "model.autotune/best.json", "--shape", "frames"], "NAME=1,3,224,224"),
        (["compare", "model.autotune/best.json", "--shape", "frame=1"], "Did you mean 'frames'?"),
        (["compare", "model.autotune/best.json", "--data", "absent.npz"], "absent.npz"),
    ],
)
def test_wrong_use_of_a_result(made: Made, arguments: list[str], phrase: str) -> None:
    before = (made.folder / "best.json").read_bytes()
    assert phrase in refused(made.place, *arguments)
    assert (made.folder / "best.json").read_bytes() == before


def test_an_interrupt_that_got_lost_comes_at_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is raised in a finalizer is printed and forgotten; the next step raises it again."""
    interrupts.checkpoint()
    monkeypatch.setattr(interrupts, "_received", [signal.SIGTERM])
    with pytest.raises(KeyboardInterrupt):
        interrupts.checkpoint()


def test_what_a_study_says_at_its_end_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted study still says that an earlier best.json stays in its place."""

    def ended(_: StudyOptions, on_progress: OnProgress) -> None:
        on_progress(Progress(stage="final comparison", note="best.json stays."))
        raise StudyError("ended")

    monkeypatch.setattr(interrupts, "_received", [signal.SIGINT])
    monkeypatch.setattr(tuning, "tune", ended)
    with pytest.raises(StudyError):
        run_study(StudyOptions(model=Path("model.onnx")), as_json=False)


def test_an_import_that_an_interrupt_broke_is_no_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numpy and ONNX Runtime turn an interrupt while they load into an ImportError."""
    fault = ImportError("numpy._core.multiarray failed to import")
    assert ending_of(fault).code == 1
    monkeypatch.setattr(interrupts, "_received", [signal.SIGINT])
    assert ending_of(fault).code == 130


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    assert "holds no result of a study" in refused(tmp_path, "report", ".")


def test_pick_writes_the_page_again(tmp_path: Path, frozen_study: Path) -> None:
    assert one_line(run(tmp_path, "report", "study").stdout) == "Wrote study/report.html"
    assert run(tmp_path, "pick", "study", "--trial", "3").returncode == 0
    page = (frozen_study / "report.html").read_text(encoding="utf-8")
    assert re.search(r'<tr data-trial="3" data-state="chosen"', page)


def test_the_help_of_a_study_fits_a_screen() -> None:
    """And there are at most as many commands as one can survey."""
    text = CliRunner().invoke(app, ["study", "--help"], env={"COLUMNS": "100"}).output
    for panel in ("Inputs", "Decoders", "Limits and objectives", "Search", "Storage"):
        assert f"─ {panel} ─" in text
    for rare in ("--sampler", "--try", "--max-held-memory"):
        assert rare not in text
    assert len(text.splitlines()) <= 50
    assert 20 < len(re.findall(r"^│ *--", text, re.MULTILINE)) <= 30
    assert sum(map(len, COMMANDS.values())) <= 15
