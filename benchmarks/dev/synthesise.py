"""Writes tables for `search.py` that no machine recorded: providers by precision, and graphs.

    python benchmarks/dev/synthesise.py [DIR]

Latencies and peaks are products of stated factors of values, and of values together. The factors
are chosen by hand to make interactions, such as eight bits that help one provider and slow down the
other; they stand for no model and no processor. Each configuration has one measurement with a
scatter of 2.5 % and two of 1 %. The first line of each table says that it is simulated.
"""

import gzip
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from recording import Header, Numbers

from autotune.deploy.config import Environment
from autotune.deploy.options import Value
from autotune.space.configuration import Configuration
from autotune.space.space import Condition, Parameter, Space

_BF16 = '{"CPU": {"INFERENCE_PRECISION_HINT": "bf16"}}'
_BASE_MS, _BASE_MIB, _MAX_ERROR = 10.0, 100.0, 0.05
_SHORT, _LONG, _MEMORY = 0.025, 0.01, 0.01

Effects = Sequence[tuple[str, float, float, float]]
"""Values as NAME=VALUE separated by commas; what latency and memory are multiplied with, and the
error that is added, where all of them are chosen."""


def _parameter(name: str, *values: Value, **when: tuple[Value, ...]) -> Parameter:
    return Parameter(name=name, values=values, default=values[0], when=when)


def _beside(parameter: Parameter, when: Condition) -> Parameter:
    return Parameter(
        name=parameter.name, values=parameter.values, default=parameter.default, when=when
    )


_EIGHT_BITS: tuple[Value, ...] = ("int8_dynamic", "int8_static")
_OPTIONS = (
    _parameter("per_channel", False, True, precision=_EIGHT_BITS),
    _parameter("quantized_operators", "all", "products", precision=("int8_static",)),
    _parameter("kept_in_float", 0, 4, precision=("int8_static",)),
    _parameter("weight_storage", "inline", "external_data"),
)
_PROVIDERS = (
    _parameter("execution_provider", "cpu", "openvino"),
    _parameter("intra_op_num_threads", 0, 1, execution_provider=("cpu",)),
    _parameter("optimizer.NchwcTransformer", "on", "off", execution_provider=("cpu",)),
    _beside(_parameter("openvino.num_of_threads", "", "1"), {"execution_provider": ("openvino",)}),
    _parameter("precision", "fp32", *_EIGHT_BITS),
    *_OPTIONS,
    _beside(_parameter("openvino.load_config", "", _BF16), {"execution_provider": ("openvino",)}),
)
_GRAPHS = (
    _parameter("intra_op_num_threads", 0, 1),
    _parameter("optimizer.AttentionFusion", "on", "off"),
    _parameter("optimizer.BiasGeluFusion", "on", "off"),
    _parameter("optimizer.TransposeOptimizer", "on", "off"),
    _parameter(
        "pre_pass",
        *("none", "algebra", "algebra_attention", "onnxslim", "ort_transformers"),
        "algebra+ort_transformers",
    ),
    _parameter("precision", "fp32", *_EIGHT_BITS, "int8_weight_only"),
    *_OPTIONS,
)
_OV, _STATIC = "execution_provider=openvino", "precision=int8_static"
_COMMON: Effects = (
    (_STATIC, 1.0, 0.55, 0.07),
    ("precision=int8_dynamic", 1.0, 0.6, 0.03),
    ("quantized_operators=products", 1.04, 1.03, -0.02),
    ("kept_in_float=4", 1.05, 1.08, -0.03),
    ("per_channel=True", 1.01, 1.01, -0.005),
    ("intra_op_num_threads=1", 1.7, 0.98, 0.0),
)
_OF_PROVIDERS: Effects = (
    *_COMMON,
    ("execution_provider=cpu,weight_storage=external_data", 1.0, 0.78, 0.0),
    ("execution_provider=cpu,weight_storage=external_data,precision=fp32", 1.0, 0.9, 0.0),
    ("optimizer.NchwcTransformer=off,precision=fp32", 1.25, 0.8, 0.0),
    (_OV, 1.0, 2.3, 0.0),
    ("openvino.num_of_threads=1", 1.75, 0.97, 0.0),
    (f"{_OV},precision=int8_dynamic", 1.6, 1.5, 0.0),
    (f"openvino.load_config={_BF16}", 1.0, 0.85, 0.01),
)
_TABLES: Mapping[str, tuple[tuple[Parameter, ...], Effects]] = {
    # a processor with VNNI and bfloat16: OpenVINO gains in all, most where both are together
    "providers_vnni": (
        _PROVIDERS,
        (
            *_OF_PROVIDERS,
            (f"execution_provider=cpu,{_STATIC}", 0.5, 1.0, 0.0),
            ("execution_provider=cpu,precision=int8_dynamic", 0.8, 1.0, 0.0),
            (_OV, 0.65, 1.0, 0.0),
            (f"{_OV},{_STATIC}", 0.45, 0.8, -0.01),
            (f"openvino.load_config={_BF16},precision=fp32", 0.7, 1.0, 0.0),
            (f"openvino.load_config={_BF16},{_STATIC},kept_in_float=4", 0.9, 1.0, 0.0),
        ),
    ),
    # one without: eight bits lose on the CPU provider, gain in OpenVINO, and bfloat16 is emulated
    "providers_avx2": (
        _PROVIDERS,
        (
            *_OF_PROVIDERS,
            (f"execution_provider=cpu,{_STATIC}", 1.06, 1.0, 0.0),
            ("execution_provider=cpu,precision=int8_dynamic", 1.2, 1.0, 0.0),
            ("execution_provider=cpu,quantized_operators=products", 0.82, 1.0, 0.0),
            (_OV, 0.74, 1.0, 0.0),
            (f"{_OV},{_STATIC}", 0.72, 0.8, -0.01),
            (f"openvino.load_config={_BF16}", 1.6, 1.0, 0.0),
        ),
    ),
    # attention of one node is lost where its products get eight bits
    "graphs": (
        _GRAPHS,
        (
            *_COMMON,
            ("weight_storage=external_data", 1.0, 0.7, 0.0),
            (_STATIC, 0.62, 1.0, 0.0),
            ("precision=int8_dynamic", 0.75, 1.0, 0.0),
            ("precision=int8_weight_only", 1.1, 0.5, 0.004),
            ("pre_pass=algebra", 0.93, 1.0, 0.0),
            ("pre_pass=algebra_attention", 0.8, 0.95, 0.0),
            ("pre_pass=onnxslim", 0.99, 1.02, 0.0),
            ("pre_pass=ort_transformers", 0.9, 1.0, 0.0),
            ("pre_pass=algebra+ort_transformers", 0.82, 1.0, 0.0),
            (f"pre_pass=algebra_attention,{_STATIC}", 1.35, 1.1, 0.02),
            (f"pre_pass=algebra+ort_transformers,{_STATIC}", 1.12, 1.0, 0.0),
            ("pre_pass=algebra_attention,precision=int8_dynamic", 0.95, 1.0, 0.0),
            ("optimizer.AttentionFusion=off,pre_pass=none", 1.08, 1.0, 0.0),
            (f"optimizer.AttentionFusion=off,pre_pass=algebra,{_STATIC}", 0.93, 1.0, 0.0),
            ("optimizer.BiasGeluFusion=off,precision=fp32", 1.05, 1.0, 0.0),
            (f"optimizer.BiasGeluFusion=off,{_STATIC}", 0.95, 1.0, 0.0),
            ("optimizer.TransposeOptimizer=off", 1.02, 0.97, 0.0),
        ),
    ),
}


def main() -> None:
    """Writes the tables."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tables"
    for name, (parameters, effects) in _TABLES.items():
        with gzip.GzipFile(folder / f"{name}.jsonl.gz", "wb", mtime=0) as file:
            for line in lines(name, parameters, effects):
                file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


def lines(
    name: str, parameters: tuple[Parameter, ...], effects: Effects
) -> list[dict[str, object]]:
    """Returns the lines of a table: the header, and three measurements of each configuration."""
    space = Space(name=name, description="", parameters=parameters, left_out={})
    header = Header(
        model=f"{name}.onnx",
        model_sha256="0" * 64,
        workload="0" * 16,
        recorded="2026-11-23",
        environment=Environment(
            autotune="0.1.0", onnxruntime="1.32.0", cpu="none", cores=2, fingerprint="0" * 16
        ),
        machine="simulated: factors of values and of values together",
        reference_ms=_BASE_MS,
        max_error=_MAX_ERROR,
        space=space,
    )
    luck = random.Random(name)
    written = [header.to_json()]
    for configuration in space.configurations or ():
        for scatter in (_SHORT, _LONG, _LONG):
            numbers = asdict(measured(configuration, space, effects, scatter, luck))
            written.append({"configuration": configuration.to_json(), "numbers": numbers})
    return written


def measured(
    configuration: Configuration,
    space: Space,
    effects: Effects,
    scatter: float,
    luck: random.Random,
) -> Numbers:
    """Returns a measurement of a configuration."""
    defaults = {p.name: p.default for p in space.parameters}
    chosen = {f"{n}={v}" for n, v in {**defaults, **configuration.to_json()}.items()}
    latency, mib, error = _BASE_MS, _BASE_MIB, 1e-6
    for values, time_factor, memory_factor, more_error in effects:
        if chosen.issuperset(_split(values)):
            latency, mib, error = latency * time_factor, mib * memory_factor, error + more_error
    latency *= luck.lognormvariate(0, scatter)
    mib *= luck.lognormvariate(0, _MEMORY)
    return Numbers(
        latency_ms=round(latency, 5),
        half_width=0.01,
        peak_memory_mib=round(mib, 3),
        load_ms=50.0,
        cpu_s=round(latency * 2e-3, 6),
        error=round(max(error, 1e-6), 7),
    )


def _split(values: str) -> list[str]:
    """Returns the values that are chosen together."""
    return values.split(",")


if __name__ == "__main__":
    main()
