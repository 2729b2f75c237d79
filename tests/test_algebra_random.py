"""Random graphs: whatever rules apply, and in whatever order, the answers stay the same."""

import onnx
from algebra_graphs import check, models
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


@given(models(), st.integers(0, 9))
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
def test_random_graphs_keep_their_answers(before: onnx.ModelProto, seed: int) -> None:
    """Residual sums, shared tensors and constants, several outputs, all kinds of opsets."""
    check(before, seed)
