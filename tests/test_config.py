"""The tuned config: JSON and back, and everything that may not be in one."""

import json
from pathlib import Path
from typing import Any

import pytest
from factories import make_evidence, make_numbers
from hypothesis import given
from hypothesis import strategies as st
from small_spaces import values_of

from autotune.deploy import options
from autotune.deploy.config import Interval, Serving, TunedConfig
from autotune.deploy.loaded import Environment, ModelFile, Requires
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError


def requiring(
    *providers: str,
    vnni: bool = False,
    exact_products: bool = False,
    float16_in_float32: bool = False,
    weight_block: int | None = None,
) -> Requires:
    return Requires(
        providers=providers,
        vnni=vnni,
        exact_products=exact_products,
        float16_in_float32=float16_in_float32,
        weight_block=weight_block,
        runtime=None,
    )


def make_config(**changes: Any) -> TunedConfig:
    parts: dict[str, Any] = {
        "model": ModelFile(file="best.onnx", sha256="0" * 64, size_bytes=1, source_sha256="1" * 64),
        "session": SessionConfig(options={"intra_op_num_threads": 1}),
        "evidence": make_evidence(
            make_numbers(
                {"latency_ms": 1.0, "peak_memory_mib": 10.0},
                {"latency_ms": Interval(value=2.0, low=1.9, high=2.1)},
                agreement=1.0,
            ),
            3,
        ),
        "baseline": make_evidence(
            make_numbers(
                {"latency_ms": 2.0, "peak_memory_mib": 20.0, "p99_ms": 2.5},
                {"latency_ms": Interval(value=1.0, low=1.0, high=1.0)},
            )
        ),
        "requires": requiring("CPUExecutionProvider"),
        "environment": Environment(
            autotune="0.1.0", onnxruntime="1.0", cpu="a cpu", cores=2, fingerprint="f"
        ),
        "configuration": {"intra_op_num_threads": 2},
    }
    return TunedConfig(**{**parts, **changes})


def _some(known: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={name: values_of(d) for name, d in known.items()})


SESSIONS = st.builds(
    SessionConfig,
    options=_some(options.ATTRIBUTES),
    entries=_some(options.SESSION_ENTRIES),
    disabled_optimizers=st.lists(st.sampled_from(sorted(options.OPTIMIZERS)), max_size=3).map(
        tuple
    ),
    free_dimensions=st.dictionaries(st.text(min_size=1), st.integers(1, 512), max_size=3),
    env_allocator=_some(options.ARENA_OPTIONS),
    run_entries=_some(options.RUN_ENTRIES),
)


@given(session=SESSIONS)
def test_config_survives_json(session: SessionConfig) -> None:
    served = Serving(clients=8, sessions="per_client")
    config = make_config(session=session, serving=served)
    assert TunedConfig.from_json(json.loads(json.dumps(config.to_json()))) == config


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("session", "option"), {}, "Did you mean 'options'?"),
        (("session", "options", "intra_op_num_thread"), 1, "Did you mean 'intra_op_num_threads'?"),
        (("session", "options", "intra_op_num_threads"), "1", "must be a whole number"),
        (("session", "options", "optimized_model_filepath"), "/x", "not an option"),
        (("session", "entries", "session.disable_prepacking"), 1, "must be one of '0', '1'"),
        (("session", "entries", "ep.context_file_path"), "/x", "not an option"),
        (("session", "disabled_optimizers"), ["Nchwc"], "no optimizer 'Nchwc'"),
        (("session", "free_dimensions"), {"batch": 0}, "at least 1"),
        (("session", "providers"), [["CUDA", {}]], "not an execution provider"),
        (("session", "providers"), [["CPUExecutionProvider", {"x": "1"}]], "not an option"),
        # these two would take them in silence, and leave the model to the CPU
        (("session", "providers"), [["ggml", {"wieghts": "f32"}]], "Did you mean 'weights'"),
        (
            ("session", "providers"),
            [["OpenVINOExecutionProvider", {"num_streams": "x"}]],
            "must be one of '1', '2'",
        ),
        (("session", "run_entries", "x"), "1", "not an option"),
        (("process",), {}, "unknown key 'process'"),
        (("model", "file"), "../best.onnx", "bare file name"),
        (
            ("model", "data_files"),
            [{"file": "../weights.bin", "sha256": "", "size_bytes": 1}],
            "bare file name",
        ),
        (("model", "library"), "x.so", "unknown key 'model.library'"),
        (("evidence", "speedup"), 2.0, "evidence.speedup must be an object"),
        (("requires", "providers"), "CPU", "must be a list"),
        (("serving",), {"clients": 0, "sessions": "shared"}, "serving.clients"),
        (("serving",), {"clients": 2, "sessions": "many"}, "serving.sessions"),
        (("serving",), {"clients": 2, "threads": 4}, "threads"),
        (("serving",), {"sessions": "shared"}, "clients"),
        (("format",), "autotune/9", "autotune/1"),
        (("extra",), 1, "unknown key 'extra'"),
    ],
)
def test_what_may_not_be_in_a_config(path: tuple[str, ...], value: object, words: str) -> None:
    data = make_config().to_json()
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(ConfigError) as refused:
        TunedConfig.from_json(data)
    assert words in str(refused.value)


_REQUIREMENTS = "providers vnni exact_products float16_in_float32 weight_block runtime".split()


@pytest.mark.parametrize(
    "place",
    [
        *([name] for name in ("model", "session", "evidence", "requires", "environment")),
        # it would load where they are not met
        *(["requires", key] for key in _REQUIREMENTS),
    ],
    ids=".".join,
)
def test_missing_section(place: list[str]) -> None:
    data = make_config().to_json()
    holder = data[place[0]] if len(place) > 1 else data
    del holder[place[-1]]
    with pytest.raises(ConfigError, match=f"'{'.'.join(place)}' is missing"):
        TunedConfig.from_json(data)


def test_files_that_are_no_config(tmp_path: Path) -> None:
    path = tmp_path / "best.json"
    with pytest.raises(ConfigError, match="there is no file or folder"):
        TunedConfig.read(path)
    for text, words in (("{", "no JSON"), ("[]", "must be an object"), (" " * (2 << 20), "larger")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=words):
            TunedConfig.read(path)
