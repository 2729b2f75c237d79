"""Search spaces and candidates."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.deploy.opening import open_session
from autotune.deploy.options import Value
from autotune.deploy.session import SessionConfig
from autotune.errors import RequestError, SpaceError
from autotune.facts import sample_models, workload
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.model_facts import Tensor
from autotune.space import space as spaces
from autotune.space.candidate import BASELINE, PARAMETERS, Candidate, parse_value, session_config
from autotune.space.resolve import resolve
from autotune.space.space import Space


def _machine(cores: int) -> Hardware:
    return Hardware(
        cpu="a cpu",
        features=(),
        architecture="x86_64",
        logical_cores=cores,
        physical_cores=cores,
        usable_cores=cores,
        quota_cores=None,
        memory_mib=1024,
        gpus=(),
        system="Linux 6",
    )


def _model(**changes: Any) -> Model:
    facts: dict[str, Any] = {
        "path": Path("m.onnx"),
        "data_files": (),
        "sha256": "0",
        "size_bytes": 1,
        "inputs": (Tensor(name="x", dtype="float32", shape=("batch", 4)),),
        "outputs": ("y",),
        "operators": {},
        "parameters": 1,
        "has_conv": True,
        "has_gelu": True,
        "branches": 3,
        "subnormals": 1,
    }
    return Model(**{**facts, **changes})


def _resolved(
    name: str = "default",
    cores: int = 8,
    fixed: Mapping[str, str] | None = None,
    **changes: Any,
) -> Space:
    model = _model(**changes)
    inputs = workload.generate(model, {})
    return resolve(spaces.find(name), model, inputs, _machine(cores), fixed)


@pytest.mark.parametrize("name", sorted(spaces.presets()))
def test_presets_are_sound(name: str) -> None:
    """Every preset reads and resolves, and the baseline is one of its candidates."""
    space = _resolved(name)
    assert space.description
    assert space.nearest({}) == BASELINE


def test_candidates_are_canonical() -> None:
    """All candidates of a space differ, and none holds a default or an inactive parameter."""
    space = _resolved("memory")
    assert space.candidates is not None
    assert len(set(space.candidates)) == len(space.candidates)
    for candidate in space.candidates:
        values = candidate.to_json()
        assert all(value != PARAMETERS[name].default for name, value in values.items())
        if values.get("arena") == "off":
            assert "arena_shrinkage" not in values


@given(data=st.data())
def test_any_choice_is_in_the_space(data: st.DataObject) -> None:
    """Whatever is chosen, the candidate comes back from its own assignment."""
    space = _resolved()
    candidate = space.candidate(lambda p: data.draw(st.sampled_from(p.values)))
    assert space.nearest(space.assignment(candidate)) == candidate
    assert space.nearest(candidate.to_json()) == candidate
    assert candidate not in space.neighbours(candidate)


def test_conditions() -> None:
    """One thread has no spinning, and inter-op threads come only with parallel execution."""
    space = _resolved()
    assert space.nearest({"intra_op_num_threads": 1, "spinning": "off"}) == Candidate.of(
        {"intra_op_num_threads": 1}
    )
    assert space.nearest({"inter_op_num_threads": 2}) == BASELINE
    both: dict[str, Value] = {"execution_mode": "ORT_PARALLEL", "inter_op_num_threads": 2}
    assert space.nearest(both) == Candidate.of(both)


@pytest.mark.parametrize(
    ("cores", "counts"), [(2, (0, 1, 2)), (6, (0, 1, 2, 4, 3, 6)), (16, (0, 1, 2, 4, 8, 16))]
)
def test_thread_counts_follow_the_machine(cores: int, counts: tuple[int, ...]) -> None:
    """No thread count lies above the usable cores."""
    parameters = {p.name: p for p in _resolved(cores=cores).parameters}
    assert parameters["intra_op_num_threads"].values == counts


def test_what_lacks_a_need_is_left_out_with_the_reason() -> None:
    """A model without convolutions on one core has neither NCHWc nor threads to try."""
    space = _resolved(cores=1, has_conv=False, has_gelu=False, branches=1, subnormals=0)
    names = {parameter.name for parameter in space.parameters}
    assert not names & {"nchwc", "intra_op_num_threads", "inter_op_num_threads", "spinning"}
    assert space.left_out["nchwc"] == "the model has no convolution"
    assert space.left_out["spinning"] == "there is only one usable core"
    assert "execution_mode" in space.left_out["inter_op_num_threads"]


def test_no_candidate_keeps_all_nodes_in_float() -> None:
    """So many nodes stay in float that something is left to quantise, with each precision."""
    operators = {"Conv": 5, "Gemm": 2, "Relu": 5}
    space = _resolved("quantize", operators=operators)
    assert space.left_out["kept_in_float=8"] == "it would leave nothing to quantise"
    counts: dict[object, set[Value]] = {}
    for candidate in space.candidates or ():
        values = candidate.to_json()
        kinds = values.get("precision"), values.get("quantized_operators")
        counts.setdefault(kinds, set()).add(values.get("kept_in_float", 0))
    assert counts["int8_static", None] == {0, 1, 2, 3, 4, 6}
    assert counts["int8_static", "matmul"] == {0, 1}
    assert counts["int8_dynamic", None] == {0, 1}
    several: dict[str, Value] = {"precision": "int8_dynamic", "kept_in_float": 4}
    assert space.nearest(several) == Candidate.of({"precision": "int8_dynamic"})
    # an LSTM is quantised even where every matrix product is kept
    recurrent = _resolved("quantize", operators={**operators, "LSTM": 1})
    two: dict[str, Value] = {"precision": "int8_dynamic", "kept_in_float": 2}
    assert recurrent.nearest(two) == Candidate.of(two)
    assert recurrent.nearest(several) == Candidate.of({"precision": "int8_dynamic"})


def test_packed_weights_need_their_package_and_a_matmul(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are packed by a package that is not always there, and of a MatMul alone."""
    name = "precision=int8_weight_only"
    assert "MatMul" in _resolved("quantize", operators={"Gemm": 2}).left_out[name]
    assert name not in _resolved("quantize", operators={"MatMul": 2}).left_out
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnx_ir" else find(name)
    )
    assert "[passes]" in _resolved("quantize", operators={"MatMul": 2}).left_out[name]


def test_fixed_parameters() -> None:
    """A fixed parameter has its value in every candidate, and conditions see it."""
    space = _resolved(fixed={"intra_op_num_threads": "1"})
    assert space.nearest({"spinning": "off"}) == Candidate.of({"intra_op_num_threads": 1})
    with pytest.raises(RequestError, match="Did you mean 'nchwc'"):
        _resolved(fixed={"nchw": "off"})
    with pytest.raises(RequestError, match="must be one of 'on', 'off'"):
        _resolved(fixed={"nchwc": "1"})


def test_all_faults_of_a_file_are_told(tmp_path: Path) -> None:
    """Every fault comes with its key path, all in one refusal."""
    file = tmp_path / "mine.toml"
    file.write_text(
        """
        descripton = "x"
        [parameters.arenas]
        values = ["on"]
        [parameters.arena]
        values = ["on", 3]
        default = "off"
        needs = ["convs"]
        [parameters.spinning]
        values = []
        when = { nowhere = 1 }
        """,
        encoding="utf-8",
    )
    with pytest.raises(SpaceError) as refused:
        spaces.read(file)
    told = str(refused.value)
    for part in (
        "unknown key 'descripton'. Did you mean 'description'?",
        "Did you mean 'arena'?",
        "parameters.arena.values: must be one of",
        "parameters.arena.default: must be ONNX Runtime's own, 'on'",
        "Did you mean 'conv'?",
        "parameters.spinning.values",
        "parameters.spinning.default: is missing",
        "parameters.spinning.when.nowhere",
    ):
        assert part in told, part


def test_circular_conditions_are_refused(tmp_path: Path) -> None:
    """Two parameters that wait for each other are named."""
    file = tmp_path / "mine.toml"
    file.write_text(
        'parameters.arena = {values=["on"], default="on", when={nchwc="on"}}\n'
        'parameters.nchwc = {values=["on"], default="on", when={arena="on"}}\n',
        encoding="utf-8",
    )
    with pytest.raises(SpaceError, match="arena, nchwc depend on each other"):
        spaces.read(file)


def test_digest_follows_the_candidates() -> None:
    """Two resolutions have one digest exactly where they offer the same."""
    assert _resolved().digest() == _resolved().digest()
    assert _resolved().digest() != _resolved(cores=2).digest()


def test_key_does_not_depend_on_order() -> None:
    """A candidate is its values, in whatever order they were told."""
    one = Candidate.of({"arena": "off", "nchwc": "off"})
    other = Candidate.of({"nchwc": "off", "arena": "off", "spinning": "on"})
    assert one == other
    assert one.key == other.key
    assert one.in_words() == "no arena, no NCHWc layout"


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("intra_op_num_threads", "2", 2),
        ("enable_mem_pattern", "false", False),
        ("session.disable_prepacking", "1", "1"),
        ("arena", "off", "off"),
    ],
)
def test_values_are_read_as_their_parameter_takes_them(name: str, text: str, value: Any) -> None:
    """What is typed becomes the type that ONNX Runtime wants."""
    parsed = parse_value(name, text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_every_value_of_every_composite_opens_a_session(tmp_path: Path) -> None:
    """Each composite parameter changes what is passed, and ONNX Runtime takes it."""
    path = tmp_path / "cnn.onnx"
    sample_models.write("cnn", path)
    for values in (
        {"nchwc": "off"},
        {"spinning": "off"},
        {"spinning": "stop_after_run"},
        {"arena": "off"},
        {"arena": "same_as_requested"},
        {"arena_shrinkage": True},
        {"fixed_dimensions": True},
    ):
        config = session_config(Candidate.of(values), {"batch": 1})
        assert config != SessionConfig()
        session = open_session(path, config)
        assert session.get_inputs()


def test_no_nchwc_leaves_the_layout_out(tmp_path: Path) -> None:
    """With nchwc off the optimised graph has no node of the blocked layout."""
    path = tmp_path / "cnn.onnx"
    sample_models.write("cnn", path)

    def domains(disabled: tuple[str, ...]) -> str:
        settings = onnxruntime.SessionOptions()
        settings.optimized_model_filepath = str(tmp_path / "optimised.onnx")
        settings.log_severity_level = 3
        providers = ["CPUExecutionProvider"]
        onnxruntime.InferenceSession(
            str(path), settings, providers, disabled_optimizers=list(disabled)
        )
        return (tmp_path / "optimised.onnx").read_bytes().decode("latin-1")

    config = session_config(Candidate.of({"nchwc": "off"}), {})
    with_layout, without = domains(()), domains(config.disabled_optimizers)
    assert "nchwc.Conv" not in without
    assert with_layout.count("com.microsoft.nchwc") > without.count("com.microsoft.nchwc")


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ('values=["on"]\ndefault="on"\nneeds="conv"', "needs: must be a list"),
        ('values=["on"]\ndefault="on"\nneeds=[["conv"]]', "needs: ['conv'] is none of"),
        ('values=[["on"]]\ndefault="on"', "values: must be one of"),
    ],
)
def test_values_of_a_wrong_kind_are_told(tmp_path: Path, table: str, told: str) -> None:
    """A list where a word is wanted, or a word where a list is, is a fault like any other."""
    file = tmp_path / "mine.toml"
    file.write_text(f"[parameters.arena]\n{table}\n", encoding="utf-8")
    with pytest.raises(SpaceError) as refused:
        spaces.read(file)
    assert told in str(refused.value)
