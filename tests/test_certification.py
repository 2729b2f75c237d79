"""Answers of a config on other processors, by an emulator that is none."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from made_runtimes import FORWARDING, files_of, unpack
from test_config import make_config, requiring
from test_loader import write_config

from autotune.deploy import cpu
from autotune.deploy.config import (
    COMPARED,
    FAILED,
    NOT_COMPARED,
    REFUSED,
    Certificate,
    RequiredRuntime,
    TunedConfig,
)
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, RequestError, StudyError
from autotune.facts import sample_models
from autotune.facts.inputs import workload_for
from autotune.facts.model import describe
from autotune.measure.companions import cases_of
from autotune.results import certification, subjects
from autotune.results.certification import answers_rightly, certify
from autotune.results.profiling import profile


def _certificate(**changes: object) -> Certificate:
    blank = Certificate(
        processor="avx2", outcome=COMPARED, how="here", samples=4, batch=1, padding=0, error=0.01
    )
    return replace(blank, **changes)  # type: ignore[arg-type]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small transformer with an attention mask and open dimensions."""
    path = tmp_path / "best.onnx"
    onnx.save(sample_models.transformer(), path)
    return path


def test_ways_to_call_a_model(model: Path) -> None:
    described = describe(model)
    workload = workload_for(described, None, {"attention_mask": [1, 5], "input_ids": [1, 5]})
    alone, together, padded = cases_of(described, workload, {})
    assert (alone.batch, together.batch, padded.padding) == (1, 4, 8)
    assert together.feeds[0]["input_ids"].shape == (4, 5)
    assert padded.feeds[0]["attention_mask"].tolist() == [[1] * 5 + [0] * 8]
    np.testing.assert_array_equal(padded.feeds[0]["input_ids"][:, :5], alone.feeds[0]["input_ids"])


def test_fixed_dimensions_leave_single_samples(model: Path) -> None:
    described = describe(model)
    sizes = {str(name): 1 for tensor in described.inputs for name in tensor.shape}
    assert len(cases_of(described, workload_for(described, None, {}), sizes)) == 1


def test_right_answers() -> None:
    unknown = _certificate(outcome=NOT_COMPARED, error=None)
    refused = _certificate(outcome=REFUSED, error=None)
    certificates = [_certificate(), _certificate(error=0.3), unknown, refused]
    assert answers_rightly(certificates, 0.3)
    assert not answers_rightly(certificates, 0.29)
    assert not answers_rightly([_certificate(outcome=FAILED, error=None)], math.inf)
    assert answers_rightly([], 0.05)


def test_certificates_survive_json() -> None:
    config = make_config(certified=(_certificate(), _certificate(error=None, outcome=REFUSED)))
    data = json.loads(json.dumps(config.to_json()))
    assert TunedConfig.from_json(data) == config
    data["certified"][0]["processor"] = "z80"
    with pytest.raises(ConfigError, match=r"certified\[0\].processor must be one of avx2"):
        TunedConfig.from_json(data)


def test_a_kind_of_processor_that_is_none(model: Path) -> None:
    with pytest.raises(RequestError, match="Did you mean 'avx512'"):
        certify(write_config(model, make_config()), processors=["avx51"], shapes={})


@pytest.fixture
def emulator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that takes an emulator's arguments and runs the rest as it is."""
    program = tmp_path / "qemu-x86_64-static"
    program.write_text('#!/bin/sh\nshift 4; exec "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(certification, "kind_here", lambda: "vnni")
    monkeypatch.setattr(cpu, "is_x86", lambda: True)
    return program


@pytest.mark.process
def test_a_config_is_certified(model: Path, emulator: Path) -> None:
    config = certify(
        write_config(model, make_config()),
        processors=["vnni", "avx2", "avx512", "arm64"],
        source=model,
        shapes={},
    )
    rows = [(i.processor, i.outcome, i.batch, i.padding) for i in config.certified]
    ways = [(1, 0), (4, 0), (1, 8)]
    assert rows[:6] == [(name, COMPARED, *way) for name in ("vnni", "avx2") for way in ways]
    assert rows[6:] == [(name, NOT_COMPARED, 1, 0) for name in ("avx512", "arm64")]
    assert answers_rightly(config.certified, 1e-5)
    assert TunedConfig.read(model.with_name("best.json")) == config
    emulator.unlink()
    path = model.with_name("best.json")
    (missing,) = certify(path, processors=["avx2"], source=model, shapes={}).certified
    assert missing.outcome == NOT_COMPARED
    assert "install qemu-x86_64-static" in missing.how


@pytest.mark.process
def test_a_config_that_was_replaced_meanwhile_stays(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Emulation takes minutes, in which a study or a pick may write another config."""
    path = write_config(model, make_config())
    newer = make_config(session=SessionConfig(options={"intra_op_num_threads": 2}))

    def certificates(*_: object) -> list[Certificate]:
        write_config(model, newer)
        return [_certificate()]

    monkeypatch.setattr(certification, "_certificates", certificates)
    with pytest.raises(StudyError, match="has changed while it was compared"):
        certify(path, processors=["avx2"], source=model, shapes={})
    assert TunedConfig.read(path).session == newer.session


@pytest.mark.process
def test_a_refusal_is_recorded(model: Path, emulator: Path) -> None:
    path = write_config(model, make_config())
    emulator.write_text(
        # what the loader of another processor would say
        '#!/bin/sh\nshift 9; printf \'{"refusal": "blocks", "faults": []}\' > "$2"\n',
        encoding="utf-8",
    )
    (refused,) = certify(path, processors=["avx2"], source=model, shapes={}).certified
    assert (refused.outcome, refused.error) == (REFUSED, None)
    assert "blocks" in refused.how


@pytest.mark.process
def test_a_config_of_another_runtime_is_certified_with_it(
    model: Path, emulator: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ONNX Runtime opens it here and in x86's emulator; ARM64 has no such build."""
    needed = RequiredRuntime(package="onnxruntime-openvino", version="9.9.9")
    requires = replace(requiring("CPUExecutionProvider"), runtime=needed)
    path = write_config(model, make_config(requires=requires))
    site = tmp_path / "onnxruntime-openvino-9.9.9"
    monkeypatch.setattr(subjects, "is_there", lambda _: False)
    with pytest.raises(ConfigError, match=r"autotune runtimes add onnxruntime-openvino==9\.9\.9"):
        certify(path, source=model, shapes={})
    monkeypatch.setattr(subjects, "is_there", lambda _: True)
    monkeypatch.setattr(subjects, "site_of", lambda _: site)
    emulator.with_name("qemu-aarch64-static").symlink_to(emulator)
    monkeypatch.setenv(certification.ARM64_ROOT, str(tmp_path))
    kinds = ["vnni", "avx2", "arm64"]
    unpack(files_of(needed.package, needed.version, code=FORWARDING), site)
    certified = certify(path, processors=kinds, source=model, shapes={}).certified
    assert [i.outcome for i in certified] == [*[COMPARED] * 6, NOT_COMPARED]
    assert all(site.name in i.how for i in certified)
    with pytest.raises(ConfigError, match="autotune profile runs in this environment alone"):
        profile(path, on_step=lambda *_: None)
