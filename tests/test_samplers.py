"""Optuna's samplers, and those of the user, in the loop of a study."""

import re
import sys
from pathlib import Path

import optuna
import pytest
from fakes import FakeMeasurer, build_search, parameter, refusal, space, thread_cost, thread_space

import autotune
from autotune.errors import MissingPackageError, RequestError
from autotune.measure.outcome import Failure
from autotune.search.samplers import SAMPLERS, make_sampler
from autotune.search.trial import Limits
from autotune.space.configuration import Configuration

pytestmark = pytest.mark.usefixtures("quiet")

_OFFERED = [name for name in SAMPLERS if name != "gp"]


@pytest.mark.parametrize("name", _OFFERED)
def test_each_sampler_searches(name: str, study: optuna.Study) -> None:
    """Nothing is measured twice; what repeats is pruned with what it equals."""

    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        fails = configuration.to_json().get("arena") == "off"
        return refusal("no arena") if fails else thread_cost(configuration)

    measurer = FakeMeasurer(cost)
    limits = Limits(max_memory_mib=90.0)
    search = build_search(measurer, study=study, sampler=make_sampler(name, 0), limits=limits)
    search.run(20, None)
    assert len(set(measurer.searched)) == len(measurer.searched) == 20
    best = {c.number for c in study.best_trials}
    assert best == {trial.number for trial in search.record.front}
    assert best
    for frozen in study.trials:
        is_repeated = frozen.state == optuna.trial.TrialState.PRUNED and not frozen.constraints
        assert is_repeated == ("duplicate_of" in frozen.user_attrs)


def test_a_sampler_with_nothing_new_ends_the_search() -> None:
    within = space(parameter("arena", "on", "off"), parameter("enable_mem_pattern", True, False))
    search = build_search(FakeMeasurer(thread_cost), within, sampler=make_sampler("random", 0))
    search.run(20, None)
    assert len(search.trials) == 4
    assert search.ended == "the sampler proposed what is measured 100 times in a row"


def test_a_sampler_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import optuna\nclass Mine(optuna.samplers.RandomSampler): pass\nnone = 3\n"
    (tmp_path / "my_own_samplers.py").write_text(code)
    assert type(make_sampler("my_own_samplers:Mine", 3)).__name__ == "Mine"
    for wrong in ("my_own_samplers:none", "my_own_samplers:Absent", "nowhere_at_all:Mine", "best"):
        with pytest.raises(RequestError, match="--sampler"):
            make_sampler(wrong, 0)


def test_a_package_that_a_sampler_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingPackageError, match="pip install scipy torch"):
        make_sampler("gp", 0)


def test_optuna_is_used_by_its_public_names_alone() -> None:
    """Private ones change without notice, and mean that Optuna has no say in the search."""
    private = re.compile(r"\._storage\b|\._(study|trial)_id|optuna\.(\w+\.)*_|import _heartbeat")
    for path in Path(autotune.__file__).parent.rglob("*.py"):
        found = private.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path}: {found}"


def test_optuna_reads_the_best_trials_of_a_search(study: optuna.Study) -> None:
    search = build_search(FakeMeasurer(thread_cost), thread_space(), study=study)
    search.run(30, None)
    best = {frozen.number for frozen in study.best_trials}
    assert best == {trial.number for trial in search.record.front}
