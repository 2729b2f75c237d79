"""The study in other people's tools: optuna-dashboard opens its storage."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeWorld, thread_cost

from autotune.facts import sample_models
from autotune.storage.database import Place, open_storage

pytestmark = pytest.mark.usefixtures("quiet")


def _get(app: Any, path: str) -> Any:
    """Returns what the dashboard's API answers to a request."""
    statuses: list[str] = []
    request = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": path,
        "QUERY_STRING": "after=0",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": io.StringIO(),
    }
    body = app(request, lambda status, *_: statuses.append(status))
    text = b"".join(body)
    assert statuses == ["200 OK"], text
    return json.loads(text)


def test_the_dashboard_shows_the_study(tmp_path: Path) -> None:
    dashboard = pytest.importorskip("optuna_dashboard", reason="optuna-dashboard is not installed")
    sample_models.write("lstm", tmp_path / "lstm.onnx")
    result = FakeWorld(thread_cost, on_disk=True).tune(
        tmp_path / "lstm.onnx", trials=8, space="session", out=tmp_path / "out"
    )
    with open_storage(Place.of(None, tmp_path / "out")) as storage:
        app = dashboard.wsgi(storage)
        (entry,) = _get(app, "/api/studies")["study_summaries"]
        study = _get(app, f"/api/studies/{entry['study_id']}")
    assert entry["study_name"] == result.study
    assert study["objective_names"] == ["latency_ms", "peak_memory_mib"]
    complete = [trial for trial in study["trials"] if trial["state"] == "Complete"]
    assert len(complete) >= result.trials == 8
    assert all(len(trial["values"]) == 2 for trial in complete)
