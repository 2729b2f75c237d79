"""Starting points that users bring."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes import parameter, space

from autotune.deploy.options import Value
from autotune.errors import RequestError
from autotune.facts.batches import Batching
from autotune.space.configuration import Configuration
from autotune.space.space import Parameter
from autotune.space.start import alone, in_batches, read_configuration


def _file(tmp_path: Path, data: Any) -> Path:
    path = tmp_path / "start.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    return path


def test_a_fragment_is_a_configuration(tmp_path: Path) -> None:
    path = _file(tmp_path, {"intra_op_num_threads": 3, "arena": "on", "precision": "int8_static"})
    assert read_configuration(path) == Configuration.of(
        {"intra_op_num_threads": 3, "precision": "int8_static"}
    )


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ({"intra_op_num_thread": 1}, "Did you mean 'intra_op_num_threads'"),
        ({"arena": "sometimes"}, "arena"),
        ({"intra_op_num_threads": -1}, "intra_op_num_threads"),
        ({"arena": ["off"]}, "arena"),
        ([1, 2], "an object of parameters"),
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ({"format": "autotune/1"}, "missing"),
    ],
)
def test_what_is_no_starting_point_is_refused(tmp_path: Path, data: Any, fault: str) -> None:
    with pytest.raises(RequestError, match=fault) as refused:
        read_configuration(_file(tmp_path, data))
    assert "--try" in str(refused.value)


@pytest.mark.parametrize(
    ("name", "values"), [("batch", (1, 2, 4)), ("execution_provider", ("cpu", "cuda", "openvino"))]
)
def test_fixed_values_hold_in_the_simplest_configurations(
    name: str, values: tuple[Value, ...]
) -> None:
    within = space(
        parameter("intra_op_num_threads", 1),
        Parameter(name=name, values=values, default=values[0]),
        parameter("arena", "on", "off"),
    )
    assert alone(within, name) == [
        Configuration.of({"intra_op_num_threads": 1, name: value}) for value in values[1:]
    ]


_BATCHING = Batching(sizes=(2, 8), inputs=("x",), dimension="N")


def test_a_configuration_of_the_user_has_a_batch_size_of_the_study() -> None:
    """The smallest size goes unnamed, so that each configuration has one form."""
    threads = {"intra_op_num_threads": 3}
    large = Configuration.of({**threads, "batch": 8})
    assert in_batches(large, _BATCHING) == large
    assert in_batches(Configuration.of({**threads, "batch": 2}), _BATCHING) == Configuration.of(
        threads
    )
    assert in_batches(Configuration.of(threads), None) == Configuration.of(threads)


@pytest.mark.parametrize("batching", [_BATCHING, None])
def test_a_configuration_of_another_batch_size_is_refused(batching: Batching | None) -> None:
    """It would be measured with other samples than the user meant."""
    with pytest.raises(RequestError, match="batches of 16; add 16 to --batch"):
        in_batches(Configuration.of({"batch": 16}), batching)
