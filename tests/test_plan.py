"""Steps of a graph half in their order, and the processors that the result is for."""

from autotune.deploy.options import Value
from autotune.graph.plan import needed_features, steps_of


def test_steps_have_their_order() -> None:
    """Pre-passes, precision, ONNX Runtime's own optimisation, storage; options of each its own."""
    half: dict[str, Value] = {
        "storage": "external_data",
        "pre_pass": "onnxslim+ort_extended",
        "precision": "int8_dynamic",
        "per_channel": True,
        "calibration": "entropy",
        "embeddings": "int8",
    }
    assert steps_of(half) == (
        ("onnxslim", {}),
        ("int8_dynamic", {"per_channel": True, "embeddings": "int8"}),
        ("int8_embeddings", {}),
        ("ort_extended", {}),
        ("external_data", {}),
    )
    assert steps_of({}) == ()
    assert steps_of({"embeddings": "int8"}) == (("int8_embeddings", {}),)
    assert steps_of({"embeddings": "float"}) == ()


def test_what_belongs_to_a_processor_says_so() -> None:
    """Int8 needs VNNI unless it cannot saturate; packed weights need the vectors they are for."""
    features = {"avx", "avx2", "avx512f", "avx512_vnni", "avx_vnni"}
    static: dict[str, Value] = {"precision": "int8_static"}
    assert needed_features(static, features) == ("avx512_vnni",)
    assert needed_features({**static, "reduce_range": True}, features) == ()
    assert needed_features({**static, "unsigned_weights": True}, features) == ()
    assert needed_features({"storage": "prepacked"}, features) == ("avx512f",)
    assert needed_features({"pre_pass": "ort_all"}, {"avx2"}) == ("avx2",)
    assert needed_features({"storage": "external_data"}, features) == ()
    assert needed_features(static, {"asimddp"}) == ()
