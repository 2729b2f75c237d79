"""The rules of algebra on ONNX's own node tests."""

import onnx
import pytest
from algebra_models import answers, operators
from test_conformance import collect, differs, flat

from autotune.graph.algebra.model import simplify

pytestmark = pytest.mark.stress


def test_the_node_tests_of_onnx_keep_their_answers() -> None:
    """All of them: equal to ONNX Runtime without optimisation, or it cannot run them at all."""
    wrong, changed = {}, 0
    for name, test in collect().items():
        after = onnx.ModelProto()
        after.CopyFrom(test.model)
        simplify(after)
        changed += operators(after) != operators(test.model)
        names = [item.name for item in test.model.graph.input]
        feeds = dict(zip(names, test.data_sets[0][0], strict=False))
        try:
            expected = answers(test.model, feeds)
        except Exception:  # noqa: BLE001  # types and operators that it has no kernels for
            continue
        difference = differs(flat(answers(after, feeds)), flat(expected))
        if difference:
            wrong[name] = difference
    assert wrong == {}
    assert changed > 10
