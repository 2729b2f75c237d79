"""What a study is asked for, and what it is asked to prefer where it runs on devices."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fakes import space

from autotune.errors import RequestError
from autotune.measure.device_memory import DeviceMemory
from autotune.search.objective import DEFAULT, DEVICE_MEMORY
from autotune.space.space import Parameter, Space
from autotune.study.options import CommonOptions, StudyOptions
from autotune.study.searched_space import objectives_of

_CUDA = space(Parameter(name="execution_provider", values=("cuda",), default="cpu"))


def _options(**changes: object) -> StudyOptions:
    return StudyOptions.of(Path("model.onnx"), clients=1, **changes)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that tells the memory of devices."""
    monkeypatch.setattr(DeviceMemory, "start", lambda: object())


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("prefer", ["memory", "device_memory"])
def test_a_study_on_devices_may_prefer_memory(prefer: str) -> None:
    """Its objective is the device's memory, by either word; all others stay."""
    assert objectives_of(_options(prefer=prefer), _CUDA) == (
        (DEFAULT[0], DEVICE_MEMORY),
        "device_memory",
    )
    assert objectives_of(_options(), _CUDA)[1] == "latency"


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("within", "changes"),
    [
        (space(), {"prefer": "device_memory"}),
        (_CUDA, {"prefer": "cpu"}),
        (_CUDA, {"prefer": "device_memory", "objectives": ("latency_ms", "cpu_s")}),
    ],
)
def test_what_is_no_objective_cannot_be_preferred(
    within: Space, changes: dict[str, object]
) -> None:
    with pytest.raises(RequestError, match="--prefer must be one of"):
        objectives_of(_options(**changes), within)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"trials": 0}, "--trials must be at least 1, not 0"),
        ({"clients": 0}, "--clients must be from 1 to 256"),
        ({"clients": 257}, "--clients must be from 1 to 256"),
        ({"timeout_s": 0.0}, "--timeout must be more than 0"),
        ({"max_error": 0.0}, "--max-error must be more than 0"),
        ({"max_error": float("nan")}, "--max-error must be more than 0"),
        ({"prefer": "speed", "objectives": ("latency_ms", "cpu_s")}, "--prefer must be one of"),
        ({"data": "a.npz", "shapes": {"x": (1, 3)}}, "--data brings its own shapes; leave --shape"),
    ],
)
def test_values_that_no_study_can_work_with_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        StudyOptions.of("model.onnx", **changes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("objectives", "latency"),
        ("batch", 8.5),
        ("trials", "six"),
        ("prompt_tokens", 64.5),
        ("shapes", {"x": 3}),
        ("wait", "no"),
        ("data", 3),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(RequestError, match=f"^{name} "):
        StudyOptions.of("model.onnx", **{name: value})


def test_every_option_is_described() -> None:
    """`help(StudyOptions)` is the reference of the options."""
    described = f"{CommonOptions.__doc__}{StudyOptions.__doc__}"
    assert [item.name for item in fields(StudyOptions) if f" {item.name}: " not in described] == []
