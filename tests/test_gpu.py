"""What only an NVIDIA GPU can show; run with ``pytest -m gpu`` beside ``onnxruntime-gpu``."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import decoder_models
import numpy as np
import onnx
import pytest

import autotune
from autotune.deploy.generation import generation
from autotune.deploy.opening import open_session
from autotune.deploy.providers import CPU, PROVIDERS
from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.facts.providers import READY, provider_states
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Measurement
from autotune.measure.replies import FirstRuns, SliceTimes
from autotune.measure.requests import SampleFiles, request_session
from autotune.process.child import Child, memory_limit
from autotune.space.configuration import Configuration

pytestmark = [pytest.mark.gpu, pytest.mark.process, pytest.mark.slow]

_CUDA = PROVIDERS["cuda"].name
_SHORT = Effort(time_cap_s=0.2, patience_s=1.0, half_width=1.0)
_ON_CUDA: dict[str, str] = {"execution_provider": "cuda"}


@pytest.fixture(scope="module", autouse=True)
def _gpu() -> None:
    """Skips the tests where the CUDA provider does not run a small model."""
    state = next(state for state in provider_states() if state.word == "cuda")
    if state.state != READY:
        pytest.skip(f"CUDA cannot be used here ({state.state}: {state.reason})")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image classifier with some work for a GPU."""
    path = tmp_path_factory.mktemp("gpu") / "cnn.onnx"
    onnx.save(sample_models.cnn(channels=64, size=64, blocks=4), path)
    return path


@pytest.fixture(scope="module")
def measurer(model: Path) -> Iterator[DuetMeasurer]:
    described = describe(model)
    opened = DuetMeasurer(described, generate(described, {}), max_error=0.05)
    yield opened
    opened.close()


def test_a_measurement_on_the_gpu_is_whole(measurer: DuetMeasurer) -> None:
    outcome = measurer.measure(Configuration.of({**_ON_CUDA, "cuda.use_tf32": "0"}), _SHORT)
    assert isinstance(outcome, Measurement)
    assert outcome.placement is not None
    assert outcome.placement.share(_CUDA) > 0.9
    assert outcome.copy_ms is not None
    assert outcome.copy_ms > 0
    assert outcome.fidelity.error < 1e-3
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    assert outcome.memory.device_mib is not None
    assert outcome.memory.device_mib > 1


@pytest.mark.parametrize("precision", PROVIDERS["cuda"].precisions)
def test_half_precision_runs_on_the_gpu(precision: str, model: Path, tmp_path: Path) -> None:
    """It is offered for CUDA whatever the processor's kernels are, and its answers are near."""
    result = autotune.tune(
        model,
        out=tmp_path / "out",
        trials=2,
        providers=["cuda"],
        fix={"execution_provider": "cuda", "precision": precision},
    )
    assert "refused" not in result.failed
    assert "fallback" not in result.failed


def test_a_captured_graph_answers_for_new_inputs(measurer: DuetMeasurer) -> None:
    """The answers that are judged come from replays, on buffers that were written anew."""
    outcome = measurer.measure(
        Configuration.of({**_ON_CUDA, "cuda.enable_cuda_graph": "1"}), _SHORT
    )
    assert isinstance(outcome, Measurement), outcome
    assert outcome.fidelity.error < 0.05


def test_a_captured_graph_leaves_plain_runs_alone(model: Path) -> None:
    """ONNX Runtime would replay the first run's graph, and answer for its inputs."""
    config = SessionConfig(providers=((_CUDA, {"enable_cuda_graph": "1"}), (CPU, {})))
    session = open_session(model, config)
    plain = open_session(model, SessionConfig())
    for seed in range(3):
        image = np.random.default_rng(seed).standard_normal((1, 3, 64, 64)).astype(np.float32)
        answer, right = (each.run(None, {"image": image})[0] for each in (session, plain))
        np.testing.assert_allclose(answer, right, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("options", [{"prefer_nhwc": "1"}, {"cudnn_conv_algo_search": "HEURISTIC"}])
def test_options_of_convolutions_run(options: dict[str, str], measurer: DuetMeasurer) -> None:
    values = {f"cuda.{name}": text for name, text in options.items()}
    outcome = measurer.measure(Configuration.of({**_ON_CUDA, **values}), _SHORT)
    assert isinstance(outcome, Measurement), outcome


@pytest.mark.parametrize("kind", ["plain", "gqa", "merged"])
def test_a_decoder_keeps_its_caches_on_the_device(kind: str, tmp_path: Path) -> None:
    path = decoder_models.write(kind, tmp_path / "decoder.onnx")
    config = SessionConfig(providers=((_CUDA, {"use_tf32": "0"}), (CPU, {})))
    made = generation(open_session(path, config))
    plain = generation(open_session(path, SessionConfig()))
    tokens = [3, 17, 42, 9]
    answer, right = (each.start(tokens, 16).copy() for each in (made, plain))
    np.testing.assert_allclose(answer, right, rtol=1e-2, atol=1e-2)
    for token in (60, 1, 33):
        answer, right = (each.step(token).copy() for each in (made, plain))
        np.testing.assert_allclose(answer, right, rtol=1e-2, atol=1e-2)
    # GroupQueryAttention in float has no kernel of CUDA
    home = "cpu" if kind == "gqa" else "cuda"
    assert {value.device_name() for value in made._values.values()} == {home}


def test_a_study_over_both_providers_writes_a_config_that_loads(
    model: Path, tmp_path: Path
) -> None:
    """The baseline is the CPU's default; the winner loads with its provider and placement."""
    result = autotune.tune(model, out=tmp_path / "out", trials=4, providers=["cpu", "cuda"])
    assert result.trials == 4
    config = tmp_path / "out" / "best.json"
    session = autotune.load(config, strict=True)
    named = [name for name, _ in json.loads(config.read_text("utf-8"))["session"]["providers"]]
    assert session.get_providers() == named


def _side(model: Path, files: SampleFiles) -> Child:
    """Returns a process with a session on the GPU, after its first runs."""
    child = Child("autotune.measure.measure_child", memory_limit())
    config = SessionConfig(providers=((_CUDA, {}), (CPU, {})))
    request_session(child, files, model, config, 120.0)
    child.request({"do": "first_runs"}, 120.0, FirstRuns)
    return child


def _turn(child: Child) -> list[int]:
    message = {"do": "slice", "seconds": 0.1, "unrecorded_runs": 5, "fewest_runs": 20}
    return list(child.request(message, 60.0, SliceTimes).run_ns)


def test_a_frozen_side_leaves_the_device_idle(model: Path, tmp_path: Path) -> None:
    """Every run waits for its outputs, so that a stopped process cannot disturb the other side.

    The driver's own figure of the device's use, the share of its last sample period in which some
    kernel ran, is zero while the process that had worked is stopped.
    """
    pynvml = pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    pynvml.nvmlInit()
    device = pynvml.nvmlDeviceGetHandleByIndex(0)
    side = _side(model, SampleFiles.write(generate(describe(model), {}), tmp_path))
    try:
        _turn(side)
        side.freeze()
        time.sleep(2)  # longer than the driver's longest sample period
        assert pynvml.nvmlDeviceGetUtilizationRates(device).gpu == 0
        side.thaw()
        assert min(_turn(side)) > 0
    finally:
        side.stop()
