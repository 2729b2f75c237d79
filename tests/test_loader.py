"""Loading tuned configs: on the machine that tuned them, and elsewhere."""

import codecs
import json
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from command_line import printed
from test_config import make_config, requiring

import autotune
from autotune.deploy import cpu, cuda, loader
from autotune.deploy.check import check
from autotune.deploy.config import TunedConfig
from autotune.deploy.fitting import fit
from autotune.deploy.loaded import DataFile, Environment, ModelFile, RequiredRuntime, Requires
from autotune.deploy.loader import check_files
from autotune.deploy.options import EXACT_PRODUCTS, Value
from autotune.deploy.providers import CPU, PROVIDERS
from autotune.deploy.session import SessionConfig
from autotune.errors import ConfigError


def _environment(cores: int) -> Environment:
    """Returns that of this processor and ONNX Runtime, with that many usable cores."""
    return Environment(
        autotune="0.1.0",
        onnxruntime=onnxruntime.__version__,
        cpu=cpu.cpu_model(),
        cores=cores,
        fingerprint="f",
    )


def write_config(model: Path, config: TunedConfig) -> Path:
    """Writes `config` beside `model`, with the truth about model and machine filled in."""
    here = _environment(cpu.usable_cores())
    data = map(DataFile.of, model.parent.glob(f"{model.name}.*"))
    file = ModelFile(**vars(DataFile.of(model)), source_sha256="", data_files=tuple(data))
    if config.environment.cpu == "a cpu":
        config = replace(config, environment=here)
    path = model.parent / "best.json"
    path.write_text(json.dumps(replace(config, model=file).to_json()), encoding="utf-8")
    return path


def _feed() -> dict[str, np.ndarray]:
    return {"image": np.ones((1, 3, 64, 64), np.float32)}


def test_load_opens_what_the_config_says(model: Path) -> None:
    path = write_config(model, make_config())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = autotune.load(path)
        autotune.load(path, strict=True)
    assert session.get_session_options().intra_op_num_threads == 1
    assert session.run(None, _feed())[0].shape == (1, 10)


def test_evidence_that_breaks_the_schema_is_seen_by_strict_alone(model: Path) -> None:
    """An application needs none of it, and its records take long to import."""
    path = write_config(model, make_config())
    data = json.loads(path.read_text(encoding="utf-8"))
    data["evidence"]["speedup"] = 2.0
    path.write_text(json.dumps(data), encoding="utf-8")
    assert autotune.load(path).run(None, _feed())[0].shape == (1, 10)
    with pytest.raises(autotune.ConfigError, match=r"evidence\.speedup must be an object"):
        autotune.load(path, strict=True)
    checked = check(path)
    assert "evidence.speedup" in checked.problem
    assert checked.outcome == "autotune.load opens this config, and refuses it with strict=True."
    del data["evidence"]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(autotune.ConfigError, match="'evidence' is missing"):
        autotune.load(path)


def test_another_machine_is_named(model: Path) -> None:
    there = Environment(
        autotune="0.1.0", onnxruntime="0.0.1", cpu="another cpu", cores=999, fingerprint="f"
    )
    path = write_config(model, make_config(environment=there))
    with pytest.warns(autotune.ConfigWarning, match="another cpu there") as warned:
        session = autotune.load(path)
    assert "0.0.1" in str(warned[0].message)
    assert session.get_session_options().intra_op_num_threads == 1
    with pytest.raises(ConfigError, match="another cpu"):
        autotune.load(path, strict=True)


def test_a_missing_provider_falls_back(model: Path) -> None:
    """Default options are used with a warning; exact products stay, because answers need them."""
    chosen = SessionConfig(
        options={"intra_op_num_threads": 1},
        entries={EXACT_PRODUCTS: "1", "session.disable_prepacking": "1"},
    )
    path = write_config(model, make_config(session=chosen, requires=requiring("NoSuchProvider")))
    with pytest.warns(autotune.ConfigWarning, match="this machine lacks"):
        options = autotune.load(path).get_session_options()
    assert options.intra_op_num_threads == 0
    assert options.get_session_config_entry(EXACT_PRODUCTS) == "1"
    with pytest.raises(RuntimeError):
        options.get_session_config_entry("session.disable_prepacking")
    with pytest.raises(ConfigError, match="lacks"):
        autotune.load(path, strict=True)


def processor(patch: pytest.MonkeyPatch, features: set[str], *, is_x86: bool = True) -> None:
    """Lets autotune see a processor of x86 or ARM with these features."""
    patch.setattr(cpu, "is_x86", lambda: is_x86)
    patch.setattr(cpu, "cpu_features", lambda: frozenset(features))


_IN_FLOAT32 = requiring(float16_in_float32=True)


@pytest.mark.parametrize(
    ("requires", "is_x86", "features", "words"),
    [
        (requiring(vnni=True), True, {"avx2", "avx512f"}, "need VNNI"),
        (requiring(vnni=True), True, set(), "need VNNI"),
        (requiring(vnni=True), True, {"avx2", "avx_vnni"}, ""),
        (requiring(vnni=True), True, {"avx512f", "avx512_vnni"}, ""),
        # eight-bit products overflow on x86 alone
        (requiring(vnni=True), False, {"asimddp"}, ""),
        (requiring(weight_block=8), True, {"avx2", "avx512f"}, "blocks of 8, .* kernels read 16"),
        (requiring(weight_block=16), True, {"avx2"}, "blocks of 16, .* kernels read 8"),
        (requiring(weight_block=16), True, set(), "blocks of 16, .* kernels read unknown"),
        (requiring(weight_block=0), True, {"avx2", "avx512f"}, "blocks of unknown"),
        (requiring(weight_block=16), True, {"avx2", "avx512f"}, ""),
        (requiring(weight_block=8), False, {"asimddp"}, "kernels read unknown"),
        # an ARM with half precision, or one of which nothing is known
        (_IN_FLOAT32, False, {"asimdhp", "fphp"}, "its kernels compute in float16"),
        (_IN_FLOAT32, False, set(), "its kernels compute in float16"),
        (_IN_FLOAT32, True, {"avx2"}, ""),
    ],
)
def test_a_file_that_would_answer_wrongly_is_never_opened(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    requires: Requires,
    is_x86: bool,
    features: set[str],
    words: str,
) -> None:
    """On a processor of another kind, or an unknown one, lenient loading refuses it like strict."""
    processor(monkeypatch, features, is_x86=is_x86)
    path = write_config(model, make_config(requires=requires))
    if not words:
        assert autotune.load(path)
        return
    for use in (autotune.load, autotune.session_options):
        with pytest.raises(ConfigError, match=f"answer wrongly on this processor: .*{words}"):
            use(path)
    with pytest.raises(ConfigError, match="wrongly"):
        autotune.load(path, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("is_x86", "features", "added"),
    [
        (True, {"avx2"}, True),
        (True, set(), True),
        (True, {"avx512f", "avx512_vnni"}, False),
        (False, {"asimddp"}, False),
    ],
)
def test_products_are_exact_where_they_would_overflow_and_nowhere_else(
    model: Path, monkeypatch: pytest.MonkeyPatch, is_x86: bool, features: set[str], added: bool
) -> None:
    processor(monkeypatch, features, is_x86=is_x86)
    path = write_config(model, make_config(requires=requiring(exact_products=True)))
    for options in (autotune.load(path).get_session_options(), autotune.session_options(path)):
        if added:
            assert options.get_session_config_entry(EXACT_PRODUCTS) == "1"
        else:
            with pytest.raises(RuntimeError):
                options.get_session_config_entry(EXACT_PRODUCTS)


def test_another_model_is_refused(model: Path) -> None:
    path = write_config(model, make_config())
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(ConfigError, match="not the file that was tuned"):
        autotune.load(path, strict=True)
    model.write_bytes(bytes(data) + b"x")
    with pytest.raises(ConfigError, match="not the file that was tuned"):
        autotune.load(path)
    model.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        autotune.load(path)


def _write_with_data(folder: Path) -> Path:
    """Writes a config whose model has two data files of eight bytes that it does not need."""
    model = folder / "best.onnx"
    data = [folder / "best.onnx.data", folder / "best.onnx.data2"]
    for number, path in enumerate(data):
        path.write_bytes(bytes(range(8 * number, 8 * number + 8)))
    files = ModelFile(
        **vars(DataFile.of(model)), source_sha256="", data_files=tuple(map(DataFile.of, data))
    )
    config = replace(make_config(), model=files)
    (folder / "best.json").write_text(json.dumps(config.to_json()), encoding="utf-8")
    return folder / "best.json"


def test_bytes_moved_between_data_files_are_noticed(model: Path) -> None:
    """Each file has a size and a digest of its own: moving bytes from one to the next changes both.

    The sizes are compared always, the digests with strict.
    """
    path = _write_with_data(model.parent)
    config = TunedConfig.read(path)
    check_files(path, config, read_all=True)
    first, second = (model.parent / name for name in config.model.names[1:])
    moved = first.read_bytes() + second.read_bytes()
    first.write_bytes(moved[:12])
    second.write_bytes(moved[12:])
    with pytest.raises(ConfigError, match=r"best\.onnx\.data is not the file"):
        autotune.load(path)
    first.write_bytes(moved[8:])
    second.write_bytes(moved[:8])
    check_files(path, config, read_all=False)
    with pytest.raises(ConfigError, match=r"best\.onnx\.data is not the file"):
        autotune.load(path, strict=True)


def test_a_damaged_model_is_the_configs_fault(model: Path) -> None:
    """ONNX Runtime's own exceptions do not get out; the message names config and model."""
    path = write_config(model, make_config())
    model.write_bytes(b"\xff" * model.stat().st_size)
    with pytest.raises(ConfigError, match=r"best\.json: ONNX Runtime cannot open .*best\.onnx"):
        autotune.load(path)


def _tuned_on(cores: int, **options: int) -> TunedConfig:
    """Returns a config that was tuned on this processor with that many usable cores."""
    return make_config(environment=_environment(cores), session=SessionConfig(options=options))


@pytest.mark.parametrize("threads", [0, 3])
def test_the_application_sets_the_threads(
    model: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    path = write_config(model, _tuned_on(8, intra_op_num_threads=8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = autotune.load(path, threads=threads, strict=True)
    assert session.get_session_options().intra_op_num_threads == threads


@pytest.mark.parametrize("threads", [-1, 5000, "2", True])
def test_a_wrong_number_of_threads_is_refused(model: Path, threads: object) -> None:
    path = write_config(model, make_config())
    with pytest.raises(ConfigError, match=r"threads must be"):
        autotune.load(path, threads=threads)  # type: ignore[arg-type]


def test_the_application_sets_the_providers(model: Path) -> None:
    path = write_config(model, make_config(requires=requiring("NoSuchExecutionProvider")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = autotune.load(path, providers=["CPUExecutionProvider"])
        autotune.load(path, providers=[("CPUExecutionProvider", {})])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_session_options().intra_op_num_threads == 1


@pytest.mark.parametrize(
    "providers",
    [
        [],
        "CPUExecutionProvider",
        ["NoSuchExecutionProvider"],
        [5],
        [("CPUExecutionProvider",)],
        [("CPUExecutionProvider", None)],
    ],
)
def test_wrong_providers_are_refused(model: Path, providers: Any) -> None:
    """What the application asks for is never replaced in silence."""
    with pytest.raises(ConfigError, match=r"provider|ONNX Runtime cannot use"):
        autotune.load(write_config(model, make_config()), providers=providers)


def test_options_for_a_session_of_ones_own(model: Path) -> None:
    session = SessionConfig(
        options={"intra_op_num_threads": 1, "enable_mem_pattern": False},
        entries={"session.disable_prepacking": "1"},
        disabled_optimizers=("NchwcTransformer", "ConvAddFusion"),
        run_entries={"memory.enable_memory_arena_shrinkage": "cpu:0"},
    )
    path = write_config(model, make_config(session=session))
    options = autotune.session_options(path, strict=True)
    assert options.intra_op_num_threads == 1
    assert not options.enable_mem_pattern
    assert options.get_session_config_entry("session.disable_prepacking") == "1"
    disabled = options.get_session_config_entry("optimization.disable_specified_optimizers")
    assert disabled == "NchwcTransformer;ConvAddFusion"
    assert autotune.session_options(path, threads=3).intra_op_num_threads == 3
    run = autotune.run_options(path)
    assert run.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"
    own = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    loaded = autotune.load(path)
    np.testing.assert_array_equal(own.run(None, _feed(), run)[0], loaded.run(None, _feed())[0])


def test_session_options_warn_as_load_does(model: Path) -> None:
    path = write_config(model, make_config(requires=requiring("NoSuch")))
    with pytest.warns(autotune.ConfigWarning, match="lacks the NoSuch") as caught:
        options = autotune.session_options(path)
    assert caught[0].filename == __file__
    assert options.intra_op_num_threads == 0


def test_loading_changes_nothing_else_in_the_process(model: Path) -> None:

    def state() -> tuple[object, ...]:
        handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        return dict(os.environ), Path.cwd(), handlers, list(warnings.filters), sys.path.copy()

    path = write_config(model, make_config())
    before = state()
    autotune.load(path)
    assert state() == before


_CONCURRENTLY = """
import sys, threading, warnings
import autotune
warnings.simplefilter("ignore")
outcomes = []
def work():
    try:
        for _ in range(5):
            autotune.load(sys.argv[1])
        outcomes.append("loaded")
    except Exception as error:
        outcomes.append(repr(error))
threads = [threading.Thread(target=work) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(set(outcomes))
"""


@pytest.mark.process
def test_threads_may_load_at_once(model: Path) -> None:
    session = SessionConfig(
        entries={"session.use_env_allocators": "1"}, env_allocator={"arena_extend_strategy": 1}
    )
    path = write_config(model, make_config(session=session))
    assert printed(_CONCURRENTLY, path) == "{'loaded'}"


@pytest.mark.parametrize(
    ("there", "here", "options", "threads"),
    [
        (8, 2, {}, (2, 0)),
        (8, 2, {"intra_op_num_threads": 8}, (2, 0)),
        (8, 2, {"intra_op_num_threads": 1}, (1, 0)),
        (8, 2, {"intra_op_num_threads": 2, "inter_op_num_threads": 4}, (2, 2)),
        # what eight cores would do with eight threads nobody has measured
        (2, 8, {"intra_op_num_threads": 2}, (2, 0)),
        (2, 8, {}, (0, 0)),
    ],
)
def test_another_number_of_cores_than_the_study_had(
    model: Path,
    monkeypatch: pytest.MonkeyPatch,
    there: int,
    here: int,
    options: dict[str, int],
    threads: tuple[int, int],
) -> None:
    """A container with two cores gets at most two threads, also where ONNX Runtime would choose."""
    monkeypatch.setattr(cpu, "usable_cores", lambda: here)
    path = write_config(model, _tuned_on(there, **options))
    differs = f"usable cores {there} there, {here} here"
    with pytest.warns(autotune.ConfigWarning, match=differs) as caught:
        loaded = autotune.load(path).get_session_options()
    assert (loaded.intra_op_num_threads, loaded.inter_op_num_threads) == threads
    adapted = "at most 2 threads are used, because this process may use no more cores"
    is_adapted = here == 2 and threads != (1, 0)
    assert (adapted in str(caught[0].message)) == is_adapted
    with pytest.raises(ConfigError, match="usable cores"):
        autotune.load(path, strict=True)


def test_a_session_that_was_not_measured_so_has_no_thread_without_a_core(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container with a quota: ONNX Runtime itself would start a thread for each core."""
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    lacking = make_config(requires=requiring("NoSuch"), environment=_environment(2))
    with pytest.warns(autotune.ConfigWarning, match="lacks the NoSuch.* at most 2 threads are"):
        session = autotune.load(write_config(model, lacking))
    assert session.get_session_options().intra_op_num_threads == 2
    # measured so: the default's own number of threads
    path = write_config(model, _tuned_on(2))
    assert autotune.load(path).get_session_options().intra_op_num_threads == 0
    with pytest.warns(autotune.ConfigWarning, match="another way than it was measured; at most 2"):
        own = autotune.load(path, providers=["CPUExecutionProvider"])
    assert own.get_session_options().intra_op_num_threads == 2


def test_threads_of_a_provider_are_cut_down_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 2)
    providers: tuple[tuple[str, Mapping[str, str]], ...] = (
        ("OpenVINOExecutionProvider", {"num_of_threads": "64", "device_type": "CPU"}),
        ("CPUExecutionProvider", {}),
    )
    config = make_config(
        environment=_environment(64),
        session=SessionConfig(providers=providers),
        requires=requiring(),
    )
    here = fit(config)
    assert here.session.providers[0][1] == {"num_of_threads": "2", "device_type": "CPU"}
    assert here.adapted.startswith("at most 2 threads are used")


def test_the_required_runtime_counts_whatever_the_providers(model: Path) -> None:
    runtime = RequiredRuntime(package="onnxruntime-openvino", version="1.0")
    path = write_config(model, make_config(requires=replace(requiring(), runtime=runtime)))
    with pytest.raises(ConfigError, match="lacks onnxruntime-openvino"):
        autotune.load(path, strict=True, providers=["CPUExecutionProvider"])
    with pytest.warns(autotune.ConfigWarning, match="lacks onnxruntime-openvino"):
        assert autotune.load(path, providers=["CPUExecutionProvider"])


def test_a_link_to_a_config_leads_to_its_model(model: Path, tmp_path: Path) -> None:
    path = write_config(model, make_config())
    (tmp_path / "current.json").symlink_to(path)
    assert autotune.load(tmp_path / "current.json")
    # a store whose files are links each
    store = tmp_path / "store"
    store.mkdir()
    path.rename(store / "1")
    path.symlink_to(store / "1")
    assert autotune.load(path)


def test_a_config_with_the_mark_of_an_editor(model: Path) -> None:
    path = write_config(model, make_config())
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert autotune.load(path)


@pytest.mark.parametrize("while_opening", [False, True])
def test_a_config_that_is_replaced_meanwhile_is_read_again(
    model: Path, monkeypatch: pytest.MonkeyPatch, while_opening: bool
) -> None:
    """Another config and its model took the place of those that were read a moment ago."""
    path = write_config(model, make_config())
    later, name = model.with_name("later.onnx"), "open_session" if while_opening else "check_files"
    real = getattr(loader, name)

    def replaced_first(*arguments: object, **named: object) -> object:
        if model.exists():
            model.rename(later)
            write_config(later, make_config())
        return real(*arguments, **named)

    monkeypatch.setattr(loader, name, replaced_first)
    assert autotune.load(path)
    later.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        autotune.load(path)


def test_an_older_runtime_without_a_level(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Value] = {"graph_optimization_level": "ORT_ENABLE_LAYOUT"}
    path = write_config(model, make_config(session=SessionConfig(options=options)))
    monkeypatch.delattr(onnxruntime, "GraphOptimizationLevel")
    for use in (autotune.load, autotune.session_options):
        with pytest.raises(ConfigError, match=r"best\.json: .* no graph_optimization_level"):
            use(path)


def test_an_allocator_that_the_application_may_have_registered(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime keeps the first without a word."""
    session = SessionConfig(
        entries={"session.use_env_allocators": "1"}, env_allocator={"arena_extend_strategy": 1}
    )
    path = write_config(model, make_config(session=session))
    monkeypatch.setattr(loader, "has_registered", lambda: False)
    for was_imported in (False, True):
        monkeypatch.setattr(loader, "WAS_IMPORTED", was_imported)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            autotune.load(path)
        assert any("keeps the first" in str(each.message) for each in caught) is was_imported
    # an application that runs tuned has always imported it, and cannot load anything earlier
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.prepare(path)


def test_cuda_without_its_libraries_falls_back_with_one_warning(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime lists a provider whose libraries are missing; the sentence is the loader's."""
    name = PROVIDERS["cuda"].name
    available = [name, CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(cuda, "problem", lambda _: "libcublasLt.so.13: no such file; type this")
    chosen = SessionConfig(providers=((name, {}), (CPU, {})))
    path = write_config(model, make_config(session=chosen, requires=requiring(name)))
    with pytest.warns(autotune.ConfigWarning, match=r"libcublasLt\.so\.13: no such file") as caught:
        session = autotune.load(path)
    assert len(caught) == 1
    assert session.get_providers() == [CPU]
    with pytest.raises(ConfigError, match=r"libcublasLt\.so\.13"):
        autotune.load(path, providers=[name])
