"""What inspections of models without a fault say, for tests to change."""

from autotune.facts.work import Work
from autotune.inspection.headroom import Peaks
from autotune.inspection.model_report import ModelReport, OptimisedGraph, Saturation, WeightGroup
from autotune.inspection.profile import Profile

GRAPH = OptimisedGraph(
    operators={"Conv": 4}, unfolded={}, float_elements=1000, subnormals=0, subnormal_weights=()
)
REPORT = ModelReport(
    opset=17,
    ir_version=8,
    producer="",
    weights=(WeightGroup(dtype="float", tensors=1, elements=1000, size_bytes=4000),),
    inline_bytes=4000,
    external_bytes=0,
    weights_as_inputs=0,
    optimised=GRAPH,
    saturation=Saturation(products=0, large_share=0.0),
    work=Work(
        float_operations=1,
        int8_operations=0,
        weight_bytes=4000,
        boundary_bytes=0,
        by_operator={},
        unknown=0,
    ),
)
PROFILE = Profile(
    run_ms=1.0,
    profiled_ms=1.1,
    runs=10,
    operators=(),
    slowest=(),
    overheads=(),
    executed=4,
    providers=(),
    provider_changes=0,
    weights_mib=1.0,
    activations_mib=2.0,
    arena_mib=4.0,
)
PEAKS = Peaks(float_per_s=1e9, int8_per_s=4e9, bytes_per_s=1e9, moved_bytes=1 << 20)
