"""Exports of a tuned config: written once, complete, and never over a file that is there."""

import json
from pathlib import Path
from typing import Any

import pytest
from export_cases import EVERYTHING, PLAIN, render, text_of

from autotune.deploy.config import TunedConfig
from autotune.deploy.options import ATTRIBUTES, EXACT_PRODUCTS
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError, RequestError
from autotune.export import ort_config
from autotune.export.rendering import class_name, identifier
from autotune.export.targets import TARGETS
from autotune.export.writing import export, model_name


def test_the_name_of_the_model() -> None:
    assert model_name(Path("/x/mobilenet-v2.autotune/best.json")) == "mobilenet-v2"
    assert model_name(Path("/x/models/detector.json")) == "detector"


def test_names_of_code() -> None:
    assert identifier("MobileNet v2.1") == "mobilenet_v2_1"
    assert identifier("7b") == "model_7b"
    assert identifier("é") == "model"
    assert class_name("mobilenet-v2") == "MobilenetV2"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_nothing_is_overwritten(frozen_config: Path, target: str) -> None:
    given = {path: path.read_bytes() for path in frozen_config.parent.iterdir()}
    exported = export(frozen_config, target)
    assert exported.files
    assert {path: path.read_bytes() for path in given} == given
    for path in exported.files:
        path.write_bytes(b"mine")
    if len(exported.files) > 1:
        exported.files[0].unlink()  # one file in the way is enough
    before = sorted(frozen_config.parent.rglob("*"))
    with pytest.raises(RequestError, match="nothing is overwritten"):
        export(frozen_config, target)
    assert sorted(frozen_config.parent.rglob("*")) == before
    assert {path.read_bytes() for path in exported.files if path.exists()} == {b"mine"}


def test_an_interrupt_leaves_no_half_of_a_file(
    frozen_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are written first, so the folder would look finished beside half of a model."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = sorted(path for path in frozen_config.parent.rglob("*") if path.is_file())
    monkeypatch.setattr("shutil.copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(frozen_config, "triton")
    assert sorted(path for path in frozen_config.parent.rglob("*") if path.is_file()) == before


def test_a_namespace_is_no_keyword() -> None:
    """A model may be named default or switch."""
    assert "namespace mobilenet_v2_session {" in text_of(render("cpp", PLAIN))


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_no_link_is_followed(frozen_config: Path, tmp_path: Path, target: str) -> None:
    """A link where a file would be written leads nowhere, not even to a file that is not there."""
    first = export(frozen_config, target, tmp_path / "elsewhere").files[0]
    place = frozen_config.parent / first.relative_to(tmp_path / "elsewhere")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "target")
    with pytest.raises(RequestError, match="is a link"):
        export(frozen_config, target)
    assert not (tmp_path / "target").exists()


def test_wrong_requests_are_refused(frozen_config: Path) -> None:
    with pytest.raises(RequestError, match="Did you mean 'triton'"):
        export(frozen_config, "tritn")
    (frozen_config.parent / "best.onnx").write_bytes(b"x")
    with pytest.raises(ConfigError, match="not the file that was tuned"):
        export(frozen_config, "cpp")


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"python"}))
def test_a_captured_graph_is_left_out(target: str) -> None:
    """Code that binds no buffers would get nothing from it; Python's file carries the loader."""
    name = "CUDAExecutionProvider"
    rendering = render(target, SessionConfig(providers=((name, {"enable_cuda_graph": "1"}),)))
    assert any("enable_cuda_graph" in lost for lost in rendering.lost)


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_the_default_session_loses_nothing(target: str) -> None:
    assert render(target, SessionConfig(options={"enable_mem_reuse": True})).lost == ()


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"python"}))
def test_every_part_is_written_or_listed_as_lost(target: str) -> None:
    plain = render(target, SessionConfig())
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
        rendering = render(target, part)
        same = rendering.copies == plain.copies and list(rendering.texts.values()) == list(
            plain.texts.values()
        )
        assert rendering.lost or not same, f"{target} drops {part} in silence"
    assert len(EVERYTHING.options) == len(ATTRIBUTES)


@pytest.mark.parametrize(
    ("target", "requires", "entries", "words"),
    [
        ("cpp", {"vnni": True}, {}, "VNNI"),
        ("cpp", {"exact_products": True}, {}, "set session.x64quantprecision to 1"),
        ("cpp", {"float16_in_float32": True}, {}, "without half-precision arithmetic"),
        ("javascript", {"weight_block": 16}, {}, "an x86 with AVX-512"),
        ("triton", {}, {EXACT_PRODUCTS: "1"}, "VNNI"),
        ("ort_config", {}, {EXACT_PRODUCTS: "1"}, "VNNI"),
        ("python", {"vnni": True, "weight_block": 16}, {}, ""),
    ],
)
def test_no_export_answers_wrongly_in_silence(
    frozen_config: Path, target: str, requires: dict[str, Any], entries: dict[str, str], words: str
) -> None:
    """What no code checks is refused, unless the user vouches for it; the file then says it."""
    data = TunedConfig.read(frozen_config).to_json()
    data["requires"] |= requires
    data["session"]["entries"] |= entries
    frozen_config.write_text(json.dumps(data), encoding="utf-8")
    if words:
        with pytest.raises(RequestError, match=f"needs .*{words}.*--accept-processor"):
            export(frozen_config, target)
    exported = export(frozen_config, target, accept_processor=True)
    assert bool(exported.needs) == bool(words)
    texts = [p.read_text("utf-8") for p in exported.files if p.suffix not in {".onnx", ".data"}]
    assert all("Its processor needs" in text for text in texts) or not words


@pytest.mark.parametrize("target", sorted(set(TARGETS) - {"python"}))
def test_what_a_provider_requires_of_the_session_is_exported(target: str) -> None:
    """XNNPACK has threads of its own: ONNX Runtime gets one."""
    xnnpack: tuple[tuple[str, dict[str, str]], ...] = (
        ("XnnpackExecutionProvider", {}),
        ("CPUExecutionProvider", {}),
    )
    rendering = render(target, SessionConfig(providers=xnnpack))
    with_threads = SessionConfig(providers=xnnpack, options={"intra_op_num_threads": 1})
    assert rendering == render(target, with_threads)
    assert rendering != render(target, SessionConfig())


def test_the_process_wide_allocator_is_registered() -> None:
    session = SessionConfig(env_allocator={"arena_extend_strategy": 1})
    text = text_of(render("cpp", session))
    assert text.count("CreateAndRegisterAllocator") == 1
    assert "repare" in text.partition("pen_session(")[2]
    assert render("cpp", session).lost == ()


def test_a_model_that_carries_options_already_is_refused(frozen_config: Path) -> None:
    """ONNX Runtime would take its entry, and not the config's."""
    (copy,) = export(frozen_config, "ort_config").files
    with pytest.raises(RequestError, match="carries ort_config in its metadata already"):
        ort_config.check_model(copy)


def test_genai_gets_the_users_own_config(frozen_config: Path) -> None:
    """The model's file and the session's options are replaced; all else is the user's.

    The user's file names CUDA, and the config runs on the CPU.
    """
    options = {"inter_op_num_threads": 9, "log_id": "mine", "session.dynamic_block_base": "7"}
    options["provider_options"] = [{"cuda": {}}]
    own_decoder = {"head_size": 8, "filename": "model.onnx", "session_options": options}
    own = {"model": {"type": "llama", "decoder": own_decoder}}
    (frozen_config.parent / "genai_config.json").write_text(json.dumps(own), encoding="utf-8")
    (frozen_config.parent / "tokenizer.json").write_text("{}", encoding="utf-8")
    exported = export(frozen_config, "genai")
    folder = exported.files[0].parent
    written = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
    decoder = written["decoder"]
    assert (written["type"], decoder["head_size"]) == ("llama", 8)
    assert (folder / decoder["filename"]).is_file()
    assert decoder["session_options"]["intra_op_num_threads"] == 1
    assert not decoder["session_options"].pop("provider_options", [])
    assert options.keys() & decoder["session_options"].keys() == {"log_id"}
    assert (folder / "tokenizer.json").read_text(encoding="utf-8") == "{}"
    own["model"]["encoder"] = {"filename": "encoder.onnx"}
    (frozen_config.parent / "genai_config.json").write_text(json.dumps(own), encoding="utf-8")
    with pytest.raises(RequestError, match="names files for 'encoder' too"):
        export(frozen_config, "genai", frozen_config.parent / "other")
    (frozen_config.parent / "genai_config.json").unlink()
    with pytest.raises(RequestError, match=r"needs genai_config\.json beside the model"):
        export(frozen_config, "genai", frozen_config.parent / "other")
