"""Kills at random instants of writing a result, while applications load it."""

import os
import random
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_results
import numpy as np
import pytest
from test_writing_results import _Made, _made

import autotune
from autotune.deploy import loader
from autotune.deploy.config import TunedConfig
from autotune.graph.graph_facts import ProcessorFacts
from autotune.results import writing
from autotune.results.result import StudyResult
from autotune.results.writing import agrees, repair, write
from autotune.storage.locks import exclusive_use

_ROUNDS = 100  # with two kills each
_MEMBERS = {0: 1.0, 7: 2.0}  # the answer of each member's model
_LONGEST_S = 0.3


def _forked(work: Callable[[], None]) -> int:
    """Runs `work` in a process of its own; returns its number."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


@pytest.mark.stress
@pytest.mark.skipif(os.name != "posix", reason="it forks and kills")
def test_kills_at_random_instants_leave_a_whole_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No front disagrees with its config, no load fails, and no file stays that nobody names."""
    facts = ProcessorFacts(overflows=False, exactness_reaches=True, has_blocks=False, float16=False)
    monkeypatch.setattr(writing, "processor_facts", lambda _: facts)  # its child takes a second
    folder = tmp_path / "out"
    folder.mkdir()
    models = {trial: _made(tmp_path, answer) for trial, answer in _MEMBERS.items()}
    member = made_results.member(7, {"optimizer.NchwcTransformer": "off"}, 1.5)
    result = made_results.result(member, folder=folder)

    def write_on(trials: list[int]) -> None:
        """Writes members in turns, as the end of a study and as pick do, for ever."""
        while True:
            for trial in trials:
                with exclusive_use(folder, cores=False, wait=True):
                    repair(folder)
                    write(replace(result, picked=trial), _Made(models[trial]))  # type: ignore[arg-type]

    def load_on() -> None:
        """Loads until it is told to stop; ends with an exception where a load fails."""
        warnings.simplefilter("ignore")
        check_files = loader.check_files

        def later(*arguments: Any, **named: Any) -> Path:
            time.sleep(random.uniform(0, _LONGEST_S / 10))  # so that many a switch comes in between
            return check_files(*arguments, **named)

        monkeypatch.setattr(loader, "check_files", later)
        feed = {"x": np.zeros((1, 2), np.float32)}
        while not (tmp_path / "stop").exists():
            answer = autotune.load(folder / "best.json").run(None, feed)[0]
            assert float(np.asarray(answer)[0, 0]) in _MEMBERS.values()

    write(result, _Made(models[0]))  # type: ignore[arg-type]
    loading = _forked(load_on)
    chance = random.Random(0)
    states = set()
    for _ in range(_ROUNDS):
        writers = [_forked(lambda: write_on([0, 7])), _forked(lambda: write_on([7, 0]))]
        for pid in writers:
            time.sleep(chance.uniform(0, _LONGEST_S))
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        states.add(len(list(folder.iterdir())))
        with exclusive_use(folder, cores=False):
            repair(folder)
        now = StudyResult.read(folder)
        assert agrees(now)
        assert now.picked == TunedConfig.read(folder / "best.json").evidence.trial
        assert {file.name for file in folder.iterdir()} == {*now.files, ".lock"}
    (tmp_path / "stop").touch()
    assert os.waitpid(loading, 0)[1] == 0
    assert len(states) > 1  # some of them were cut through
