"""Steps of a set of graph parameters in their order."""

from autotune.deploy.options import Value
from autotune.graph.parameters import steps_of


def test_steps_have_their_order() -> None:
    half: dict[str, Value] = {
        "weight_storage": "external_data",
        "pre_pass": "onnxslim+ort_extended",
        "precision": "int8_dynamic",
        "per_channel": True,
        "calibration": "percentile",
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
