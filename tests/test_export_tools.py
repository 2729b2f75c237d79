"""The export in the model's metadata."""

import json
import sys
from pathlib import Path

import onnx
import pytest
from command_line import printed

from autotune.deploy.session import SessionConfig
from autotune.export.writing import export

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
