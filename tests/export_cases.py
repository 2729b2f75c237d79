"""Configs to export, for the tests of all targets."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
from test_config import make_config

import autotune
from autotune.deploy import cpu
from autotune.deploy.session import SessionConfig
from autotune.export.rendering import Rendering
from autotune.export.targets import TARGETS

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
# What autotune writes, without the process-wide allocator, on which the order of the tests would
# depend.
PLAIN = SessionConfig(
    options={"intra_op_num_threads": 1, "enable_mem_pattern": False},
    entries={"session.disable_prepacking": "1"},
    disabled_optimizers=("NchwcTransformer",),
    run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
)


def render(target: str, session: SessionConfig, model: str = "best.onnx") -> Rendering:
    """Returns the export of a session, with a model of that name."""
    config = make_config(session=session)
    config = replace(config, model=replace(config.model, file=model))
    return TARGETS[target](config, "best.json", "mobilenet-v2")


def text_of(rendering: Rendering) -> str:
    (text,) = rendering.texts.values()
    return text


def copy_config(folder: Path) -> Path:
    """Returns a config of a model with an external data file, in a folder as a study names it.

    It reads as if this machine had tuned it.
    """
    shutil.copytree(DATA / "config", folder / "lstm.autotune")
    path = folder / "lstm.autotune" / "best.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    data["session"] = PLAIN.to_json()
    data["environment"] |= {
        "onnxruntime": onnxruntime.__version__,
        "cpu": cpu.cpu_model(),
        "cores": cpu.usable_cores(),
    }
    path.write_text(json.dumps(data), encoding="utf-8")
    genai = json.dumps({"model": {"decoder": {}}})
    path.with_name("genai_config.json").write_text(genai, encoding="utf-8")
    return path


def expected_answers(config: Path) -> list[np.ndarray]:
    """Returns the outputs of the config for :data:`FEED`."""
    answers: list[np.ndarray] = autotune.load(config).run(None, FEED)
    return answers
