"""Studies over several ONNX Runtimes: the space, the search, the two answers, the loader."""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime
import optuna
import pytest
from fakes import Cost, FakeMeasurer, FakeWorld, build_search
from small_spaces import machine, model, resolved
from test_config import make_config, requiring
from test_loader import write_config
from views import words_of

import autotune
from autotune.deploy import fitting
from autotune.deploy.config import TunedConfig
from autotune.deploy.loaded import RequiredRuntime
from autotune.deploy.options import OWN, RUNTIME
from autotune.deploy.providers import CPU
from autotune.errors import ConfigError, RequestError
from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.providers import (
    CPU_STATE,
    READY,
    ProviderState,
    SearchedRuntime,
)
from autotune.measure.outcome import NO_RUNTIME, Failure
from autotune.report.result import view_ending
from autotune.results.leave_one_out import revert
from autotune.results.result import StudyResult
from autotune.runtimes.environments import RuntimeEnvironment
from autotune.runtimes.names import read_release
from autotune.search.optuna_trials import read_trials
from autotune.space.configuration import Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Parameter, Space
from autotune.space.start import alone, provider_forms, providers_alone
from autotune.study import other_builds
from autotune.study.finish import Finish
from autotune.study.other_builds import STAGE, OtherBuilds
from autotune.study.progress import Progress

pytestmark = pytest.mark.usefixtures("quiet")

OTHER = "onnxruntime-openvino==1.24.1"
OLD = "onnxruntime==1.22.1"
OPENVINO = ProviderState(word="openvino", state=READY, devices=("CPU",))
WITH_OPENVINO = SearchedRuntime(text=OTHER, states=(CPU_STATE, OPENVINO))
OLDER_CPU = replace(CPU_STATE, unknown_options=("NchwcTransformer",))
WITHOUT_LAYOUT = SearchedRuntime(text=OLD, states=(OLDER_CPU,))
_SPACE = """
description = "providers and patterns"

[parameters.execution_provider]
values = ["cpu", "openvino"]
default = "cpu"

[parameters.enable_mem_pattern]
values = [true, false]
default = true
"""


def _resolved(
    *runtimes: SearchedRuntime, ready: Sequence[ProviderState] = (CPU_STATE,), **changes: Any
) -> Space:
    described = model(operators={"Conv": 5}, quantisable={"Conv": 5})
    inputs = generate(described, {})
    space = find_space("default")
    return resolve(
        space, described, inputs, machine(4), providers=ready, runtimes=runtimes, **changes
    )


def _search_all(space: Space) -> list[dict[str, Any]]:
    """Returns what a walk over many configurations of a space finds."""
    seen = [Configuration.of({})]
    for configuration in seen[:1] + space.neighbours(seen[0]):
        seen += space.neighbours(configuration)
    return [configuration.to_json() for configuration in seen]


def test_a_provider_exists_on_the_runtime_that_brings_it() -> None:
    space = _resolved(WITH_OPENVINO, WITHOUT_LAYOUT)
    pairs = {(v.get(RUNTIME, OWN), v.get(EXECUTION_PROVIDER, "cpu")) for v in _search_all(space)}
    assert pairs == {(OWN, "cpu"), (OLD, "cpu"), (OTHER, "cpu"), (OTHER, "openvino")}
    assert [c.to_json() for c in alone(space, RUNTIME)] == [{RUNTIME: OTHER}, {RUNTIME: OLD}]
    on_openvino = {RUNTIME: OTHER, EXECUTION_PROVIDER: "openvino"}
    assert [c.to_json() for c in providers_alone(space)] == [on_openvino]
    assert all(form.to_json().items() >= on_openvino.items() for form in provider_forms(space))
    # without its runtime a provider is gone, and with it its options
    tuned = space.nearest({**on_openvino, "fixed_dimensions": True})
    assert revert(tuned, (RUNTIME,), space).to_json().keys() <= {"fixed_dimensions"}


def test_what_a_runtime_ignores_is_not_searched_on_it() -> None:
    found = _search_all(_resolved(WITHOUT_LAYOUT))
    without_layout = [v for v in found if v.get("optimizer.NchwcTransformer") == "off"]
    assert without_layout
    assert all(RUNTIME not in values for values in without_layout)


def test_what_the_users_own_runtime_ignores_is_not_searched_on_it() -> None:
    """It is on one that knows it; where there is none it is left out, and refused by --fix."""
    name = "optimizer.NchwcTransformer"
    found = _search_all(_resolved(WITH_OPENVINO, ready=[OLDER_CPU]))
    assert {v.get(RUNTIME) for v in found if v.get(name) == "off"} == {OTHER}
    assert f"{name}=off" in _resolved(ready=[OLDER_CPU]).left_out
    with pytest.raises(RequestError, match=f"would ignore {name}=off"):
        _resolved(ready=[OLDER_CPU], fixed={name: "off"})


def test_a_fixed_provider_leaves_the_runtimes_that_have_it() -> None:
    space = _resolved(WITH_OPENVINO, fixed={EXECUTION_PROVIDER: "openvino"})
    values = next(p.values for p in space.parameters if p.name == RUNTIME)
    assert values == (OTHER,)
    with pytest.raises(RequestError, match="with --runtimes"):
        _resolved(WITH_OPENVINO, fixed={RUNTIME: OTHER})
    plain = resolved()
    assert RUNTIME not in {parameter.name for parameter in plain.parameters}


def _cost(other_ms: float) -> Cost:
    def cost(configuration: Configuration) -> tuple[float, float]:
        values = configuration.to_json()
        pattern_ms = 0.0 if "enable_mem_pattern" in values else 1.0
        if values.get(EXECUTION_PROVIDER) == "openvino":
            return other_ms + pattern_ms, 200.0
        return 9.0 + pattern_ms, 100.0

    return cost


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    """Returns the options of a small study."""
    space = tmp_path / "space.toml"
    space.write_text(_SPACE, encoding="utf-8")
    path = tmp_path / "cnn.onnx"
    sample_models.write("cnn", path)
    return {"model": path, "space": str(space), "out": tmp_path / "out", "trials": 12}


def _runtimes(texts: Sequence[str], *_: object) -> tuple[SearchedRuntime, ...]:
    return (WITH_OPENVINO,) if texts else ()


def _tune(cost: Cost, options: dict[str, Any], **more: Any) -> StudyResult:
    return FakeWorld(cost).tune(**options, **more, seams={"runtimes": _runtimes})


def test_a_study_gives_two_answers(options: dict[str, Any]) -> None:
    result = _tune(_cost(4.0), options, runtimes=[OTHER])
    config = TunedConfig.read(result.folder / "best.json")
    assert config.requires.runtime == RequiredRuntime(
        package="onnxruntime-openvino", version="1.24.1"
    )
    assert config.environment.onnxruntime == "1.24.1"
    words = words_of(view_ending(result, ""))
    own = next(m for m in result.members if m.configuration == {"enable_mem_pattern": False})
    assert f"autotune pick {result.folder} --trial {own.trial}" in words
    assert "With onnxruntime-openvino 1.24.1: trial" in words
    assert f"pip uninstall -y onnxruntime && pip install {OTHER}" in words
    # fewer runtimes, more of them: it is the same study, and nothing is measured twice
    fewer = _tune(_cost(4.0), options)
    assert fewer.study == result.study
    again = FakeWorld(_cost(4.0))
    more = again.tune(**options, runtimes=[OTHER], seams={"runtimes": _runtimes})
    assert (more.study, again.searched) == (result.study, [])


def test_a_runtime_that_is_added_after_the_end_of_a_search_is_searched(
    options: dict[str, Any],
) -> None:
    first = _tune(_cost(4.0), options)
    assert first.ended
    again = FakeWorld(_cost(4.0))
    more = again.tune(**options, runtimes=[OTHER], seams={"runtimes": _runtimes})
    assert more.study == first.study
    assert {configuration.runtime for configuration in again.searched} == {OTHER}


def _last_line(
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    *,
    there: bool,
    other_ms: float = 4.0,
    **more: Any,
) -> str:
    """Returns what a study says of builds that it does not search; empty if nothing."""
    environment = RuntimeEnvironment(
        name="onnxruntime-openvino",
        version="1.24.1",
        providers=("OpenVINOExecutionProvider", CPU),
        size_bytes=0,
    )
    missing = [read_release("onnxruntime-directml"), read_release("onnxruntime")]
    monkeypatch.setattr(other_builds, "added", lambda: [environment] if there else [])
    monkeypatch.setattr(other_builds, "missing_builds", lambda: missing)
    notes = []

    def listen(progress: Progress) -> None:
        if progress.stage == STAGE:
            notes.append(progress.note)

    seams = {"runtimes": _runtimes, "other_builds": OtherBuilds}
    FakeWorld(_cost(other_ms)).tune(**options, **more, on_progress=listen, seams=seams)
    return "".join(notes)


def test_a_build_that_is_there_is_probed(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    line = _last_line(monkeypatch, options, there=True)
    assert "A probe, not confirmed" in line
    # five milliseconds of the default's ten; the study's own config takes nine
    assert "took 0.50 (0.50–0.50) of the default's time" in line
    assert "the config of this study takes 0.90" in line
    assert f"--runtimes {OTHER}" in line


def test_a_probe_says_where_the_config_beside_it_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(Finish, "_compare", lambda self, _: self.cut_short())
    line = _last_line(monkeypatch, options, there=True)
    assert "the config of this study is not confirmed either, and took 0.90" in line


def test_a_build_that_is_not_there_is_named_without_a_claim(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    line = _last_line(monkeypatch, options, there=False)
    assert line.startswith("Not measured")
    assert "onnxruntime-directml" in line
    assert f"`autotune study {options['out']} --runtimes all`" in line


@pytest.mark.parametrize(
    "asked", [{"runtimes": [OTHER]}, {"providers": ["cpu"]}, {"fix": {EXECUTION_PROVIDER: "cpu"}}]
)
def test_a_study_whose_providers_are_given_names_no_build(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], asked: dict[str, Any]
) -> None:
    assert _last_line(monkeypatch, options, there=True, **asked) == ""


def test_a_probe_that_has_no_time_left_says_so(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(other_builds, "_LONGEST_S", 0.0)
    line = _last_line(monkeypatch, options, there=True)
    assert line.startswith("Not measured, no time was left")


def test_a_result_is_returned_where_the_builds_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Two distributions in one environment are an error where builds are added."""

    def refuse() -> list[Any]:
        raise RequestError("onnxruntime and onnxruntime-gpu are installed in one environment")

    monkeypatch.setattr(other_builds, "missing_builds", refuse)
    result = FakeWorld(_cost(9.0)).tune(**options, seams={"other_builds": OtherBuilds})
    assert result.complete


def test_another_runtime_has_to_be_worth_its_installation(options: dict[str, Any]) -> None:
    result = _tune(_cost(9.0), options, runtimes=[OTHER])
    assert RUNTIME not in result.best.configuration
    assert "no better by more than the noise" in words_of(view_ending(result, ""))
    assert TunedConfig.read(result.folder / "best.json").requires.runtime is None


def test_the_search_goes_on_without_a_runtime_that_died(study: optuna.Study) -> None:
    values = Parameter(name=RUNTIME, values=(OWN, OTHER), default=OWN)
    threads = Parameter(name="intra_op_num_threads", values=(0, 1, 2, 3), default=0)
    within = replace(resolved(), parameters=(values, threads), impossible=())
    notes = []

    def cost(configuration: Configuration) -> tuple[float, float] | Failure:
        if configuration.runtime == OTHER:
            return Failure(kind=NO_RUNTIME, phase="start", message="gone")
        return 10.0, 100.0

    def report(progress: Any) -> None:
        notes.append(progress.note)

    search = build_search(FakeMeasurer(cost), within, study=study, report=report)
    search.run(30, None)
    failed = [trial for trial in search.trials if isinstance(trial.outcome, Failure)]
    assert len(failed) == 1
    assert len(search.trials) == 5
    assert f"autotune runtimes add {OTHER}" in " ".join(filter(None, notes))
    # the storage gives the configuration back as it was
    assert {trial.configuration.runtime for trial in read_trials(study)} == {OWN, OTHER}


def _config(tmp_path: Path, runtime: RequiredRuntime) -> Path:
    path = tmp_path / "best.onnx"
    sample_models.write("cnn", path)
    requires = replace(requiring(CPU), runtime=runtime)
    return write_config(path, replace(make_config(), requires=requires))


def test_the_loader_asks_for_the_runtime(tmp_path: Path) -> None:
    path = _config(tmp_path, RequiredRuntime(package="onnxruntime-openvino", version="1.24.1"))
    assert json.loads(path.read_text(encoding="utf-8"))["requires"]["runtime"] == {
        "package": "onnxruntime-openvino",
        "version": "1.24.1",
    }
    command = f"pip uninstall -y onnxruntime && pip install {OTHER}"
    with pytest.raises(ConfigError, match=command):
        autotune.load(path, strict=True)
    with pytest.warns(autotune.ConfigWarning, match="lacks onnxruntime-openvino 1.24.1"):
        session = autotune.load(path)
    assert session.get_session_options().intra_op_num_threads == 0


def test_the_loader_takes_the_runtime_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _config(
        tmp_path, RequiredRuntime(package="onnxruntime", version=onnxruntime.__version__)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        autotune.load(path, strict=True)
    needed = RequiredRuntime(package="onnxruntime", version="1.0.0")
    assert fitting.install_command(needed) == "pip install onnxruntime==1.0.0"
