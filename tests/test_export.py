"""Exports of a tuned config: written once, complete, and taken by their consumers."""

import importlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from test_config import make_config

import autotune
from autotune.deploy.config import TunedConfig
from autotune.deploy.options import ATTRIBUTES
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, RequestError
from autotune.export.literals import class_name, identifier
from autotune.export.rendering import Rendering
from autotune.export.targets import TARGETS
from autotune.export.writing import export, model_name

STUBS = Path(__file__).parent / "stubs"
DATA = Path(__file__).parent / "data"
FEED = {name: np.ones((1, 1, size), np.float32) for name, size in (("frames", 4), ("state", 8))}
# A model of a stranger names its dimensions as it likes.
HOSTILE = 'a "b"\\\n// */ # \u000a é \U0001f600 \u2028'
EVERYTHING = SessionConfig(
    providers=(
        ("TensorrtExecutionProvider", {"trt_fp16_enable": "1", "trt_min_subgraph_size": "5"}),
        ("CUDAExecutionProvider", {"use_tf32": "0", "device_id": "1"}),
        ("XnnpackExecutionProvider", {"intra_op_num_threads": "2"}),
        ("OpenVINOExecutionProvider", {"device_type": "CPU"}),
        ("CPUExecutionProvider", {}),
    ),
    options={
        "intra_op_num_threads": 2,
        "inter_op_num_threads": 3,
        "execution_mode": "ORT_PARALLEL",
        "graph_optimization_level": "ORT_ENABLE_EXTENDED",
        "enable_mem_pattern": False,
        "enable_cpu_mem_arena": False,
        "enable_mem_reuse": False,
        "use_deterministic_compute": True,
    },
    entries={
        "session.use_device_allocator_for_initializers": "1",
        "session.use_env_allocators": "1",
        "session.intra_op.allow_spinning": "0",
    },
    disabled_optimizers=("NchwcTransformer", "ConvAddFusion"),
    free_dimensions={"batch": 1, HOSTILE: 2},
    env_allocator={"arena_extend_strategy": 1},
    run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
)
# What autotune emits, without the process-wide allocator, on which the order of the tests would
# depend.
PLAIN = SessionConfig(
    options={"intra_op_num_threads": 1, "enable_mem_pattern": False},
    entries={"session.disable_prepacking": "1"},
    disabled_optimizers=("NchwcTransformer",),
    run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
)


def _render(target: str, session: SessionConfig, model: str = "best.onnx") -> Rendering:
    config = make_config(session=session)
    config = replace(config, model=replace(config.model, file=model))
    return TARGETS[target].render(config, "best.json", "mobilenet-v2")


def _text(rendering: Rendering) -> str:
    (text,) = rendering.texts.values()
    return text


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config of a model with an external data file, in a folder as a study names it."""
    folder = tmp_path / "lstm.autotune"
    shutil.copytree(DATA / "config_2", folder)
    path = folder / "best.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["session"] = PLAIN.to_json()
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def _expected(config: Path) -> list[np.ndarray]:
    answers: list[np.ndarray] = autotune.load(config).run(None, FEED)
    return answers


def test_the_name_of_the_model() -> None:
    """The folder of a study names it; elsewhere the file does."""
    assert model_name(Path("/x/mobilenet-v2.autotune/best.json")) == "mobilenet-v2"
    assert model_name(Path("/x/models/detector.json")) == "detector"


def test_names_of_code() -> None:
    """Any name becomes one that the languages take."""
    assert identifier("MobileNet v2.1") == "mobilenet_v2_1"
    assert identifier("7b") == "model_7b"
    assert identifier("é") == "model"
    assert class_name("mobilenet-v2") == "MobilenetV2"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_nothing_is_overwritten(config: Path, target: str) -> None:
    """A second export is refused, leaves every file as it is, and names the one in its way."""
    exported = export(config, target)
    assert exported.files
    for path in exported.files:
        path.write_bytes(b"mine")
    if len(exported.files) > 1:
        exported.files[0].unlink()  # one file in the way is enough
    before = sorted(config.parent.rglob("*"))
    with pytest.raises(RequestError, match="nothing is overwritten"):
        export(config, target)
    assert sorted(config.parent.rglob("*")) == before
    assert {path.read_bytes() for path in exported.files if path.exists()} == {b"mine"}


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_link_is_followed(config: Path, tmp_path: Path, target: str) -> None:
    """A link where a file would be written leads nowhere, not even to a file that is not there."""
    first = export(config, target, tmp_path / "elsewhere").files[0]
    place = config.parent / first.relative_to(tmp_path / "elsewhere")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "target")
    with pytest.raises(RequestError, match="is a link"):
        export(config, target)
    assert not (tmp_path / "target").exists()


def test_wrong_requests_are_refused(config: Path) -> None:
    """An unknown target with the nearest, and a model that is not the one of the config."""
    with pytest.raises(RequestError, match="Did you mean 'java'"):
        export(config, "jave")
    (config.parent / "best.onnx").write_bytes(b"x")
    with pytest.raises(ConfigError, match="not the file that was tuned"):
        export(config, "cpp")


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_default_session_loses_nothing(target: str) -> None:
    """Where a study emits the default, every target can express it."""
    assert _render(target, SessionConfig(options={"enable_mem_reuse": True})).lost == ()


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"python"}))
def test_every_part_is_written_or_listed_as_lost(target: str) -> None:
    """Each option, entry and dimension changes the export, or is named among what it lacks."""
    plain = _render(target, SessionConfig())
    parts = [
        *(SessionConfig(options={name: value}) for name, value in EVERYTHING.options.items()),
        *(
            SessionConfig(entries={name: text})
            for name, text in EVERYTHING.entries.items()
            if name != "session.use_env_allocators"
        ),
        *(SessionConfig(providers=(pair,)) for pair in EVERYTHING.providers[:-1]),
        SessionConfig(disabled_optimizers=EVERYTHING.disabled_optimizers),
        SessionConfig(free_dimensions={"batch": 1}),
        SessionConfig(env_allocator={"arena_extend_strategy": 1}),
        SessionConfig(run_entries=EVERYTHING.run_entries),
        SessionConfig(options={"graph_optimization_level": "ORT_ENABLE_LAYOUT"}),
    ]
    for part in parts:
        rendering = _render(target, part)
        same = rendering.copies == plain.copies and list(rendering.texts.values()) == list(
            plain.texts.values()
        )
        assert rendering.lost or not same, f"{target} drops {part} in silence"
    assert len(EVERYTHING.options) == len(ATTRIBUTES)


# ---- Python


_VENDORED = """
import sys
sys.modules["autotune"] = None  # an import of it fails
import numpy, load_best
feed = dict(numpy.load(sys.argv[1]))
session = load_best.load(strict=True)
numpy.savez(sys.argv[2], *session.run(None, feed))
options = load_best.session_options()
print(options.intra_op_num_threads)
print(load_best.load(threads=2).get_session_options().intra_op_num_threads)
print(load_best.run_options().get_run_config_entry("memory.enable_memory_arena_shrinkage"))
try:
    load_best.load(threads=-1)
except load_best.ConfigError as error:
    print(type(error).__name__)
"""


@pytest.mark.process
def test_python_without_autotune(config: Path, tmp_path: Path) -> None:
    """A process in which autotune cannot be imported loads the config, with equal answers."""
    export(config, "python")
    np.savez(tmp_path / "feed.npz", **FEED)  # type: ignore[arg-type]
    files = [str(tmp_path / name) for name in ("feed.npz", "answers.npz")]
    command = [sys.executable, "-c", _VENDORED, *files]
    environment = {**os.environ, "PYTHONPATH": str(config.parent)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.split() == ["1", "2", "cpu:0", "ConfigError"]
    answers = np.load(tmp_path / "answers.npz")
    for answer, expected in zip(answers.values(), _expected(config), strict=True):
        np.testing.assert_array_equal(answer, expected)


_TWO_VENDORED = """
import sys, warnings
sys.modules["autotune"] = None
import load_best
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    load_best.load()
(warning,) = caught
print(warning.category is load_best.ConfigWarning, warning.filename)
"""


@pytest.mark.process
def test_the_vendored_loader_warns_as_ours_does(config: Path) -> None:
    """Another machine is named, and the warning points at the caller."""
    data = json.loads(config.read_text(encoding="utf-8"))
    data["environment"]["cpu"] = "another cpu"
    config.write_text(json.dumps(data), encoding="utf-8")
    export(config, "python")
    done = subprocess.run(
        [sys.executable, "-c", _TWO_VENDORED],
        env={**os.environ, "PYTHONPATH": str(config.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "<string>"]


# ---- Triton


def _model_config_messages() -> ModuleType:
    """Returns the published messages of Triton, without the client's other dependencies."""
    spec = importlib.util.find_spec("tritonclient")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("tritonclient, which has Triton's schema, is not installed")
    path = Path(spec.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    module_spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    return module


def _triton_config(text: str) -> Any:
    text_format = importlib.import_module("google.protobuf.text_format")
    messages = _model_config_messages()
    return text_format.Parse(text, messages.ModelConfig())


def test_triton_takes_every_part_that_it_can_express() -> None:
    """Triton's own schema parses the file, and the parameters are those of its backend."""
    rendering = _render("triton", EVERYTHING, model='be"st.onnx')
    parsed = _triton_config(_text(rendering))
    assert parsed.name == "mobilenet_v2"
    assert parsed.backend == "onnxruntime"
    assert parsed.default_model_filename == 'be"st.onnx'
    assert parsed.optimization.graph.level == 1
    assert {key: value.string_value for key, value in parsed.parameters.items()} == {
        "intra_op_thread_count": "2",
        "inter_op_thread_count": "3",
        "execution_mode": "1",
        "enable_mem_pattern": "0",
        "enable_mem_arena": "0",
        "session.use_device_allocator_for_initializers": "1",
        "memory.enable_memory_arena_shrinkage": "cpu:0",
    }
    accelerators = parsed.optimization.execution_accelerators
    tensorrt, cuda = accelerators.gpu_execution_accelerator
    assert (tensorrt.name, dict(tensorrt.parameters)) == (
        "tensorrt",
        {"precision_mode": "FP16", "trt_min_subgraph_size": "5"},
    )
    assert (cuda.name, dict(cuda.parameters)) == ("cuda", {"use_tf32": "0"})
    assert [item.name for item in accelerators.cpu_execution_accelerator] == ["openvino"]
    assert parsed.instance_group[0].Kind.Name(parsed.instance_group[0].kind) == "KIND_GPU"
    assert any("NchwcTransformer" in part for part in rendering.lost)


def test_the_model_repository_of_triton(config: Path) -> None:
    """Version 1 has the model's files, which open there; the server sees one model."""
    exported = export(config, "triton")
    repository = config.parent / "lstm.triton"
    assert [path.relative_to(repository) for path in exported.files] == [
        Path("lstm/config.pbtxt"),
        Path("lstm/1/best.onnx"),
        Path("lstm/1/best.onnx.data"),
    ]
    session = onnxruntime.InferenceSession(
        repository / "lstm" / "1" / "best.onnx", providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(session.run(None, FEED)[0], _expected(config)[0], rtol=1e-6)
    parsed = _triton_config((repository / "lstm" / "config.pbtxt").read_text(encoding="utf-8"))
    assert parsed.instance_group[0].Kind.Name(parsed.instance_group[0].kind) == "KIND_CPU"


# ---- onnxruntime_perf_test

# Options of onnxruntime_perf_test 1.31 that take a value, and those that do not.
_WITH_VALUE = {"-m", "-r", "-e", "-i", "-x", "-y", "-o", "-C", "-f", "--shrink_arena_between_runs"}
_WITHOUT_VALUE = {"-I", "-P", "-A", "-M"}


def _arguments(rendering: Rendering, folder: Path) -> list[str]:
    """Returns the arguments that the script gives to the program."""
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
    """All options are published ones, with their values, and the model comes last."""
    arguments = _arguments(_render("perf_test", EVERYTHING, model="-be st.onnx"), tmp_path)
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
    """Its list of dimensions is cut at spaces and colons."""
    rendering = _render("perf_test", SessionConfig(free_dimensions={"a b": 1, "c:d": 2}))
    assert len(rendering.lost) == 2


# ---- other languages


def _compile(command: list[str | Path], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def _compiler(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def _written(rendering: Rendering, folder: Path) -> Path:
    ((name, text),) = rendering.texts.items()
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_no_name_leaves_its_comment() -> None:
    """Each line of a heading is one comment, without a backslash that other languages decode."""
    for target in ("javascript", "triton", "perf_test"):
        rendering = _render(target, SessionConfig(free_dimensions={HOSTILE: 2}))
        mark = {"javascript": "//"}.get(target, "#")
        (text,) = rendering.texts.values()
        lines = [line for line in text.splitlines() if "dimension" in line]
        assert lines
        assert all(line.startswith(mark) and "\\" not in line for line in lines)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("session", [EVERYTHING, SessionConfig()], ids=["everything", "default"])
class TestCompiled:
    """What was exported compiles against the published signatures (tests/stubs)."""

    def test_cpp(self, session: SessionConfig, tmp_path: Path) -> None:
        header = _written(_render("cpp", session, model=HOSTILE), tmp_path)
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{STUBS}"]
        (tmp_path / "main.cpp").write_text(f'#include "{header.name}"\n')
        _compile([_compiler("g++"), *flags, "main.cpp"], tmp_path)

    def test_csharp(self, session: SessionConfig, tmp_path: Path) -> None:
        source = _written(_render("csharp", session, model=HOSTILE), tmp_path)
        flags = ["-target:library", "-out:x.dll", "-langversion:7"]
        _compile([_compiler("mcs"), *flags, source, STUBS / "Ort.cs"], tmp_path)

    def test_java(self, session: SessionConfig, tmp_path: Path) -> None:
        source = _written(_render("java", session, model=HOSTILE), tmp_path)
        flags = ["-Werror", "-sourcepath", str(STUBS / "java"), "-d", "out", "--release", "11"]
        _compile([_compiler("javac"), *flags, source], tmp_path)

    def test_rust(self, session: SessionConfig, tmp_path: Path) -> None:
        source = _written(_render("rust", session, model=HOSTILE), tmp_path)
        flags: list[str | Path] = [_compiler("rustc"), "--edition=2021", "--crate-type=rlib"]
        _compile([*flags, "--crate-name=ort", STUBS / "ort.rs"], tmp_path)
        _compile([*flags, "-Dwarnings", "--extern=ort=libort.rlib", source], tmp_path)


_MAIN = r"""
#include "lstm_session.hpp"
#include <cstdio>
#include <vector>
int main(int, char** arguments) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "test");
  lstm::prepare_environment(env);
  Ort::Session session = lstm::open_session(env, arguments[1]);
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<float> frames(4, 1.0f), state(8, 1.0f);
  const int64_t shapes[2][3] = {{1, 1, 4}, {1, 1, 8}};
  std::vector<Ort::Value> inputs;
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, frames.data(), 4, shapes[0], 3));
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, state.data(), 8, shapes[1], 3));
  const char* names[] = {"frames", "state"};
  const char* outputs[] = {arguments[2]};
  auto answers = session.Run(lstm::make_run_options(), names, inputs.data(), 2, outputs, 1);
  const size_t count = answers[0].GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; i++) printf("%.9g\n", answers[0].GetTensorMutableData<float>()[i]);
}
"""


@pytest.mark.process
@pytest.mark.slow
def test_cpp_runs_with_the_real_headers(config: Path, tmp_path: Path) -> None:
    """The exported header opens the model with the library of the Python package."""
    places = [os.environ.get("ORT_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include"]
    include = next((p for p in places if p and Path(p, "onnxruntime_cxx_api.h").is_file()), None)
    if include is None:
        pytest.skip("no package of PyPI, npm or Debian 12 has the headers; set ORT_INCLUDE=DIR")
    libraries = Path(onnxruntime.__file__).parent / "capi"
    (library,) = libraries.glob("libonnxruntime.so.*")
    header = export(config, "cpp").files[0]
    (tmp_path / "main.cpp").write_text(_MAIN)
    command = [_compiler("g++"), "-std=c++17", f"-I{include}", f"-I{header.parent}", "main.cpp"]
    # programs look for the library under the name that it was built with
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    _compile([*command, library, f"-Wl,-rpath,{tmp_path}", "-o", "main"], tmp_path)
    output = autotune.load(config).get_outputs()[0].name
    done = subprocess.run(
        [tmp_path / "main", config.parent, output], capture_output=True, text=True, check=True
    )
    answers = np.array(done.stdout.split(), np.float32)
    np.testing.assert_array_equal(answers, _expected(config)[0].ravel())


_NODE = """
import { writeFileSync } from "node:fs";
import ort from "onnxruntime-node";
import { openSession, sessionOptions } from "./lstm_session.mjs";
const session = await openSession();
const ones = (size) => new ort.Tensor("float32", new Float32Array(size).fill(1), [1, 1, size]);
const answers = await session.run({ frames: ones(4), state: ones(8) });
const plain = Object.fromEntries(
  Object.entries(answers).map(([name, tensor]) => [name, Array.from(tensor.data)]));
// an option that the binding reads is checked: a wrong type is refused
let refused = 0;
for (const name of Object.keys(sessionOptions)) {
  const wrong = { ...sessionOptions, [name]: Symbol.iterator };
  try { await openSession.call(null); await ort.InferenceSession.create(process.argv[2], wrong); }
  catch { refused += 1; }
}
writeFileSync("answers.json", JSON.stringify({ plain, refused }));
"""


@pytest.mark.process
@pytest.mark.slow
def test_javascript_runs_with_onnxruntime_node(config: Path) -> None:
    """onnxruntime-node runs the exported options on the same model with equal outputs."""
    npm, node = _compiler("npm"), _compiler("node")
    folder = config.parent
    (folder / "package.json").write_text('{"private": true}')
    install = [
        npm,
        "install",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "onnxruntime-node@^1.30.0",
    ]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install onnxruntime-node: {done.stderr.strip()[-200:]}")
    exported = export(config, "javascript")
    (folder / "main.mjs").write_text(_NODE)
    _compile([node, "main.mjs", str(folder / "best.onnx")], folder)
    result = json.loads((folder / "answers.json").read_text())
    session = autotune.load(config)
    for output, expected in zip(session.get_outputs(), session.run(None, FEED), strict=True):
        answer = np.array(result["plain"][output.name], np.float32)
        np.testing.assert_allclose(answer, expected.ravel(), rtol=1e-6, atol=1e-7)
    assert result["refused"] == 4
    assert exported.lost == ("run option memory.enable_memory_arena_shrinkage=cpu:0",)


# ---- Olive and the model's metadata

# What get_ort_inference_session of Olive 0.13 reads of a model's inference settings.
_OLIVE_OPTIONS = {
    *("inter_op_num_threads", "intra_op_num_threads", "enable_profiling", "execution_mode"),
    *("graph_optimization_level", "extra_session_config", "log_severity_level"),
}


def test_the_inference_settings_of_olive() -> None:
    """Olive reads every key of them, and makes the session options of the config."""
    model = json.loads(_text(_render("olive", EVERYTHING)))["input_model"]
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
def test_onnxruntime_reads_the_options_in_the_model(config: Path) -> None:
    """The copy is the same model, and ONNX Runtime takes the number of threads from it."""
    data = json.loads(config.read_text(encoding="utf-8"))
    data["session"] = SessionConfig(options={"intra_op_num_threads": 5}).to_json()
    config.write_text(json.dumps(data), encoding="utf-8")
    (copy,) = export(config, "ort_config").files
    model = onnx.load(copy)
    onnx.checker.check_model(model)
    original = onnx.load(config.parent / "best.onnx")
    assert model.graph == original.graph
    added = {item.key: item.value for item in model.metadata_props}
    assert json.loads(added["ort_config"]) == {"session_options": {"intra_op_num_threads": 5}}
    done = subprocess.run(
        [sys.executable, "-c", _FROM_MODEL, str(copy)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "4"  # five threads, one of which is the caller's


def test_the_config_is_not_changed_by_an_export(config: Path) -> None:
    """All that was there is as it was."""
    before = {path: path.read_bytes() for path in config.parent.iterdir()}
    for target in TARGETS:
        export(config, target)
    assert {path: path.read_bytes() for path in before} == before
    assert TunedConfig.read(config).session == PLAIN
