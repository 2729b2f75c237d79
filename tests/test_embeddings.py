"""Embeddings in eight bits: smaller, near to the floats, and nothing else is touched."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from factories import normal, save_onnx
from onnx import TensorProto, numpy_helper
from small_models import distance, write

from autotune.facts.feeds import Feed
from autotune.facts.weights import embedding_nodes
from autotune.graph import embeddings, int8
from autotune.graph.entries import StepRefusedError

pytestmark = pytest.mark.filterwarnings("ignore")

_ROWS, _WIDTH = 40, 200


def _model(path: Path, *, axis: int = 0, shared: bool = False) -> list[Feed]:
    """Writes a model that takes rows of a table twice; `shared` multiplies by the table too."""
    table = normal(0, _ROWS, _WIDTH)
    table[3] *= 1000  # one scale for the whole table would round the others away
    table[7] = 0
    body = (
        f"rows = Gather <axis = {axis}> (table, ids) "
        f"more = Gather <axis = {axis}> (table, others) y = Add (rows, more)"
    )
    x, y = "int64[3] ids, int64[3] others", "float[?] y"
    if shared:
        body += " z = MatMul (x, table)"
        x, y = f"{x}, float[1,{_ROWS}] x", f"{y}, float[?] z"
    save_onnx(path, body, {"table": table}, x=x, y=y)
    return [
        {"ids": np.array([0, 7, 39]), "others": np.array([7, 7, -1])},
        {"ids": np.array([3, 3, 3]), "others": np.array([1, 2, 3])},
    ]


@pytest.mark.parametrize("rows_at_once", [_ROWS, 7])
def test_a_table_takes_a_quarter_and_its_rows_stay_near(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    """Each row has scales of its own, so that a row of large values harms no other one."""
    monkeypatch.setattr(embeddings, "_ROWS_AT_ONCE", rows_at_once)
    source, target = tmp_path / "source.onnx", tmp_path / "int8.onnx"
    feeds = _model(source)
    embeddings.quantise(source, target)
    assert target.stat().st_size < 0.3 * source.stat().st_size
    assert distance(source, target, feeds) < 0.01


def test_the_table_stays_small_in_a_session(tmp_path: Path) -> None:
    """ONNX Runtime optimises the model without making floats of the table again."""
    source, target = tmp_path / "source.onnx", tmp_path / "int8.onnx"
    _model(source)
    embeddings.quantise(source, target)
    settings = onnxruntime.SessionOptions()
    settings.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    onnxruntime.InferenceSession(target, settings, providers=["CPUExecutionProvider"])
    tables = {
        item.data_type
        for item in onnx.load(tmp_path / "optimised.onnx").graph.initializer
        if list(item.dims) == [_ROWS, _WIDTH]
    }
    assert tables == {TensorProto.UINT8}


@pytest.mark.parametrize("changes", [{"axis": 1}, {"shared": True}])
def test_what_gives_no_rows_or_has_other_takers_is_refused(
    tmp_path: Path, changes: dict[str, int]
) -> None:
    """Columns are not rows, and a table that a product takes would be stored twice."""
    source = tmp_path / "source.onnx"
    _model(source, **changes)  # type: ignore[arg-type]
    assert embedding_nodes(onnx.load(source).graph) == []
    with pytest.raises(StepRefusedError, match="no embedding"):
        embeddings.quantise(source, tmp_path / "int8.onnx")


def test_a_table_of_masks_is_left_alone(tmp_path: Path) -> None:
    """Minus infinity has no scale, and would make all values of its block no numbers."""
    source = tmp_path / "source.onnx"
    _model(source)
    model = onnx.load(source)
    (table,) = model.graph.initializer
    values = numpy_helper.to_array(table).copy()
    values[3, 5] = -np.inf
    table.CopyFrom(numpy_helper.from_array(values, table.name))
    onnx.save(model, source)
    with pytest.raises(StepRefusedError, match="no embedding"):
        embeddings.quantise(source, tmp_path / "int8.onnx")


@pytest.mark.parametrize(
    ("step", "options"),
    [(int8.dynamic, {}), (int8.static, {}), (int8.static, {"quantized_operators": "products"})],
)
@pytest.mark.parametrize("value", ["as_precision", "float"])
def test_embeddings_are_chosen_apart(
    tmp_path: Path, step: object, options: dict[str, str], value: str
) -> None:
    """The precision leaves them in float where it is told to, and otherwise does what it did."""
    assert callable(step)
    source, feeds = write("transformer", tmp_path)
    target = tmp_path / "out.onnx"
    step(source, target, feeds, embeddings=value, reduce_range=True, **options)
    left = len(embedding_nodes(onnx.load(target).graph))
    is_with_others = value == "as_precision" and options == {}
    assert left == (0 if is_with_others else 1)
