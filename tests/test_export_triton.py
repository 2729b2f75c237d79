"""The exported model repository, by Triton's own schema."""

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from export_cases import EVERYTHING, FEED, expected_answers, render, text_of

from autotune.export.writing import export


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
    rendering = render("triton", EVERYTHING, model='be"st.onnx')
    parsed = _triton_config(text_of(rendering))
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


def test_the_model_repository_of_triton(frozen_config: Path) -> None:
    """Version 1 has the model's files, which open there; the server sees one model."""
    exported = export(frozen_config, "triton")
    repository = frozen_config.parent / "lstm.triton"
    assert [path.relative_to(repository) for path in exported.files] == [
        Path("lstm/config.pbtxt"),
        Path("lstm/1/best.onnx"),
        Path("lstm/1/best.onnx.data"),
    ]
    session = onnxruntime.InferenceSession(
        repository / "lstm" / "1" / "best.onnx", providers=["CPUExecutionProvider"]
    )
    np.testing.assert_allclose(
        session.run(None, FEED)[0], expected_answers(frozen_config)[0], rtol=1e-6
    )
    parsed = _triton_config((repository / "lstm" / "config.pbtxt").read_text(encoding="utf-8"))
    assert parsed.instance_group[0].Kind.Name(parsed.instance_group[0].kind) == "KIND_CPU"
