"""The example of a web service: started, asked and stopped."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from export_cases import FEED

import autotune

pytest.importorskip("fastapi", reason="fastapi is not installed")
pytest.importorskip("uvicorn", reason="uvicorn is not installed")

EXAMPLES = Path(__file__).parent.parent / "docs" / "examples"
DATA = Path(__file__).parent / "data"
_PATIENCE_S = 60.0

pytestmark = [pytest.mark.process, pytest.mark.slow]


@dataclass(frozen=True)
class Service:
    """A running service."""

    process: subprocess.Popen[bytes]
    url: str

    def ask(self, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data, headers={"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def wait(self) -> None:
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end:
            assert self.process.poll() is None, "the service ended"
            try:
                self.ask("/health")
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise AssertionError("the service does not answer")


def _start(config: Path) -> Service:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "service:app"),
            *("--host", "127.0.0.1", "--port", str(port)),
        ],
        env={**os.environ, "AUTOTUNE_CONFIG": str(config), "AUTOTUNE_THREADS": "1"},
        stderr=subprocess.PIPE,
    )
    return Service(process, f"http://127.0.0.1:{port}")


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    shutil.copytree(DATA / "config", tmp_path / "model")
    started = _start(tmp_path / "model" / "best.json")
    try:
        started.wait()
        yield started
    finally:
        started.process.kill()
        started.process.communicate()


@pytest.mark.filterwarnings("ignore:.* was tuned elsewhere")
def test_the_service_answers_and_stops(service: Service) -> None:
    status, health = service.ask("/health")
    assert status == 200
    assert health["inputs"].keys() == FEED.keys()
    assert health["providers"] == ["CPUExecutionProvider"]

    session = autotune.load(DATA / "study" / "best.json")
    inputs = {name: array.tolist() for name, array in FEED.items()}
    status, answer = service.ask("/predict", {"inputs": inputs})
    assert status == 200
    for output, expected in zip(session.get_outputs(), session.run(None, FEED), strict=True):
        got = np.array(answer["outputs"][output.name], np.float32)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)

    for wrong in ({}, {"frames": "x", "state": [[[1] * 8]]}, {**inputs, "frames": [[[1.0]]]}):
        status, answer = service.ask("/predict", {"inputs": wrong})
        assert status == 422
        assert answer["detail"]

    service.process.send_signal(signal.SIGTERM)
    service.process.wait(timeout=_PATIENCE_S)
    # uvicorn hands the signal on once it has put everything in order
    assert service.process.returncode in (0, -signal.SIGTERM)


def test_a_wrong_config_ends_the_service_at_once(tmp_path: Path) -> None:
    started = _start(tmp_path / "absent.json")
    _, messages = started.process.communicate(timeout=_PATIENCE_S)
    assert started.process.returncode != 0
    assert "there is no file or folder" in messages.decode()
