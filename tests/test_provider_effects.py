"""What the search learns of a precision beside one provider is not carried over to another."""

import math
import zlib

import pytest
from fakes import FakeMeasurer, build_search, measurement
from small_spaces import resolved

from autotune.measure.outcome import Outcome
from autotune.search.coding import Coding
from autotune.search.effects import explain
from autotune.search.trial import Limits
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space
from autotune.space.start import provider_forms, providers_alone

_PRODUCTS = {"Conv": 20, "MatMul": 20}


def _space() -> Space:
    return resolved(
        providers=("cpu", "openvino"),
        features=("avx512_bf16", "avx512_vnni"),
        operators=_PRODUCTS,
        quantisable=_PRODUCTS,
    )


def test_a_precision_has_effects_of_its_own_beside_each_provider() -> None:
    space = _space()
    coding = Coding(space)
    int8 = {"precision": "int8_static", "pre_pass": "onnxslim"}
    on_cpu = Configuration.of(int8)
    on_openvino = Configuration.of({**int8, EXECUTION_PROVIDER: "openvino"})
    cpu, openvino = coding.rows([on_cpu, on_openvino])
    shared = {coding.columns[i] for i in range(len(cpu)) if cpu[i] and openvino[i]}
    # a pre-pass does the same to both
    assert shared == {("pre_pass", "onnxslim")}
    assert coding.is_of_answers[[i for i in range(len(cpu)) if openvino[i] and not cpu[i]]].any()
    assert coding.covers(on_openvino)
    trials = [(BASELINE, {"latency_ms": 10.0}), (on_openvino, {"latency_ms": 3.0})]
    assert "precision" not in {effect.parameter for effect in explain(space, trials)}


def _latency_ms(values: dict[str, object]) -> float:
    """Returns a latency where the best int8 of the CPU and that of OpenVINO are opposites."""
    is_int8 = values.get("precision") == "int8_static"
    operators = str(values.get("quantized_operators", "all"))
    if values.get(EXECUTION_PROVIDER) == "openvino":
        factor = {"all": 0.36, "conv": 0.29, "products": 0.47, "matmul": 0.54}[operators]
        factor = factor if is_int8 else 0.53 if values.get("openvino.load_config") else 0.98
        factor *= 0.85 if values.get("fixed_dimensions") else 1.0
        factor *= 1.25 if values.get("float_outputs") else 1.0
        factor *= 0.92 if values.get("pre_pass") == "onnxslim" else 1.0
    else:
        factor = {"all": 0.4, "conv": 0.52, "products": 0.35, "matmul": 0.48}[operators]
        factor = factor if is_int8 else 1.0
        factor *= 0.93 if values.get("float_outputs") else 1.0
        factor *= 0.9 if values.get("pre_pass") == "algebra" else 1.0
    return 10 * factor * math.exp(0.02 * math.sin(zlib.crc32(str(values).encode())))


def _cost(configuration: Configuration) -> Outcome:
    """Returns a measurement of that latency, with an error of int8."""
    values = configuration.to_json()
    error = 0.0
    if "precision" in values:
        error = 0.02 if values.get("per_channel") else 0.045
    return measurement(_latency_ms(dict(values)), 100.0, error)


@pytest.mark.slow
def test_the_best_pair_is_found() -> None:
    """OpenVINO in int8, of the operators that suit it; the CPU's best takes 1.3 times as long."""
    space = _space()
    first = [*providers_alone(space), *provider_forms(space)]
    limits = Limits(max_error=0.05)
    search = build_search(FakeMeasurer(_cost), space, first=first, limits=limits)
    search.run(40, None)
    best = search.record.best
    assert best is not None
    values = best.configuration.to_json()
    assert (values[EXECUTION_PROVIDER], values["precision"]) == ("openvino", "int8_static")
    assert best.measurement is not None
    assert best.measurement.latency_ms < 2.6
