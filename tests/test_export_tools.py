"""Exports for onnxruntime_perf_test, for Olive, and in the model's metadata."""

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import onnxruntime
import pytest
from command_line import printed
from export_cases import EVERYTHING, render, text_of

from autotune.deploy.session import SessionConfig
from autotune.export.rendering import Rendering
from autotune.export.writing import export

# Options of onnxruntime_perf_test 1.31 that take a value, and those that do not.
_WITH_VALUE = {"-m", "-r", "-e", "-i", "-x", "-y", "-o", "-C", "-f", "--shrink_arena_between_runs"}
_WITHOUT_VALUE = {"-I", "-P", "-A", "-M"}


def _arguments(rendering: Rendering, folder: Path) -> list[str]:
    program = folder / "bin" / "onnxruntime_perf_test"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor argument in "$@"; do printf "%s\\0" "$argument"; done\n')
    program.chmod(0o755)
    ((name, text),) = rendering.texts.items()
    (folder / name).write_text(text, encoding="utf-8")
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["sh", str(folder / name), "-s"], env=environment, capture_output=True, check=True
    )
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.process
def test_the_command_line_of_perf_test(tmp_path: Path) -> None:
    arguments = _arguments(render("perf_test", EVERYTHING, model="-be st.onnx"), tmp_path)
    assert arguments.pop() == "./-be st.onnx"
    assert arguments.pop() == "-s"
    values: dict[str, list[str]] = {}
    while arguments:
        option = arguments.pop(0)
        assert option in _WITH_VALUE | _WITHOUT_VALUE
        values.setdefault(option, []).append(arguments.pop(0) if option in _WITH_VALUE else "")
    assert values["-x"] == ["2"]
    assert values["-y"] == ["3"]
    assert values["-o"] == ["2"]
    assert values["-e"] == ["tensorrt", "cuda", "xnnpack", "openvino"]
    assert values["-i"][1] == "use_tf32|0 device_id|1"
    assert values["-f"] == ["batch:1"]
    assert values.keys() >= _WITHOUT_VALUE
    assert "session.intra_op.allow_spinning|0" in values["-C"][0].split()
    assert values["--shrink_arena_between_runs"] == ["cpu:0"]


def test_a_dimension_that_perf_test_cannot_name_is_lost() -> None:
    rendering = render("perf_test", SessionConfig(free_dimensions={"a b": 1, "c:d": 2}))
    assert len(rendering.lost) == 2


# What get_ort_inference_session of Olive 0.13 reads of a model's inference settings.
_OLIVE_OPTIONS = {
    *("inter_op_num_threads", "intra_op_num_threads", "enable_profiling", "execution_mode"),
    *("graph_optimization_level", "extra_session_config", "log_severity_level"),
}


def test_the_inference_settings_of_olive() -> None:
    model = json.loads(text_of(render("olive", EVERYTHING)))["input_model"]
    assert model["type"] == "OnnxModel"
    settings = model["inference_settings"]
    assert settings.keys() == {"execution_provider", "provider_options", "session_options"}
    assert settings["execution_provider"] == [name for name, _ in EVERYTHING.providers]
    assert settings["provider_options"] == [dict(options) for _, options in EVERYTHING.providers]
    options = settings["session_options"]
    assert options.keys() <= _OLIVE_OPTIONS
    assert options["execution_mode"] == 1
    level = onnxruntime.GraphOptimizationLevel(options["graph_optimization_level"])
    assert level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options["extra_session_config"]["session.intra_op.allow_spinning"] == "0"
    assert all(isinstance(text, str) for text in options["extra_session_config"].values())


_FROM_MODEL = """
import os, sys
os.environ["ORT_LOAD_CONFIG_FROM_MODEL"] = "1"
import onnxruntime
before = len(os.listdir("/proc/self/task"))
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="the threads of a process are listed on Linux")
def test_onnxruntime_reads_the_options_in_the_model(frozen_config: Path) -> None:
    """The copy is the same model, and ONNX Runtime takes the number of threads from it."""
    data = json.loads(frozen_config.read_text(encoding="utf-8"))
    data["session"] = SessionConfig(options={"intra_op_num_threads": 5}).to_json()
    frozen_config.write_text(json.dumps(data), encoding="utf-8")
    (copy,) = export(frozen_config, "ort_config").files
    model = onnx.load(copy)
    onnx.checker.check_model(model)
    original = onnx.load(frozen_config.parent / "best.onnx")
    assert model.graph == original.graph
    added = {item.key: item.value for item in model.metadata_props}
    assert json.loads(added["ort_config"]) == {"session_options": {"intra_op_num_threads": 5}}
    assert printed(_FROM_MODEL, copy) == "4"  # five threads, one of which is the caller's
