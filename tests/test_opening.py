"""Opening sessions: exactly what the config says, and nothing in silence."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from command_line import printed
from test_config import make_config
from test_loader import write_config

from autotune.deploy import cuda, opening
from autotune.deploy.opening import TunedSession, open_session, use_tuned_runs
from autotune.deploy.options import ATTRIBUTES, Value
from autotune.deploy.providers import CPU, PROVIDERS
from autotune.deploy.session import SessionConfig


def _feed() -> dict[str, np.ndarray]:
    return {"image": np.ones((1, 3, 64, 64), np.float32)}


def test_empty_config_is_fresh_session_options(model: Path) -> None:
    """The baseline passes nothing: every option reads back as a fresh SessionOptions has it."""
    fresh = onnxruntime.SessionOptions()
    opened = open_session(model, SessionConfig()).get_session_options()
    names = [n for n in dir(fresh) if not n.startswith("_") and not callable(getattr(fresh, n))]
    assert set(ATTRIBUTES) <= set(names)
    for name in names:
        assert getattr(opened, name) == getattr(fresh, name), name


def test_defaults_of_the_whitelist_are_onnxruntimes_own() -> None:
    """Dropping a value equal to its default changes nothing: the defaults are the true ones."""
    fresh = onnxruntime.SessionOptions()
    for name, domain in ATTRIBUTES.items():
        value = getattr(fresh, name)
        assert getattr(value, "name", value) == domain.default, name


def test_options_take_effect(model: Path) -> None:
    config = SessionConfig(
        options={
            "intra_op_num_threads": 2,
            "execution_mode": "ORT_PARALLEL",
            "graph_optimization_level": "ORT_ENABLE_BASIC",
            "enable_cpu_mem_arena": False,
        },
        entries={"session.disable_prepacking": "1"},
    )
    opened = open_session(model, config).get_session_options()
    assert opened.intra_op_num_threads == 2
    assert opened.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert opened.graph_optimization_level == level
    assert not opened.enable_cpu_mem_arena
    assert opened.get_session_config_entry("session.disable_prepacking") == "1"


def test_free_dimensions_take_effect(model: Path) -> None:
    session = open_session(model, SessionConfig(free_dimensions={"batch": 1}))
    assert session.get_inputs()[0].shape == [1, 3, 64, 64]


def test_run_entries_apply_to_every_run(model: Path) -> None:
    """Runs without run options use the tuned ones; the caller's own win."""
    key, seen = "memory.enable_memory_arena_shrinkage", []

    class Watched:
        tuned_run_options = None

        def run(self, *arguments: object, run_options: object = None) -> None:
            seen.append(arguments[2] if len(arguments) > 2 else run_options)

    session = open_session(model, SessionConfig(run_entries={key: "cpu:0"}))
    assert isinstance(session, TunedSession)
    tuned, own = session.tuned_run_options, onnxruntime.RunOptions()
    assert tuned.get_run_config_entry(key) == "cpu:0"
    use_tuned_runs(Watched, Watched)
    watched = Watched()
    watched.tuned_run_options = tuned
    watched.run(None, _feed())
    watched.run(None, _feed(), own)
    watched.run(None, _feed(), run_options=own)
    assert seen == [tuned, own, own]


def test_tuned_session_runs(model: Path) -> None:
    entries = {"memory.enable_memory_arena_shrinkage": "cpu:0"}
    tuned = open_session(model, SessionConfig(run_entries=entries))
    expected = open_session(model, SessionConfig()).run(None, _feed())[0]
    np.testing.assert_allclose(tuned.run(None, _feed())[0], expected, rtol=1e-4)
    binding = tuned.io_binding()
    binding.bind_cpu_input("image", _feed()["image"])
    binding.bind_output("logits")
    tuned.run_with_iobinding(binding)
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected, rtol=1e-4)


_FORKED = """
import os, sys
import numpy as np
import autotune
session = autotune.load(sys.argv[1])
feed = {"image": np.ones((1, 3, 64, 64), np.float32)}
session.run(None, feed)
if os.fork() == 0:
    try:
        session.run(None, feed)
    except autotune.ConfigError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.process
def test_parallel_execution_in_a_forked_process_is_an_error_and_no_hang(model: Path) -> None:
    options: dict[str, Value] = {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 2}
    path = write_config(model, make_config(session=SessionConfig(options=options)))
    assert "load the config in each process after the fork" in printed(_FORKED, path)


def test_one_thread_runs_in_the_background_too(model: Path) -> None:
    """ONNX Runtime's own run_async refuses a pool of one thread."""
    session = open_session(model, SessionConfig(options={"intra_op_num_threads": 1}))
    expected = session.run(None, _feed())[0]
    ended, seen = threading.Event(), []

    def receive(outputs: list[np.ndarray], data: object, fault: str) -> None:
        seen.append((outputs, data, fault))
        ended.set()

    for output in ("logits", "no such output"):
        ended.clear()
        session.run_async([output], _feed(), receive, "mine")
        assert ended.wait(60)
    (right, data, fault), (_, _, refused) = seen
    np.testing.assert_array_equal(right[0], expected)
    assert (data, fault) == ("mine", "")
    assert "no such output" in refused


def test_an_empty_provider_option_is_the_providers_own_choice(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO would take the empty text for a wrong number and leave the model to the CPU."""
    given: list[object] = []

    class FakeSession:
        """Records the options of the first provider."""

        def __init__(self, *_: object, **arguments: Any) -> None:
            given.extend(arguments["provider_options"])
            self._providers = arguments["providers"]

        def get_providers(self) -> list[str]:
            return list(self._providers)

    built_in = [PROVIDERS["openvino"].name, CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: built_in)
    monkeypatch.setattr(onnxruntime, "InferenceSession", FakeSession)
    options = {"num_of_threads": "", "num_streams": "2"}
    config = SessionConfig(providers=((PROVIDERS["openvino"].name, options), (CPU, {})))
    open_session(model, config, cache=model.parent)
    assert given == [{"num_streams": "2", "cache_dir": str(model.parent)}, {}]


def test_runs_without_bound_buffers_leave_a_captured_graph_out(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay answers for the buffers that were bound first, whatever a run is given."""
    monkeypatch.setattr(cuda, "preload", lambda _: None)
    providers = [PROVIDERS["cuda"].name, CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)

    class FakeSession:
        """Keeps the number of the graph of its last run."""

        def __init__(self, *_: object, **__: object) -> None:
            self.graph: str | None = None

        def get_providers(self) -> list[str]:
            return providers

        def run(self, _: object, __: object, run_options: Any = None) -> None:
            self.graph = _graph_of(run_options)

        def run_with_iobinding(self, _: object, run_options: Any = None) -> None:
            self.graph = _graph_of(run_options)

    class FakeTuned(FakeSession):
        """As :class:`TunedSession` is."""

    use_tuned_runs(FakeTuned, FakeSession)
    monkeypatch.setattr(opening, "TunedSession", FakeTuned)
    captured = {"enable_cuda_graph": "1"}
    config = SessionConfig(providers=((providers[0], captured), (CPU, {})))
    session = open_session(model, config)
    session.run(None, {})
    assert session.graph == "-1"
    session.run_with_iobinding(None)
    assert session.graph is None


def _graph_of(options: Any) -> str | None:
    """Returns the number of the graph in run options; None where there are none."""
    return None if options is None else str(options.get_run_config_entry("gpu_graph_id"))
