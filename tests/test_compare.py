"""Configurations side by side: who takes part, what is refused, and the numbers."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import command_line
import decoder_models
import onnx
import pytest
from fakes import FakeWorld, measurement, refusal
from test_config import make_config, requiring

from autotune.deploy.config import Serving
from autotune.deploy.loaded import DataFile, ModelFile
from autotune.deploy.session import SessionConfig
from autotune.errors import CannotMeasureError, ConfigError, RequestError
from autotune.facts import sample_models
from autotune.facts.inputs import Generate, workload_for
from autotune.facts.workload import Workload
from autotune.measure.outcome import Effort, Failure, Generated, Outcome
from autotune.report.comparison import view_comparison
from autotune.report.view import Table
from autotune.results.compare import Comparison, MakeMeasurer, compare
from autotune.results.score import is_leaner
from autotune.results.subjects import THE_DEFAULT, Lineup, lineup_of


class FakeSessions:
    """A measurer that looks sessions up by the name of their model file and a thread count."""

    def __init__(self, cost: Callable[[str, int], Outcome]) -> None:
        self.opened: list[str] = []
        self.sessions: list[str] = []
        self.clients = 0
        self.closed = False
        self._cost = cost

    def measure_session(
        self,
        path: Path,
        config: SessionConfig,
        effort: Effort,
        *,
        batch: int | None,
        sessions: str,
        site: Path | None = None,
    ) -> Outcome:
        self.sessions.append(sessions)
        threads = config.options.get("intra_op_num_threads", 0)
        self.opened.append(path.name)
        return self._cost(path.name, int(threads))

    def renew(self) -> None:
        """Starts nothing."""

    def close(self) -> None:
        self.closed = True


def make_fake(cost: Callable[[str, int], Outcome]) -> tuple[FakeSessions, MakeMeasurer]:
    fake = FakeSessions(cost)

    def make(*_: object, clients: int, **__: object) -> Any:
        fake.clients = clients
        return fake

    return fake, make


def by_threads(numbers: Mapping[int, tuple[float, float]]) -> Callable[[str, int], Outcome]:
    """Returns a cost function: latency in ms and peak memory in MiB by number of threads."""
    return lambda _, threads: measurement(*numbers[threads])


def write_config(
    model: Path, name: str = "best.json", threads: int = 0, serving: Serving | None = None
) -> Path:
    """Writes a config beside the model that it opens, and was tuned from."""
    file = DataFile.of(model)
    session = SessionConfig(options={"intra_op_num_threads": threads} if threads else {})
    config = make_config(
        model=ModelFile(**vars(file), source_sha256=file.sha256),
        session=session,
        requires=requiring(),
        serving=serving,
    )
    path = model.with_name(name)
    path.write_text(json.dumps(config.to_json()), encoding="utf-8")
    return path


def save_model(folder: Path, name: str = "best.onnx", width: int = 8) -> Path:
    path = folder / name
    onnx.save(sample_models.lstm(features=4, width=width), path)
    return path


def _compare(
    *configs: Path, source: Path | None = None, baseline: Path | None = None, **options: Any
) -> Comparison:
    lineup = lineup_of(configs, source, baseline)
    given: dict[str, Any] = {"max_error": 0.2, "on_step": lambda _done, _total: None}
    return compare(lineup, workload_for(lineup.model, None, {}), **{**given, **options})


def test_another_model_under_the_name_is_refused(tmp_path: Path) -> None:
    """A file of the same size and other bytes is not the one that was tuned."""
    model = save_model(tmp_path)
    config = write_config(model)
    content = bytearray(model.read_bytes())
    content[-1] ^= 1
    model.write_bytes(content)
    with pytest.raises(ConfigError, match=r"best\.onnx is not the file that was tuned"):
        _compare(config)


def test_a_limit_of_the_error_needs_the_model_that_was_tuned(tmp_path: Path) -> None:
    """A model is no judge of itself; another one is, as a baseline or by name."""
    model = save_model(tmp_path)
    other = save_model(tmp_path, "other.onnx")
    with pytest.raises(RequestError, match="name it with --model"):
        _compare(model)
    _, make = make_fake(by_threads({0: (10.0, 100.0)}))
    assert not _compare(model, make_measurer=make, max_error=None).untouched
    assert not _compare(model, other, make_measurer=make, max_error=None).untouched
    assert _compare(model, source=other, make_measurer=make).model == str(other)
    assert _compare(model, baseline=other, make_measurer=make).model == str(other)


def test_a_config_beside_the_default(tmp_path: Path) -> None:
    config = write_config(save_model(tmp_path), threads=1)
    fake, make = make_fake(by_threads({0: (10.0, 100.0), 1: (5.0, 50.0)}))
    comparison = _compare(config, make_measurer=make)
    (own,), default = comparison.configs, comparison.baseline
    assert comparison.untouched
    assert (default.name, own.name) == (THE_DEFAULT, str(config))
    assert own.numbers.speedup.value == pytest.approx(2.0)
    assert (own.numbers.latency_ms, default.numbers.latency_ms) == (5.0, 10.0)
    assert (own.numbers.peak_memory_mib, default.numbers.peak_memory_mib) == (50.0, 100.0)
    assert own.numbers.significant
    assert is_leaner(own.numbers)
    assert own.better
    assert not own.slower
    assert fake.closed


def test_a_decoder_is_compared_by_its_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On prompts as a study takes them."""
    model = decoder_models.write("plain", tmp_path / "plain.onnx")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"tokens": [1, 2, 3]}')
    seen: list[Workload] = []

    def look(_: Lineup, workload: Workload, **__: Any) -> None:
        seen.append(workload)
        raise CannotMeasureError("seen")

    monkeypatch.setattr("autotune.results.compare.compare", look)
    other = decoder_models.write("plain", tmp_path / "other.onnx")
    common = ["compare", str(model), "--baseline", str(other), "--model", str(model)]
    command_line.run(tmp_path, *common, "--generate", str(prompts), "--new-tokens", "5")
    done = command_line.run(tmp_path, *common, "--prompt-tokens", "7,9")
    assert "prompts of 7 and 9 random tokens are timed" in done.stderr
    plans = [workload.plan for workload in seen]
    assert [plan.new_tokens for plan in plans if plan] == [5, 64]
    assert [[feed["input_ids"].size for feed in w.feeds] for w in seen] == [[3], [7, 9]]


def test_a_decoder_is_shown_by_its_tokens(tmp_path: Path) -> None:
    """Tokens per second and the first token; the usual limit is a rise of the perplexity by 2 %."""
    model = decoder_models.write("plain", tmp_path / "plain.onnx")
    generated = Generated(ttft_ms=30.0, ttft_ratio=None, lengths=())
    _, make = make_fake(lambda *_: replace(measurement(4.0), generated=generated))
    lineup = lineup_of([model], None, None)
    prompts = workload_for(lineup.model, None, {}, generation=Generate(prompt_tokens=(4,)))
    comparison = compare(lineup, prompts, make_measurer=make, on_step=lambda *_: None)
    assert comparison.max_error == 0.02
    (table,) = (b for b in view_comparison(comparison, ()).blocks if isinstance(b, Table))
    assert table.headings[:4] == ("configuration", "tokens/s", "speed-up", "first token ms")
    assert [row[1] for row in table.rows] == ["250", "250"]
    assert [row[3] for row in table.rows] == ["30", "30"]


def test_what_a_study_was_told_to_feed_back_is_kept(tmp_path: Path) -> None:
    """Beside the config, for all that opens it; here it is changed, to see that it is read."""
    model = decoder_models.write("plain", tmp_path / "odd.onnx", past="alpha", names="omega")
    pairs = {"alpha.key": "omega.key", "alpha.value": "omega.value"}
    out = tmp_path / "out"
    asked: dict[str, Any] = {"space": "session", "objectives": ["latency", "cpu"], "trials": 1}
    result = FakeWorld(lambda _: (5.0, 50.0)).tune(model, pairs=pairs, out=out, **asked)
    assert result.pairs == pairs
    data = json.loads((out / "front.json").read_text(encoding="utf-8"))
    data["pairs"] = {"alpha.key": "omega.key"}
    (out / "front.json").write_text(json.dumps(data), encoding="utf-8")
    decoder = lineup_of([out / "best.json"], None, None).model.decoder
    assert decoder is not None
    assert [pair.past for pair in decoder.pairs] == ["alpha.key"]


def test_a_config_is_called_as_it_was_tuned(tmp_path: Path) -> None:
    """By as many clients, on as many sessions; the default's clients share one."""
    serving = Serving(clients=4, sessions="per_client")
    config = write_config(save_model(tmp_path), threads=1, serving=serving)
    fake, make = make_fake(by_threads({0: (10.0, 100.0), 1: (5.0, 100.0)}))
    comparison = _compare(config, make_measurer=make)
    (own,), default = comparison.configs, comparison.baseline
    assert fake.clients == comparison.clients == 4
    assert set(fake.sessions) == {"shared", "per_client"}
    assert own.throughput_per_s == pytest.approx(800)
    assert default.throughput_per_s == pytest.approx(400)
    assert (own.p50_ms, default.p50_ms) == (5.0, 10.0)
    _compare(config, make_measurer=make, clients=2)
    assert fake.clients == 2


def test_configs_of_different_loads_need_a_number_of_clients(tmp_path: Path) -> None:
    """One for a single caller and one for four are compared under the load that is asked for."""
    model = save_model(tmp_path)
    one = write_config(model, "one.json", threads=1)
    four = write_config(model, "four.json", threads=1, serving=Serving(clients=4))
    fake, make = make_fake(by_threads({0: (10.0, 100.0), 1: (5.0, 100.0)}))
    with pytest.raises(RequestError, match="tuned for 1 and another one for 4 clients"):
        _compare(one, baseline=four, make_measurer=make)
    assert _compare(one, baseline=four, make_measurer=make, clients=3).clients == 3
    assert fake.clients == 3


def test_any_configs_and_models_side_by_side(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    first, second = (write_config(model, f"{n}.json", threads=n) for n in (1, 2))
    _, make = make_fake(by_threads({0: (10.0, 100.0), 1: (5.0, 100.0), 2: (20.0, 100.0)}))
    comparison = _compare(model, second, baseline=first, make_measurer=make)
    assert comparison.baseline.name == str(first)
    assert [config.name for config in comparison.configs] == [str(model), str(second)]
    speedups = [config.numbers.speedup.value for config in comparison.configs]
    assert speedups == pytest.approx([0.5, 0.25])
    assert all(config.slower for config in comparison.configs)


def test_a_config_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    model = save_model(tmp_path)
    paths = [write_config(model, f"{n}.json", threads=n) for n in (1, 2)]

    def cost(_: str, threads: int) -> Outcome:
        return refusal("no such thing") if threads == 1 else measurement(5.0)

    _, make = make_fake(cost)
    comparison = _compare(*paths, make_measurer=make)
    assert [config.name for config in comparison.configs] == [str(paths[1])]
    assert isinstance(comparison.failures[str(paths[0])], Failure)


def test_a_baseline_that_fails_ends_the_comparison(tmp_path: Path) -> None:
    """Nothing can be said then; the processes end all the same."""
    config = write_config(save_model(tmp_path), threads=1)
    fake, make = make_fake(lambda _, threads: refusal("gone") if not threads else measurement(5.0))
    with pytest.raises(CannotMeasureError, match="the baseline failed: gone"):
        _compare(config, make_measurer=make)
    assert fake.closed


def test_configs_of_different_models_are_refused(tmp_path: Path) -> None:
    first = write_config(save_model(tmp_path, "a.onnx", width=8), "a.json")
    second = write_config(save_model(tmp_path, "b.onnx", width=16), "b.json")
    with pytest.raises(ConfigError, match="different models"):
        _compare(first, baseline=second)
    with pytest.raises(ConfigError, match="is not the model that"):
        _compare(first, source=tmp_path / "b.onnx")


@pytest.mark.parametrize(
    ("tuned", "error", "given", "limit", "same"),
    [
        (0.1, 0.0119, None, 0.1, True),
        (0.1, 0.013, None, 0.1, False),
        (0.1, 0.013, 0.02, 0.02, False),
        (None, 0.5, None, math.inf, False),
    ],
)
def test_a_config_is_held_to_what_it_was_tuned_for(
    tmp_path: Path,
    tuned: float | None,
    error: float,
    given: float | None,
    limit: float,
    same: bool,
) -> None:
    """Its own error limit unless the user names one; answers are the same up to a fifth more."""
    config = write_config(save_model(tmp_path), threads=1)
    data = json.loads(config.read_text(encoding="utf-8"))
    data["evidence"] |= {"error": 0.01, "max_error": tuned}
    config.write_text(json.dumps(data), encoding="utf-8")

    def cost(_: str, threads: int) -> Outcome:
        return measurement(5.0 if threads else 10.0, error=error if threads else 0.0)

    _, make = make_fake(cost)
    (own,) = _compare(config, make_measurer=make, max_error=given).configs
    assert own.max_error == limit
    assert own.tuned is not None
    assert own.tuned.same_answers is same
    assert any("ONNX Runtime 1.0 there" in change for change in own.tuned.differences)
