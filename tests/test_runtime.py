"""What ONNX Runtime says, in words for the user."""

import pytest

from autotune.facts.runtime import without_places

_STATUS = "Non-zero status code returned while running Add node. Status Message: "
_METHOD = "virtual common::Status Add<T>::Compute(std::function<int(int)>) const [with T = float]"


@pytest.mark.parametrize(
    ("message", "plain"),
    [
        ("no place at all (or is there?)", "no place at all (or is there?)"),
        ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : it is empty", "it is empty"),
        (
            "/src/core/model.cc:256 Model::Model(Proto&&, const Log&) Bad version: 14",
            "Bad version: 14",
        ),
        (
            f"{_STATUS}/src/add.h:12 {_METHOD} x == 0 was false. (so)",
            f"{_STATUS}x == 0 was false. (so)",
        ),
        ("/src/text.cc:235 Locale::Locale(const string&)::<lambda()> No locale", "No locale"),
    ],
)
def test_a_message_is_given_without_places_in_source_code(message: str, plain: str) -> None:
    assert without_places(message) == plain
