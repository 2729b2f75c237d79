"""Exports in other languages: compiled, and run where the consumer can be had."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from export_cases import EVERYTHING, FEED, HOSTILE, expected_answers, render

import autotune
from autotune.deploy.session import SessionConfig
from autotune.export.rendering import Rendering
from autotune.export.writing import export

STUBS = Path(__file__).parent / "stubs"


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
    for target in ("javascript", "triton"):
        rendering = render(target, SessionConfig(free_dimensions={HOSTILE: 2}))
        mark = {"javascript": "//"}.get(target, "#")
        (text,) = rendering.texts.values()
        lines = [line for line in text.splitlines() if "dimension" in line]
        assert lines
        assert all(line.startswith(mark) and "\\" not in line for line in lines)


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("session", [EVERYTHING, SessionConfig()], ids=["everything", "default"])
def test_cpp_compiles(session: SessionConfig, tmp_path: Path) -> None:
    """Against the published signatures (tests/stubs)."""
    header = _written(render("cpp", session, model=HOSTILE), tmp_path)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{STUBS}"]
    (tmp_path / "main.cpp").write_text(f'#include "{header.name}"\n')
    _compile([_compiler("g++"), *flags, "main.cpp"], tmp_path)


_MAIN = r"""
#include "lstm_session.hpp"
#include <cstdio>
#include <vector>
int main(int, char** arguments) {
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "test");
  lstm_session::prepare_environment(env);
  Ort::Session session = lstm_session::open_session(env, arguments[1]);
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<float> frames(4, 1.0f), state(8, 1.0f);
  const int64_t shapes[2][3] = {{1, 1, 4}, {1, 1, 8}};
  std::vector<Ort::Value> inputs;
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, frames.data(), 4, shapes[0], 3));
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, state.data(), 8, shapes[1], 3));
  const char* names[] = {"frames", "state"};
  const char* outputs[] = {arguments[2]};
  auto answers = session.Run(lstm_session::make_run_options(), names, inputs.data(), 2, outputs, 1);
  const size_t count = answers[0].GetTensorTypeAndShapeInfo().GetElementCount();
  for (size_t i = 0; i < count; i++) printf("%.9g\n", answers[0].GetTensorMutableData<float>()[i]);
}
"""


@pytest.mark.process
@pytest.mark.slow
def test_cpp_runs_with_the_real_headers(frozen_config: Path, tmp_path: Path) -> None:
    places = [os.environ.get("ORT_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/local/include"]
    include = next((p for p in places if p and Path(p, "onnxruntime_cxx_api.h").is_file()), None)
    if include is None:
        pytest.skip("no package of PyPI, npm or Debian 12 has the headers; set ORT_INCLUDE=DIR")
    libraries = Path(onnxruntime.__file__).parent / "capi"
    (library,) = libraries.glob("libonnxruntime.so.*")
    header = export(frozen_config, "cpp").files[0]
    (tmp_path / "main.cpp").write_text(_MAIN)
    command = [_compiler("g++"), "-std=c++17", f"-I{include}", f"-I{header.parent}", "main.cpp"]
    # programs look for the library under the name that it was built with
    (tmp_path / "libonnxruntime.so.1").symlink_to(library)
    _compile([*command, library, f"-Wl,-rpath,{tmp_path}", "-o", "main"], tmp_path)
    output = autotune.load(frozen_config).get_outputs()[0].name
    done = subprocess.run(
        [tmp_path / "main", frozen_config.parent, output],
        capture_output=True,
        text=True,
        check=True,
    )
    answers = np.array(done.stdout.split(), np.float32)
    np.testing.assert_array_equal(answers, expected_answers(frozen_config)[0].ravel())


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
def test_javascript_runs_with_onnxruntime_node(frozen_config: Path) -> None:
    npm, node = _compiler("npm"), _compiler("node")
    folder = frozen_config.parent
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
    exported = export(frozen_config, "javascript")
    (folder / "main.mjs").write_text(_NODE)
    _compile([node, "main.mjs", str(folder / "best.onnx")], folder)
    result = json.loads((folder / "answers.json").read_text())
    session = autotune.load(frozen_config)
    for output, expected in zip(session.get_outputs(), session.run(None, FEED), strict=True):
        answer = np.array(result["plain"][output.name], np.float32)
        np.testing.assert_allclose(answer, expected.ravel(), rtol=1e-6, atol=1e-7)
    assert result["refused"] == 4
    assert list(exported.lost) == ["run option memory.enable_memory_arena_shrinkage=cpu:0"]
