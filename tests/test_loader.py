"""Loading tuned configs: on the machine that tuned them, and elsewhere."""

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from test_config import make_config

import autotune
from autotune.deploy import cpu
from autotune.deploy.config import Environment, Requires, TunedConfig
from autotune.deploy.digest import digest_files
from autotune.deploy.loader import check_files
from autotune.deploy.model_files import DataFile, JointModelFile, ModelFile
from autotune.errors import ConfigError
from autotune.facts import sample_models


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model."""
    path = tmp_path / "best.onnx"
    onnx.save(sample_models.separable_cnn(), path)
    return path


def write_config(model: Path, config: TunedConfig) -> Path:
    """Writes `config` beside `model`, with the truth about model and machine filled in."""
    here = Environment(
        autotune="0.1.0",
        onnxruntime=onnxruntime.__version__,
        cpu=cpu.cpu_model(),
        cores=cpu.usable_cores(),
        fingerprint="f",
    )
    file = ModelFile(
        file=model.name,
        sha256=digest_files([model]),
        size_bytes=model.stat().st_size,
        source_sha256="",
    )
    if config.environment.cpu == "a cpu":
        config = replace(config, environment=here)
    path = model.parent / "best.json"
    path.write_text(json.dumps(replace(config, model=file).to_json()), encoding="utf-8")
    return path


def _feed() -> dict[str, np.ndarray]:
    return {"image": np.ones((1, 3, 64, 64), np.float32)}


def test_load_opens_what_the_config_says(model: Path) -> None:
    """On the machine that tuned it a config loads without a word."""
    path = write_config(model, make_config())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = autotune.load(path)
        autotune.load(path, strict=True)
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.run(None, _feed())[0].shape == (1, 10)


def test_another_machine_is_named(model: Path) -> None:
    """Elsewhere a warning names both machines; strict refuses."""
    there = Environment(
        autotune="0.1.0", onnxruntime="0.0.1", cpu="another cpu", cores=999, fingerprint="f"
    )
    path = write_config(model, make_config(environment=there))
    with pytest.warns(autotune.ConfigWarning, match="another cpu there") as told:
        session = autotune.load(path)
    assert "0.0.1" in str(told[0].message)
    assert session.get_session_options().intra_op_num_threads == 1
    with pytest.raises(ConfigError, match="another cpu"):
        autotune.load(path, strict=True)


@pytest.mark.parametrize(
    "requires",
    [Requires(providers=("NoSuchExecutionProvider",)), Requires(cpu_features=("no_such_feature",))],
)
def test_missing_requirement_falls_back(
    model: Path, requires: Requires, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where something required is missing, default options are used with a warning."""
    monkeypatch.setattr(cpu, "cpu_features", lambda: frozenset({"avx2"}))
    path = write_config(model, make_config(requires=requires))
    with pytest.warns(autotune.ConfigWarning, match="this machine lacks"):
        session = autotune.load(path)
    assert session.get_session_options().intra_op_num_threads == 0
    with pytest.raises(ConfigError, match="lacks"):
        autotune.load(path, strict=True)


def test_another_model_is_refused(model: Path) -> None:
    """A missing model, one of another size, and with strict one of other bytes, are refused."""
    path = write_config(model, make_config())
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(ConfigError, match="not the file that was tuned"):
        autotune.load(path, strict=True)
    model.write_bytes(bytes(data) + b"x")
    with pytest.raises(ConfigError, match="not the file that was tuned"):
        autotune.load(path)
    model.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        autotune.load(path)


def _write_with_data(folder: Path, *, earlier: bool = False) -> Path:
    """Writes a config whose model has two data files of eight bytes that it does not need."""
    model = folder / "best.onnx"
    data = [folder / "best.onnx.data", folder / "best.onnx.data2"]
    for number, path in enumerate(data):
        path.write_bytes(bytes(range(8 * number, 8 * number + 8)))
    size_bytes = model.stat().st_size
    files: ModelFile | JointModelFile
    if earlier:
        files = JointModelFile(
            file=model.name,
            sha256=digest_files([model, *data]),
            size_bytes=size_bytes,
            source_sha256="",
            data_files=tuple(path.name for path in data),
        )
    else:
        files = ModelFile(
            file=model.name,
            sha256=digest_files([model]),
            size_bytes=size_bytes,
            source_sha256="",
            data_files=tuple(map(DataFile.of, data)),
        )
    config = replace(make_config(), model=files)
    (folder / "best.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
    return folder / "best.json"


def test_bytes_moved_between_data_files_are_noticed(model: Path) -> None:
    """Each file has a size and a digest of its own: moving bytes from one to the next changes both.

    The sizes are compared always, the digests with strict.
    """
    path = _write_with_data(model.parent)
    config = TunedConfig.read(path)
    check_files(path, config, read_all=True)
    first, second = (model.parent / name for name in config.model.names[1:])
    moved = first.read_bytes() + second.read_bytes()
    first.write_bytes(moved[:12])
    second.write_bytes(moved[12:])
    with pytest.raises(ConfigError, match=r"best\.onnx\.data is not the file"):
        autotune.load(path)
    first.write_bytes(moved[8:])
    second.write_bytes(moved[:8])
    check_files(path, config, read_all=False)
    with pytest.raises(ConfigError, match=r"best\.onnx\.data is not the file"):
        autotune.load(path, strict=True)


def test_the_files_of_an_earlier_config_are_checked(model: Path) -> None:
    """The format autotune/1 has one digest for all files, which strict compares."""
    path = _write_with_data(model.parent, earlier=True)
    config = TunedConfig.read(path)
    assert json.loads(path.read_text("utf-8"))["format"] == "autotune/1"
    check_files(path, config, read_all=True)
    (model.parent / "best.onnx.data2").write_bytes(b"changed.")
    with pytest.raises(ConfigError, match=r"best\.onnx is not the file"):
        autotune.load(path, strict=True)
    (model.parent / "best.onnx.data2").unlink()
    with pytest.raises(ConfigError, match=r"best\.onnx\.data2 of the config is missing"):
        autotune.load(path)


@pytest.mark.parametrize(
    "path", ["x" * 300, "a\0b", "\ud800", ".", "absent.json"], ids=lambda path: path[:10]
)
def test_a_path_that_is_no_config_is_refused(tmp_path: Path, path: str) -> None:
    """One class of error for all."""
    with pytest.raises(ConfigError):
        autotune.load(tmp_path / path)


@pytest.mark.parametrize("name", ["x" * 300, "\ud800.onnx", "."])
def test_a_model_name_that_no_file_can_have_is_refused(model: Path, name: str) -> None:
    """The system's own exceptions do not get out."""
    path = write_config(model, make_config())
    data = json.loads(path.read_text())
    data["model"]["file"] = name
    path.write_text(json.dumps(data))
    with pytest.raises(ConfigError):
        autotune.load(path)


def test_a_damaged_model_is_the_configs_fault(model: Path) -> None:
    """ONNX Runtime's own exceptions do not get out; the message names config and model."""
    path = write_config(model, make_config())
    model.write_bytes(b"\xff" * model.stat().st_size)
    with pytest.raises(ConfigError, match=r"best\.json: ONNX Runtime cannot open .*best\.onnx"):
        autotune.load(path)


def test_a_key_that_is_there_twice_is_refused(model: Path) -> None:
    """Another reader may take the other value."""
    path = write_config(model, make_config())
    path.write_text(path.read_text().replace('"format"', '"format": "autotune/1", "format"', 1))
    with pytest.raises(ConfigError, match="'format' is there twice"):
        autotune.load(path)
