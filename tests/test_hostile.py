"""Hostile files, at random: every reader refuses them with a sentence, or reads what stands there.

Files that are changed at random are in tests/stress/test_hostile_files.py.
"""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_config import make_config

from autotune.deploy.config import TunedConfig
from autotune.deploy.files import parse_json
from autotune.errors import AutotuneError, DataError, FormatError, RequestError, SpaceError
from autotune.facts.arrays import read_arrays
from autotune.results.result import StudyResult
from autotune.space.files import read_space
from autotune.storage.spool import Spool
from autotune.storage.trials import outcome_of, trial_in
from autotune.study.options import StudyOptions

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=12,
)
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@quick
@given(text=st.text())
def test_any_text_is_json_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        parse_json(text)


@quick
@given(data=st.data())
def test_a_config_with_another_value_is_refused_or_keeps_it(data: st.DataObject) -> None:
    config: Any = make_config().to_json()
    section = data.draw(
        st.sampled_from(["model", "evidence", "session", "requires", "configuration"])
    )
    key = data.draw(st.sampled_from([*config[section], "more"]))
    config[section][key] = data.draw(JSON)
    try:
        again = TunedConfig.from_json(config).to_json()
    except RequestError:
        return
    assert again[section][key] == config[section][key]


@quick
@given(data=JSON)
def test_any_json_is_a_record_or_refused(data: Any) -> None:
    for read in (
        TunedConfig.from_json,
        StudyOptions.from_record,
        lambda value: StudyResult.from_json(value, Path()),
    ):
        with pytest.raises(AutotuneError):
            read(data)
    assert outcome_of({"measurement": data}) is None
    assert outcome_of({"failure": data}) is None
    assert trial_in({"configuration": data, "measurement": data}) is None


@quick
@given(content=st.binary(max_size=400))
def test_any_bytes_are_no_arrays(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    for start in (b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00"):
        path.write_bytes(start + content)
        with pytest.raises(DataError):
            read_arrays(path)


@quick
@given(text=st.text(max_size=200))
def test_any_text_is_no_space(text: str, tmp_path: Path) -> None:
    path = tmp_path / "space.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SpaceError):
        read_space(path)


@quick
@given(lines=st.lists(st.binary(max_size=50), max_size=5))
def test_a_spool_of_anything_holds_no_trials(lines: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "s.spool.jsonl").write_bytes(b"\n".join(lines))
    assert [entry for entry in Spool(tmp_path, "s").entries() if trial_in(entry)] == []
