"""OpenVINO on the CPU: a second provider that works."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import optuna
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import BUILDERS
from world import Environment, environment

from autotune.deploy.cpu import cpu_features
from autotune.deploy.providers import CPU, OPENVINO_BF16, OPENVINO_FLOAT_INPUTS, PROVIDERS
from autotune.graph.parameters import PRECISIONS
from autotune.search.optuna_trials import read_trials

pytestmark = [pytest.mark.environment, pytest.mark.process, pytest.mark.slow]

_NAME = PROVIDERS["openvino"].name
_BRIEF = Path(__file__).with_name("brief.py")
# Values for devices that OpenVINO may find elsewhere; beside these, there is only the CPU.
_OTHER_DEVICES = {("device_type", "GPU"), ("device_type", "NPU"), ("precision", "FP16")}
_OPEN = """
import json, sys
from pathlib import Path
from autotune.deploy.opening import open_session
from autotune.deploy.placement import placement_of
from autotune.deploy.session import SessionConfig
shares = []
for chosen in json.loads(sys.argv[2]):
    config = SessionConfig.from_json({"providers": [["OpenVINOExecutionProvider", chosen]]})
    session = open_session(Path(sys.argv[1]), config)
    shares.append(placement_of(session).share("OpenVINOExecutionProvider"))
print(json.dumps(shares))
"""
_ANSWER = """
import json, sys
from pathlib import Path
import numpy
from autotune.deploy.opening import open_session
from autotune.deploy.session import SessionConfig
config = SessionConfig.from_json(
    {"providers": [["OpenVINOExecutionProvider", json.loads(sys.argv[2])]]}
)
session = open_session(Path(sys.argv[1]), config)
with numpy.load(sys.argv[3]) as feed:
    (outputs,) = session.run(None, dict(feed))
print(json.dumps(outputs.tolist()))
"""
_APPLICATION = """
import json, sys, warnings
import numpy
import autotune
warnings.simplefilter("error")
session = autotune.load(sys.argv[1], strict=sys.argv[2] == "strict")
with numpy.load(sys.argv[3]) as feed:
    (outputs,) = session.run(None, dict(feed))
print(json.dumps([session.get_providers(), outputs.tolist()]))
"""
_OWN = """
import json
import numpy, onnxruntime
session = onnxruntime.InferenceSession("cnn.onnx", providers=["CPUExecutionProvider"])
with numpy.load("feed.npz") as feed:
    for _ in range(20):
        (outputs,) = session.run(None, dict(feed))
print(json.dumps([session.get_providers(), outputs.tolist()]))
"""
_TUNE = """
import json, sys
from pathlib import Path
from autotune.applications.recording import Recording
from autotune.applications.replay import Arrangement, Opening, Played, ReplayMeasurer
from autotune.applications.schedule import schedule_of
from autotune.applications.today import today_session
from autotune.applications.writing import Replacement, write_application
from autotune.deploy.config import TunedConfig
from autotune.facts.model import describe
from autotune.facts.runtime import runtime
path = Path(sys.argv[1])
recording, config = Recording.read(Path("app.rec")), TunedConfig.read(path)
(session,) = recording.sessions
model = recording.model_path(session)
schedule = schedule_of(recording.processes[0], {session.name: describe(model)}, lengths_s=[1.0])
today = Opening(model=model, session=today_session(session.opened, runtime().providers))
tuned = Opening(model=model, session=config.session, cache=Path("cache"))
measurer = ReplayMeasurer(schedule, Arrangement(openings={session.name: today}))
played = measurer.measure(Arrangement(openings={session.name: tuned}), 2)
measurer.close()
write_application(
    Path("app.tuned"), [Replacement(session=session, config=config, source=path.parent)]
)
print(json.dumps(isinstance(played, Played) or str(played)))
"""


@pytest.fixture(scope="module")
def openvino() -> Environment:
    """The environment with ONNX Runtime's flavour for OpenVINO."""
    return environment("openvino")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and an input."""
    place = tmp_path_factory.mktemp("openvino")
    onnx.save(BUILDERS["cnn"](), place / "cnn.onnx")
    rng = np.random.default_rng(0)
    np.savez(place / "feed.npz", image=rng.normal(size=(1, 3, 16, 16)).astype(np.float32))
    return place


@pytest.fixture(scope="module")
def result(openvino: Environment, place: Path) -> dict[str, Any]:
    """The result of a study of the CPU provider and OpenVINO, which counts as the faster one."""
    arguments = ("study", "cnn.onnx", "openvino", "cpu", "openvino")
    front: dict[str, Any] = openvino.result(str(_BRIEF), *arguments, cwd=place)
    return front


@pytest.fixture
def config(result: dict[str, Any], place: Path) -> Path:
    """The config that the study wrote."""
    return place / str(result["folder"]) / "best.json"


def test_a_study_measures_both_providers(result: dict[str, Any], place: Path) -> None:
    storage = f"sqlite:///{place / result['folder'] / 'study.db'}"
    study = optuna.load_study(study_name=result["study"], storage=storage)
    measurements: dict[object, list[Any]] = {}
    for trial in read_trials(study):
        provider = trial.configuration.to_json().get("execution_provider", "cpu")
        assert trial.measurement is not None
        measurements.setdefault(provider, []).append(trial.measurement)
    assert set(measurements) == {"cpu", "openvino"}
    assert all(item.placement is None for item in measurements["cpu"])
    for item in measurements["openvino"]:
        assert item.placement.share(_NAME) == 1
        assert item.load_ms > 0
        assert item.cached_load_ms > 0


def test_the_config_names_the_provider(result: dict[str, Any], config: Path) -> None:
    picked = json.loads(config.read_text("utf-8"))
    assert picked["session"]["providers"][0][0] == _NAME
    assert picked["session"]["provider_cache"] == "provider-cache"
    assert _NAME in picked["requires"]["providers"]
    assert picked["evidence"]["provider"]["placement"] == {_NAME: 1.0}
    members = [member["configuration"] for member in result["members"]]
    assert {"execution_provider": "openvino"} in members


@pytest.mark.parametrize("mode", ["plain", "strict"])
def test_an_application_loads_it_without_a_word_about_providers(
    openvino: Environment, config: Path, place: Path, mode: str
) -> None:
    """The session runs on OpenVINO, nothing warns, and the answers are the model's."""
    arguments = (str(config), mode, str(place / "feed.npz"))
    providers, answers = openvino.result("-c", _APPLICATION, *arguments, cwd=place)
    assert providers == [_NAME, CPU]
    np.testing.assert_allclose(answers, _untouched(place), rtol=1e-4, atol=1e-5)
    assert (config.parent / "provider-cache").is_dir()


def test_an_application_is_recorded_replayed_and_run_with_it(
    openvino: Environment, config: Path, place: Path
) -> None:
    """The application names the CPU provider, and its session runs on OpenVINO unchanged."""
    (place / "app.py").write_text(_OWN, encoding="utf-8")
    command = ("--", str(openvino.python), "app.py")
    providers, answers = openvino.result(
        "-m", "autotune", "record", "--quiet", "-o", "app.rec", *command, cwd=place
    )
    assert providers == [CPU]
    assert openvino.result("-c", _TUNE, str(config), cwd=place) is True
    providers, tuned = openvino.result("-m", "autotune", "run", "app.tuned", *command, cwd=place)
    assert providers == [_NAME, CPU]
    np.testing.assert_allclose(tuned, answers, rtol=1e-4, atol=1e-5)


def test_the_installed_build_takes_every_option(
    openvino: Environment, place: Path, tmp_path: Path
) -> None:
    """With each value that a config may name, OpenVINO runs the whole model."""
    chosen = [
        {name: value}
        for name, domain in PROVIDERS["openvino"].options.items()
        for value in domain.choices
        if (name, value) not in _OTHER_DEVICES
    ]
    arguments = (str(place / "cnn.onnx"), json.dumps(chosen))
    shares = openvino.result("-c", _OPEN, *arguments, cwd=tmp_path)
    assert dict(zip(map(str, chosen), shares, strict=True)) == dict.fromkeys(map(str, chosen), 1.0)


@pytest.mark.skipif(
    not {"avx512_bf16", "amx_bf16"} & cpu_features(), reason="the processor has no bfloat16"
)
def test_bfloat16_changes_the_answers_a_little(
    openvino: Environment, place: Path, tmp_path: Path
) -> None:
    """The option has its effect: an error that fp32 never has, and no more than bfloat16's."""
    options = {"load_config": OPENVINO_BF16}
    arguments = (str(place / "cnn.onnx"), json.dumps(options), str(place / "feed.npz"))
    answers = np.asarray(openvino.result("-c", _ANSWER, *arguments, cwd=tmp_path))
    right = _untouched(place)
    error = float(np.linalg.norm(answers - right) / np.linalg.norm(right))
    assert 1e-4 < error < 0.05


@pytest.mark.skipif(
    not {"avx512_vnni", "avx_vnni"} & cpu_features(),
    reason="OpenVINO quantises no activations on a processor without VNNI",
)
def test_the_group_size_changes_the_answers_of_weights_in_few_bits(
    openvino: Environment, tmp_path: Path
) -> None:
    """By default OpenVINO quantises the activations as well: a larger error."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.normal(size=(128, 64)).astype(np.float32), "w")
    shapes = {"x": [4, 128], "y": [4, 64]}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items())
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "m", [x], [y], [weights]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "float.onnx")
    PRECISIONS["int8_weight_only"].run(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    feed = {"x": rng.normal(size=(4, 128)).astype(np.float32)}
    np.savez(tmp_path / "feed.npz", x=feed["x"])
    (right,) = onnxruntime.InferenceSession(tmp_path / "float.onnx").run(None, feed)
    errors = []
    for text in ("", OPENVINO_FLOAT_INPUTS):
        arguments = (str(tmp_path / "int8.onnx"), json.dumps({"load_config": text}))
        script = ("-c", _ANSWER, *arguments, str(tmp_path / "feed.npz"))
        answers = np.asarray(openvino.result(*script, cwd=tmp_path))
        errors.append(float(np.linalg.norm(answers - right) / np.linalg.norm(right)))
    assert 0 < errors[1] < errors[0] / 1.1
    assert errors[0] < 0.05


def _untouched(place: Path) -> Any:
    """Returns the answers of the model itself, an array."""
    session = onnxruntime.InferenceSession(place / "cnn.onnx", providers=[CPU])
    with np.load(place / "feed.npz") as feed:
        (answers,) = session.run(None, dict(feed))
    return answers
