"""What of a search space exists for a model on a machine."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from small_spaces import machine, model, resolved

from autotune.deploy.options import Value
from autotune.errors import RequestError
from autotune.facts.generated import generate
from autotune.facts.model_facts import Tensor
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.space.space import Space


@pytest.mark.parametrize(
    ("cores", "counts"), [(2, (0, 1, 2)), (6, (0, 1, 2, 4, 3, 6)), (16, (0, 1, 2, 4, 8, 16))]
)
def test_thread_counts_follow_the_machine(cores: int, counts: tuple[int, ...]) -> None:
    parameters = {p.name: p for p in resolved(cores=cores).parameters}
    assert parameters["intra_op_num_threads"].values == counts


def test_what_lacks_a_need_is_left_out_with_the_reason() -> None:
    """A model without convolutions on one core has neither NCHWc nor threads to try."""
    space = resolved(cores=1, has_conv=False, has_gelu=False, branches=1, subnormals=0)
    names = {parameter.name for parameter in space.parameters}
    assert not names & {
        "optimizer.NchwcTransformer",
        "intra_op_num_threads",
        "inter_op_num_threads",
        "spinning",
    }
    assert space.left_out["optimizer.NchwcTransformer"] == "the model has no convolution"
    assert space.left_out["spinning"] == "there is only one usable core"
    assert "execution_mode" in space.left_out["inter_op_num_threads"]


def test_no_configuration_keeps_all_nodes_in_float() -> None:
    operators = {"Conv": 5, "Gemm": 2, "Relu": 5}
    # with these free there are too many configurations to list
    names = ("float_outputs", "unsigned_weights")
    fixed = dict.fromkeys(names, "false")
    fixed |= {"smoothing": "off", "calibration": "minmax"}
    space = resolved("quantize", operators=operators, fixed=fixed)
    assert space.left_out["kept_in_float=8"] == "it would leave nothing to quantise"
    counts: dict[object, set[Value]] = {}
    for configuration in space.configurations or ():
        values = configuration.to_json()
        kinds = values.get("precision"), values.get("quantized_operators")
        counts.setdefault(kinds, set()).add(values.get("kept_in_float", 0))
    assert counts["int8_static", None] == {0, 1, 2, 3, 4, 6}
    assert counts["int8_static", "matmul"] == {0, 1}
    assert counts["int8_dynamic", None] == {0, 1}
    several: dict[str, Value] = {"precision": "int8_dynamic", "kept_in_float": 4}
    assert space.nearest(several) == Configuration.of({"precision": "int8_dynamic"})
    # an LSTM is quantised even where every matrix product is kept
    recurrent = resolved("quantize", operators={**operators, "LSTM": 1}, fixed=fixed)
    two: dict[str, Value] = {"precision": "int8_dynamic", "kept_in_float": 2}
    assert recurrent.nearest(two) == Configuration.of(two)
    assert recurrent.nearest(several) == Configuration.of({"precision": "int8_dynamic"})


def test_packed_weights_need_a_matmul() -> None:
    name = "precision=int8_weight_only"
    assert "MatMul" in resolved("quantize", operators={"Conv": 2}).left_out[name]
    assert name not in resolved("quantize", operators={"MatMul": 2}).left_out


def test_smoothing_needs_int8_of_several_products() -> None:
    assert "smoothing" in resolved(operators={"Conv": 5, "Gemm": 1}).left_out
    space = resolved(operators={"Conv": 5, "MatMul": 4})
    dynamic: dict[str, Value] = {"precision": "int8_dynamic", "smoothing": "0.5"}
    assert space.nearest(dynamic) == Configuration.of(dynamic)
    convolutions: dict[str, Value] = {"precision": "int8_static", "quantized_operators": "conv"}
    assert space.nearest({**convolutions, "smoothing": "0.5"}) == Configuration.of(convolutions)
    assert space.nearest({"smoothing": "0.5"}) == Configuration.of({})


def test_exact_products_exist_where_int8_saturates() -> None:
    operators = {"MatMul": 4}
    space = resolved(operators=operators)
    exact: dict[str, Value] = {"precision": "int8_dynamic", "session.x64quantprecision": "1"}
    assert space.nearest(exact) == Configuration.of(exact)
    reduced: dict[str, Value] = {"precision": "int8_dynamic", "reduce_range": True}
    assert space.nearest({**exact, **reduced}) == Configuration.of(reduced)
    vnni = resolved(operators=operators, features=("avx512_vnni",))
    assert "session.x64quantprecision" in vnni.left_out


def test_unsigned_weights_exist_where_int8_saturates() -> None:
    """They stand beside seven bits and exact products; the three exclude each other."""
    operators = {"MatMul": 4}
    space = resolved("quantize", operators=operators)
    unsigned: dict[str, Value] = {"precision": "int8_static", "unsigned_weights": True}
    assert space.nearest(unsigned) == Configuration.of(unsigned)
    exact = {**unsigned, "session.x64quantprecision": "1"}
    assert space.nearest(exact) == Configuration.of(unsigned)
    for name in ("reduce_range", "symmetric"):
        signed: dict[str, Value] = {"precision": "int8_static", name: True}
        assert space.nearest({**unsigned, name: True}) == Configuration.of(signed)
    vnni = resolved("quantize", operators=operators, features=("avx_vnni",))
    assert "do not saturate" in vnni.left_out["unsigned_weights"]


def test_embeddings_need_a_table() -> None:
    """They are offered beside every precision, and in float only where they would not be."""
    assert "no embedding" in resolved(operators={"MatMul": 4}).left_out["embeddings"]
    space = resolved("quantize", operators={"MatMul": 4}, embeddings=1)
    for precision in ("fp32", "int8_static", "int8_dynamic", "int8_weight_only"):
        beside: dict[str, Value] = {"precision": precision, "embeddings": "int8"}
        assert space.nearest(beside).to_json()["embeddings"] == "int8"
        in_float = space.nearest({**beside, "embeddings": "float"}).to_json()
        assert ("embeddings" in in_float) == (precision in {"int8_static", "int8_dynamic"})
    products: dict[str, Value] = {"precision": "int8_static", "quantized_operators": "products"}
    assert space.nearest({**products, "embeddings": "float"}) == Configuration.of(products)
    large = resolved("quantize", embeddings=1, size_bytes=(1 << 31) + 1)
    assert large.nearest({"embeddings": "int8"}) == Configuration.of({"embeddings": "int8"})


def test_a_last_product_of_the_same_bits_makes_no_second_file() -> None:
    space = resolved("decoder", operators={"MatMul": 4})
    int4: dict[str, Value] = {"precision": "int4_weight_only"}
    for values, ignored in (
        (int4, {"last_product": "int4"}),
        ({"precision": "int8_weight_only"}, {"last_product": "int8"}),
    ):
        assert space.nearest({**values, **ignored}) == Configuration.of(values)
    # where the user fixed it, no other value makes the same file
    fixed = resolved("decoder", operators={"MatMul": 4}, fixed={"last_product": "int4"})
    assert fixed.nearest(int4) == Configuration.of({**int4, "last_product": "int4"})


def test_a_model_over_2_gib_has_no_int8_but_that_of_weights() -> None:
    """What ONNX Runtime's tools cannot do is left out with the reason, before it is tried."""
    space = resolved(operators={"MatMul": 4}, size_bytes=(1 << 31) + 1)
    offered = {parameter.name: parameter.values for parameter in space.parameters}["precision"]
    assert "int8_weight_only" in offered
    assert {"int8_static", "int8_dynamic"}.isdisjoint(offered)
    assert "over 2 GiB" in space.left_out["precision=int8_dynamic"]
    assert "smoothing" in space.left_out


def test_fixed_parameters() -> None:
    space = resolved(fixed={"intra_op_num_threads": "1"})
    assert space.nearest({"spinning": "off"}) == Configuration.of({"intra_op_num_threads": 1})
    with pytest.raises(RequestError, match=r"Did you mean 'optimizer\.NchwcTransformer'"):
        resolved(fixed={"optimizer.NchwcTransform": "off"})
    with pytest.raises(RequestError, match="must be one of 'on', 'off'"):
        resolved(fixed={"optimizer.NchwcTransformer": "1"})


def test_the_optimisations_that_change_the_model_are_searched() -> None:
    """Each has a parameter below the level at which it exists; where none does, that is said."""
    found = ("GeluFusionL2", "MatMulAddFusion")
    space = _with_firing(*found)
    parameters = {p.name: p for p in space.parameters if p.name.startswith("optimizer.")}
    names = {f"optimizer.{name}" for name in (*found, "NchwcTransformer")}
    assert parameters.keys() == names
    off: dict[str, Value] = {"optimizer.GeluFusionL2": "off"}
    assert space.nearest(off) == Configuration.of(off)
    low = _with_firing(*found, fixed={"graph_optimization_level": "ORT_ENABLE_BASIC"})
    assert not {p.name for p in low.parameters} & names
    assert "optimizer.*" in _with_firing().left_out


def _with_firing(*names: str, fixed: Mapping[str, str] | None = None) -> Space:
    inputs = generate(model(), {})
    return resolve(
        find_space("default"), model(), inputs, machine(8), fixed, firing=lambda _: names
    )


def test_a_thread_count_above_all_cores_leaves_the_default(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[parameters.intra_op_num_threads]\nvalues = [16]\ndefault = 0\n", "utf-8")
    space = resolved(str(file), cores=2)
    assert space.parameters == ()
    assert space.left_out == {"intra_op_num_threads": "only its default fits this machine"}


def _sizes(space: Space) -> list[tuple[tuple[Value, ...], Value]]:
    return [(p.values, p.default) for p in space.parameters if p.name == "batch"]


def test_there_is_a_batch_parameter_where_sizes_are_given_alone() -> None:
    assert _sizes(resolved("session")) == []
    assert _sizes(resolved("session", batch=[8, 1])) == [((1, 8), 1)]
    assert resolved("session", batch=[1, 8]).digest() != resolved("session").digest()


def test_one_batch_size_alone_is_kept() -> None:
    space = resolved("session", batch=[8])
    assert _sizes(space) == [((8,), 8)]
    assert space.nearest({}) == BASELINE
    assert space.digest() != resolved("session").digest()


def test_sizes_that_a_model_cannot_have_are_refused() -> None:
    fixed = Tensor(name="x", dtype="float32", shape=(1, 4))
    with pytest.raises(RequestError, match=r"--batch: no input of m.onnx has an open first"):
        resolved("session", batch=[1, 4], inputs=(fixed,))


def test_sizes_of_a_file_are_left_out_where_a_model_cannot_have_them(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "[parameters.batch]\nvalues = [1, 4]\ndefault = 1\n"
        '[parameters.arena]\nvalues = ["on", "off"]\ndefault = "on"\n',
        encoding="utf-8",
    )
    assert _sizes(resolved(str(file))) == [((1, 4), 1)]
    assert _sizes(resolved(str(file), batch=[2, 16])) == [((2, 16), 2)]
    fixed = Tensor(name="x", dtype="float32", shape=(1, 4))
    space = resolved(str(file), inputs=(fixed,))
    assert [p.name for p in space.parameters] == ["arena"]
    assert "'x' has the shape [1, 4]" in space.left_out["batch"]


def test_a_batch_is_not_fixed() -> None:
    with pytest.raises(RequestError, match="name the batch size with --batch 8"):
        resolved("session", fixed={"batch": "8"})
