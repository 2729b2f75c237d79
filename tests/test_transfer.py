"""What a study takes over from related studies on other machines."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import optuna
import pytest
from fakes import FakeWorld, build_proposer, measurement, observed, parameter, space, thread_space

from autotune.deploy.options import Value
from autotune.facts import sample_models
from autotune.facts.hardware import Hardware, differences
from autotune.facts.runtime import Runtime
from autotune.search.coding import Coding
from autotune.search.objective import DEFAULT, find
from autotune.search.optuna_trials import read_trials
from autotune.search.transfer import RelatedStudy, prior, starting_points, translated
from autotune.search.trial import Limits, Trial
from autotune.space.configuration import BASELINE, Configuration
from autotune.storage.database import Place, open_storage, quiet_optuna
from autotune.study.progress import Progress

OBJECTIVES = find(DEFAULT)
RUNTIME = Runtime(version="1.31.1", build="x", providers=("CPUExecutionProvider",))


def _machine(**changes: object) -> Hardware:
    facts: dict[str, object] = {
        "cpu": "a cpu",
        "features": ("avx2",),
        "architecture": "x86_64",
        "logical_cores": 8,
        "physical_cores": 4,
        "usable_cores": 8,
        "quota_cores": None,
        "memory_mib": 16_000,
        "gpus": (),
        "system": "Linux 6",
    }
    return Hardware(**{**facts, **changes})  # type: ignore[arg-type]  # each of its own type


def _related(*measured: tuple[Mapping[str, Value], float, float], cores: int = 8) -> RelatedStudy:
    nothing: Mapping[str, Value] = {}
    rows = [(nothing, 10.0, 100.0), *measured]
    return RelatedStudy(
        name="theirs",
        facts=_machine(usable_cores=cores).facts(RUNTIME),
        trials=[
            Trial(
                number=i,
                configuration=Configuration.of(values),
                outcome=measurement(latency_ms, memory_mib),
            )
            for i, (values, latency_ms, memory_mib) in enumerate(rows)
        ],
    )


def test_the_same_machine_has_the_same_fingerprint() -> None:
    one, other = _machine(), _machine(memory_mib=16_010)
    assert one.fingerprint(RUNTIME) == other.fingerprint(RUNTIME)
    assert differences(one.facts(RUNTIME), other.facts(RUNTIME)) == []


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"usable_cores": 2}, "usable cores: 2 here, 8 there"),
        ({"cpu": "another"}, "CPU: another here, a cpu there"),
        ({"quota_cores": 1.5}, "CPU quota: 1.5 here, none there"),
        ({"gpus": ("NVIDIA H200, driver 570",)}, "GPU: NVIDIA H200, driver 570 here, none there"),
        ({"features": ()}, "CPU features:  here, avx2 there"),
        ({"version": "1.32.0"}, "ONNX Runtime: 1.32.0 here, 1.31.1 there"),
        ({"plugins": ("ep 1.8.1",)}, "provider plugins: ep 1.8.1 here, none there"),
    ],
)
def test_what_differs_is_named(changes: dict[str, Any], difference: str) -> None:
    of_runtime = changes.keys() & vars(RUNTIME).keys()
    here, runtime = (
        (_machine(), replace(RUNTIME, **changes)) if of_runtime else (_machine(**changes), RUNTIME)
    )
    there = _machine()
    assert here.fingerprint(runtime) != there.fingerprint(RUNTIME)
    assert differences(here.facts(runtime), there.facts(RUNTIME)) == [difference]


@pytest.mark.parametrize(
    ("threads", "scale", "expected"),
    [(4, 0.5, 2), (4, 1.0, 4), (1, 4.0, 1), (2, 0.25, 1), (0, 2, 0)],
)
def test_thread_counts_are_carried_over_by_cores(threads: int, scale: float, expected: int) -> None:
    """Half of the cores there is half of the cores here; one thread stays one."""
    other = translated(Configuration.of({"intra_op_num_threads": threads}), thread_space(), scale)
    assert other.to_json().get("intra_op_num_threads", 0) == expected


def test_what_does_not_exist_here_is_left_out() -> None:
    """A precision that this machine has no kernels for falls back to the default."""
    theirs = Configuration.of({"precision": "fp16", "arena": "off"})
    assert translated(theirs, thread_space(), 1.0) == Configuration.of({"arena": "off"})


def test_a_study_starts_from_the_fronts_of_related_ones() -> None:
    one = _related(({"arena": "off"}, 5.0, 90.0), ({"intra_op_num_threads": 8}, 4.0, 120.0))
    two = _related(({"arena": "same_as_requested"}, 6.0, 50.0), ({"arena": "off"}, 7.0, 45.0))
    starts = starting_points([one, two], thread_space(), 4, Limits(), OBJECTIVES)
    assert starts[0] == Configuration.of({"intra_op_num_threads": 4})
    assert set(starts) == {
        Configuration.of({"intra_op_num_threads": 4}),
        Configuration.of({"arena": "off"}),
        Configuration.of({"arena": "same_as_requested"}),
    }
    assert len(starts) == 3
    assert starting_points([], thread_space(), 4, Limits(), OBJECTIVES) == []


_SPACE = space(
    parameter("arena", "on", "off", "same_as_requested"),
    parameter("intra_op_num_threads", 0, 1, 2, 4),
    parameter("session.disable_prepacking", "0", "1"),
    parameter("enable_mem_pattern", True, False),
)


def _told() -> RelatedStudy:
    everything = [c for c in _SPACE.configurations or () if c != BASELINE]

    def latency(configuration: Configuration) -> float:
        return 10.0 * (0.5 if ("arena", "off") in configuration.values else 1.0)

    return _related(*((dict(c.values), latency(c), 100.0) for c in everything))


def test_effects_carry_over() -> None:
    expected = prior([_told()], _SPACE, 8, OBJECTIVES)
    rows = Coding(_SPACE).rows([BASELINE, Configuration.of({"arena": "off"})])
    assert np.exp(expected["latency_ms"](rows)) == pytest.approx([1.0, 0.5], rel=0.05)


def test_little_is_no_prior() -> None:
    assert prior([_related(({"arena": "off"}, 5.0, 90.0))], _SPACE, 8, OBJECTIVES) == {}
    assert prior([], _SPACE, 8, OBJECTIVES) == {}


def test_a_prior_guides_the_first_proposal() -> None:
    """With it the best is asked for at once; without, it is one of many."""
    first = [Trial(number=0, configuration=BASELINE, outcome=measurement(10.0, 100.0))]
    expected = prior([_told()], _SPACE, 8, OBJECTIVES)
    proposal = build_proposer(_SPACE, prior=expected).propose(observed(first), {BASELINE})
    assert proposal is not None
    assert ("arena", "off") in proposal.configuration.values


def test_own_trials_overrule_a_wrong_prior() -> None:
    proposer = build_proposer(_SPACE, prior=prior([_told()], _SPACE, 8, OBJECTIVES))
    trials = [Trial(number=0, configuration=BASELINE, outcome=measurement(10.0, 100.0))]
    for number in range(1, 16):
        proposal = proposer.propose(observed(trials), {trial.configuration for trial in trials})
        assert proposal is not None
        values = proposal.configuration.to_json()
        latency = 10.0 * (2.0 if values.get("arena") == "off" else 1.0)
        latency *= 0.6 if values.get("intra_op_num_threads") == 4 else 1.0
        trials.append(
            Trial(
                number=number,
                configuration=proposal.configuration,
                outcome=measurement(latency, 100.0),
            )
        )
    best = min(trials, key=lambda t: t.measurement.latency_ms if t.measurement else 99)
    assert best.configuration.to_json().get("intra_op_num_threads") == 4
    assert best.measurement is not None
    assert best.measurement.latency_ms == 6.0


def test_new_hardware_opens_a_sibling(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    onnx.save(sample_models.cnn(channels=4, size=16, blocks=1), tmp_path / "m.onnx")
    monkeypatch.delenv("AUTOTUNE_STORAGE", raising=False)

    def cost(configuration: Configuration) -> tuple[float, float]:
        return (5.0 if configuration.to_json().get("arena") == "off" else 10.0), 100.0

    world = FakeWorld(cost, on_disk=True)
    model, out = tmp_path / "m.onnx", tmp_path / "out"
    first = {"hardware": lambda: _machine(cpu="the first")}
    world.tune(model, trials=10, space="session", out=out, seams=first)
    reports: list[Progress] = []
    second = {"hardware": lambda: _machine(cpu="the second", usable_cores=4)}
    world.tune(model, trials=6, space="session", out=out, seams=second, on_progress=reports.append)
    notes = " ".join(progress.note for progress in reports)
    assert "CPU: the second here, the first there" in notes
    assert "usable cores: 4 here, 8 there" in notes
    searched = world.measurers[1].searched
    assert searched[0] == BASELINE
    assert searched[1].to_json()["arena"] == "off"
    with quiet_optuna(), open_storage(Place.of(None, tmp_path / "out")) as database:
        names = [summary.study_name for summary in database.get_all_studies()]
        assert len(names) == 2
        counts = {
            len(read_trials(optuna.load_study(study_name=name, storage=database))) for name in names
        }
    assert counts == {10, 6}
    assert json.loads((tmp_path / "out" / "front.json").read_text())["trials"] == 6
