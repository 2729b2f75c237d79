"""The user's own metric: found, called, and its faults told as theirs."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import setting, thread_space

from autotune.errors import RequestError
from autotune.search.trial import Limits
from autotune.storage.identity import digest, identity_of
from autotune.study import metric

_MODULE = """
def right(outputs, references, inputs):
    return len(outputs) + len(references) + len(inputs)

def wrong(outputs, references, inputs):
    raise KeyError("label")

def nan(outputs, references, inputs):
    return float("nan")

number = 5
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_judge.py").write_text(_MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_judge", raising=False)


def test_a_function_is_called_with_all_three() -> None:
    assert metric.load_metric("my_judge:right")([{}], [{}, {}], [{}]) == 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("my_judge", "MODULE:FUNCTION"),
        ("my_judge:", "MODULE:FUNCTION"),
        ("no_such_module:right", "ModuleNotFoundError"),
        ("my_judge:missing", "AttributeError"),
        ("my_judge:number", "no function"),
    ],
)
def test_a_wrong_name_is_told(name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        metric.load_metric(name)


@pytest.mark.parametrize(("name", "message"), [("wrong", "KeyError"), ("nan", "finite")])
def test_a_function_that_fails_is_told(name: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        metric.load_metric(f"my_judge:{name}")([], [], [])


def test_a_fall_of_the_metric_is_a_limit() -> None:
    limits = Limits(max_error=float("inf"), max_drop=0.01)
    assert limits.admit_answers(0.9, 0.01)
    assert not limits.admit_answers(0.0, 0.02)
    assert not Limits(max_error=0.05, max_drop=0.01).admit_answers(0.9, 0.0)
    assert not Limits(max_error=float("inf"), max_drop=0.0).admit_answers(0.0, 0.001)


def test_an_edited_metric_is_another_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = []
    for text in (_MODULE, _MODULE.replace("len(inputs)", "2 * len(inputs)")):
        (tmp_path / "my_judge.py").write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, "my_judge", raising=False)
        metric.load_metric("my_judge:right")
        ctx = setting(thread_space(), metric_source=metric.source_digest("my_judge:right"))
        digests.append(digest(identity_of(ctx)))
    assert len(set(digests)) == 2
    assert metric.source_digest("no_module:right") == ""


def test_another_version_of_autotune_is_another_study() -> None:
    """It may measure or make files in another way, as after a step was mended."""
    ctx = setting(thread_space())
    newer = replace(ctx, environment=replace(ctx.environment, autotune="99.0"))
    assert digest(identity_of(ctx)) != digest(identity_of(newer))
