"""Where the time goes, for a model and for a tuned config beside its default."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import brief_studies
import pytest
from small_inspections import PEAKS, PROFILE, REPORT
from small_models import write
from typer.testing import CliRunner
from views import lines_of

from autotune.cli.app import app
from autotune.deploy.files import digest_files
from autotune.deploy.records import to_plain
from autotune.deploy.session import SessionConfig
from autotune.errors import StudyError
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.inspection.headroom import headroom
from autotune.inspection.profile import TimeShare, profile_session
from autotune.process.durable import write_json
from autotune.report.profile import view_profile
from autotune.results.profiling import (
    DEFAULT,
    PROFILE_FILE,
    TUNED,
    ProfiledSession,
    Profiling,
    kept_profile,
    profile,
)

CONFIG = Path(__file__).parent / "data" / "config"


def _row(name: str, time_ms: float, share: float) -> TimeShare:
    return TimeShare(name=name, operator="", nodes=1, time_ms=time_ms, share=share)


def _session(name: str, *rows: TimeShare) -> ProfiledSession:
    work = replace(REPORT.work, float_operations=1_000_000)
    return ProfiledSession(
        name=name,
        file="m.onnx",
        profile=replace(PROFILE, operators=rows, overheads=rows[1:], slowest=rows),
        work=work,
        headroom=headroom(work, PEAKS, 4.0),
    )


def test_both_sessions_stand_side_by_side() -> None:
    sessions = (
        _session(DEFAULT, _row("Conv", 3.0, 0.75), _row("layout reorders", 1.0, 0.25)),
        _session(TUNED, _row("QLinearConv", 1.0, 1.0)),
    )
    lines = lines_of(view_profile(Profiling(sessions=sessions, peaks=PEAKS)))
    assert "default (m.onnx): 1 ms a run, 4 nodes; 75 % of the time is spent in Conv." in lines
    assert "Conv 1 3.000 75 %" in lines
    assert "QLinearConv 1 1.000 100 %" in lines
    assert "The tuned config takes 4 ms. The arithmetic alone " in "\n".join(lines)


def test_a_run_of_a_batch_says_so() -> None:
    profiling = Profiling(sessions=(_session(DEFAULT),), peaks=PEAKS, batch=4)
    assert lines_of(view_profile(profiling))[0].startswith(
        "default (m.onnx): 1 ms a run of 4 samples, "
    )


@pytest.mark.process
def test_profile_of_a_model(tmp_path: Path) -> None:
    path, _ = write("cnn", tmp_path)
    described = describe(path)
    workload = generate(described, {})
    result = profile_session(path, SessionConfig(), workload)
    assert sum(row.share for row in result.operators) == pytest.approx(1)
    assert result.run_ms > 0
    assert result.arena_mib is not None
    assert result.executed == pytest.approx(sum(row.nodes for row in result.operators))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.process
@pytest.mark.slow
def test_config_is_profiled_beside_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief_studies.measure_briefly(monkeypatch.setattr)
    folder = tmp_path / "study"
    shutil.copytree(CONFIG, folder)
    result = profile(folder, shapes={"frames": (1, 1, 4)})  # the sizes that the config fixes
    assert kept_profile(folder) == result
    assert [session.name for session in result.sessions] == [DEFAULT, TUNED]
    assert all(session.profile.operators for session in result.sessions)
    assert all(session.headroom.roof_ms > 0 for session in result.sessions)


def _kept(folder: Path) -> Profiling:
    """Writes a config and a profile of it to `folder`; returns the profile."""
    (folder / "best.json").write_text("{}")
    profiling = Profiling(
        sessions=(_session(DEFAULT, _row("Conv", 3.0, 0.75)),),
        peaks=PEAKS,
        config_sha256=digest_files([folder / "best.json"]),
    )
    write_json(to_plain(profiling), folder / PROFILE_FILE)
    return profiling


def test_profile_of_a_study_is_kept(tmp_path: Path) -> None:
    assert kept_profile(tmp_path) is None
    profiling = _kept(tmp_path)
    assert kept_profile(tmp_path) == profiling
    (tmp_path / "best.json").write_text("{ }")
    assert kept_profile(tmp_path) is None


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"sessions": []}, "must not be empty"),
        ({"peaks": {}}, "'peaks.float_per_s' is missing"),
        ({"config_sha256": 1}, "must be a string"),
        ({"more": 1}, "unknown key 'more'"),
    ],
)
def test_damaged_profile_is_refused(tmp_path: Path, damage: dict[str, object], reason: str) -> None:
    data = to_plain(_kept(tmp_path)) | damage
    write_json(data, tmp_path / PROFILE_FILE)
    with pytest.raises(StudyError, match=reason) as refusal:
        kept_profile(tmp_path)
    assert f"autotune profile {tmp_path}" in str(refusal.value)


def test_inputs_are_not_overwritten_by_a_profile(tmp_path: Path) -> None:
    data = tmp_path / PROFILE_FILE
    data.write_bytes(b"inputs")
    with pytest.raises(StudyError, match="would be overwritten"):
        profile(tmp_path, data=data)
    assert data.read_bytes() == b"inputs"


@pytest.mark.process
@pytest.mark.slow
def test_command_prints_text_and_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    brief_studies.measure_briefly(monkeypatch.setattr)
    path, _ = write("lstm", tmp_path)
    text = CliRunner().invoke(app, ["profile", str(path)])
    assert text.exit_code == 0, text.output
    assert text.stdout.split()[0] == "default"  # the path of a temporary folder may fold
    done = CliRunner().invoke(app, ["profile", str(path), "--json"])
    assert len(json.loads(done.stdout)["sessions"]) == 1
