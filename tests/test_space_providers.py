"""What exists in a search space beside which execution provider."""

from typing import Any

import pytest
from small_spaces import resolved

from autotune.deploy.options import Value
from autotune.deploy.providers import OPENVINO_BF16, OPENVINO_FLOAT_INPUTS, PROVIDERS
from autotune.errors import RequestError
from autotune.space.configuration import Configuration
from autotune.space.session import EXECUTION_PROVIDER, PROVIDER_OPTIONS
from autotune.space.space import Parameter, Space
from autotune.space.start import alone, provider_forms

_OPERATORS = {"Conv": 5, "MatMul": 4}


def _parameters(space: Space) -> dict[str, Parameter]:
    return {parameter.name: parameter for parameter in space.parameters}


def test_a_study_on_the_cpu_alone_has_no_provider_to_choose() -> None:
    space = resolved()
    assert EXECUTION_PROVIDER in space.left_out
    assert not _parameters(space).keys() & {EXECUTION_PROVIDER, *PROVIDER_OPTIONS}
    assert alone(space, EXECUTION_PROVIDER) == []


def test_each_provider_of_the_study_is_measured_at_its_default() -> None:
    space = resolved(providers=("cpu", "openvino", "cuda"))
    assert _parameters(space)[EXECUTION_PROVIDER].values == ("cpu", "openvino", "cuda")
    assert alone(space, EXECUTION_PROVIDER) == [
        Configuration.of({EXECUTION_PROVIDER: word}) for word in ("openvino", "cuda")
    ]


def test_each_provider_is_measured_in_each_precision_that_it_takes() -> None:
    """In bfloat16 where the processor has it, in fp16 on a GPU, and in static int8."""
    everything: dict[str, Any] = {"operators": _OPERATORS, "quantisable": _OPERATORS}
    space = resolved(providers=("cpu", "openvino", "cuda"), features=("avx512_bf16",), **everything)
    assert _parameters(space)["slow_in_float"].when[EXECUTION_PROVIDER] == ("cpu",)
    forms = [form.to_json() for form in provider_forms(space)]
    fixed, bf16, int8, weights, *on_cuda = forms
    assert fixed == {EXECUTION_PROVIDER: "openvino", "fixed_dimensions": True}
    in_bf16 = {"openvino.load_config": OPENVINO_BF16, "fixed_dimensions": True}
    assert bf16 == {EXECUTION_PROVIDER: "openvino", **in_bf16}
    assert int8["precision"] == "int8_static"
    assert weights["precision"] == "int8_weight_only"
    assert [form.get("precision") for form in on_cuda] == [None, "fp16_mixed"]
    older = resolved(providers=("cpu", "openvino"), **everything)
    precisions = [form.to_json().get("precision") for form in provider_forms(older)]
    assert precisions == [None, "int8_static", "int8_weight_only"]
    reason = older.left_out[f"openvino.load_config={OPENVINO_BF16}"]
    assert reason == "the processor does not compute in bfloat16"


def test_activations_stay_in_float_beside_weights_in_few_bits_alone() -> None:
    """OpenVINO quantises the activations of no other product."""
    everything: dict[str, Any] = {"operators": _OPERATORS, "quantisable": _OPERATORS}
    space = resolved(providers=("cpu", "openvino"), **everything)
    chosen = {EXECUTION_PROVIDER: "openvino", "openvino.load_config": OPENVINO_FLOAT_INPUTS}
    assert "openvino.load_config" not in space.nearest(chosen).to_json()
    weights = {**chosen, "precision": "int8_weight_only"}
    assert space.nearest(weights).to_json() == weights


def test_a_parameter_exists_where_it_has_an_effect() -> None:
    parameters = _parameters(resolved(providers=("cpu", "openvino", "cuda")))
    assert parameters["optimizer.NchwcTransformer"].when[EXECUTION_PROVIDER] == ("cpu",)
    assert parameters["intra_op_num_threads"].when[EXECUTION_PROVIDER] == ("cpu",)
    assert parameters["enable_mem_pattern"].when[EXECUTION_PROVIDER] == ("cpu", "cuda")
    assert EXECUTION_PROVIDER not in parameters["graph_optimization_level"].when
    options = [name for name in parameters if name in PROVIDER_OPTIONS]
    assert {"cuda.use_tf32"} <= set(options)
    for name in options:
        assert parameters[name].when[EXECUTION_PROVIDER] == (PROVIDER_OPTIONS[name][0],)


def test_options_of_another_provider_are_dropped_from_a_configuration() -> None:
    space = resolved(providers=("cpu", "cuda"))
    values: dict[str, Value] = {"optimizer.NchwcTransformer": "off", "cuda.use_tf32": "0"}
    assert space.nearest(values) == Configuration.of({"optimizer.NchwcTransformer": "off"})
    on_cuda: dict[str, Value] = {EXECUTION_PROVIDER: "cuda", "cuda.use_tf32": "0"}
    assert space.nearest({**values, **on_cuda}) == Configuration.of(on_cuda)


def test_half_precision_needs_no_kernels_of_the_cpu_on_a_gpu() -> None:
    """CUDA has them whatever the processor lacks; beside the CPU the value is impossible."""
    assert "precision=fp16_mixed" in resolved(operators=_OPERATORS).left_out
    space = resolved(providers=("cpu", "cuda"), operators=_OPERATORS)
    half: dict[str, Value] = {"precision": "fp16_mixed"}
    assert "fp16_mixed" in _parameters(space)["precision"].values
    assert space.nearest(half) == Configuration.of({})
    on_cuda: dict[str, Value] = {EXECUTION_PROVIDER: "cuda", **half}
    assert space.nearest(on_cuda) == Configuration.of(on_cuda)


@pytest.mark.parametrize("precision", ["int8_static", "int8_dynamic"])
def test_a_precision_exists_where_its_provider_gains_from_it(precision: str) -> None:
    """OpenVINO runs static int8 as such; CUDA would convert it back, and dynamic int8 is the CPU's.

    The table of providers says so; the CPU takes all of them.
    """
    space = resolved(providers=("cpu", "openvino", "cuda"), operators=_OPERATORS)
    for word in ("cpu", "openvino", "cuda"):
        values: dict[str, Value] = {EXECUTION_PROVIDER: word, "precision": precision}
        exists = word == "cpu" or precision in PROVIDERS[word].precisions
        plain: dict[str, Value] = {EXECUTION_PROVIDER: word}
        assert space.nearest(values) == space.nearest(values if exists else plain)
        assert (space.nearest(values).to_json().get("precision") == precision) is exists


def test_bfloat16_of_the_cpu_is_that_of_arm() -> None:
    """On x86 ONNX Runtime's own kernels have none, and an ARM processor need not have it."""
    name = "mlas.enable_gemm_fastmath_arm64_bfloat16"
    products: dict[str, Any] = {"operators": {"MatMul": 4}, "quantisable": {"MatMul": 4}}
    offered = [
        name in _parameters(resolved(features=features, architecture=architecture, **products))
        for features, architecture in (
            (("bf16",), "aarch64"),
            (("fphp",), "aarch64"),
            (("avx512_bf16",), "x86_64"),
        )
    ]
    assert offered == [True, False, False]


def test_only_devices_that_are_there_are_offered() -> None:
    """OpenVINO runs on the CPU here, so that there is no device to choose."""
    assert "openvino.device_type" not in _parameters(resolved(providers=("cpu", "openvino")))


def test_a_fixed_provider_must_be_ready() -> None:
    space = resolved(fixed={EXECUTION_PROVIDER: "openvino"}, providers=("cpu", "openvino"))
    assert space.nearest({}) == Configuration.of({EXECUTION_PROVIDER: "openvino"})
    assert "optimizer.NchwcTransformer" not in _parameters(space)
    sentence = "the execution provider tensorrt cannot be used here; `autotune hardware` says why"
    with pytest.raises(RequestError, match=sentence):
        resolved(fixed={EXECUTION_PROVIDER: "tensorrt"}, providers=("cpu", "openvino"))
