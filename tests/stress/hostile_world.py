"""The sound files that are changed: a whole study, whose measurements are computed."""

import contextlib
import hashlib
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from fakes import FakeMeasurer, FakeWorld, build_search, setting
from small_inspections import PEAKS, PROFILE, REPORT

from autotune.deploy.config import CONFIG
from autotune.deploy.files import digest_files
from autotune.deploy.records import to_plain
from autotune.deploy.telemetry import switch_off
from autotune.errors import AutotuneError
from autotune.facts.hardware import hardware
from autotune.facts.inputs import workload_for
from autotune.facts.model import describe
from autotune.facts.sample_models import lstm
from autotune.inspection.headroom import headroom
from autotune.inspection.profile import TimeShare
from autotune.process.durable import write_json
from autotune.results.profiling import PROFILE_FILE, ProfiledSession, Profiling
from autotune.search.optuna_trials import read_trials
from autotune.search.trial import Trial
from autotune.space.configuration import Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.storage.database import open_storage, quiet_optuna
from autotune.storage.identity import identity_of, open_study, related_studies
from autotune.study.resume import choose, entries, options_of, place_of

TRIALS = 5


def cost(configuration: Configuration) -> tuple[float, float]:
    """Returns a latency in ms and a memory in MiB that depend on the configuration alone."""
    digits = hashlib.sha256(configuration.key.encode()).digest()
    return 5.0 + digits[0] / 25, 50.0 + digits[1] / 3


class World:
    """A folder with a finished study, and what is needed to go on with copies of it."""

    def __init__(self, place: Path) -> None:
        switch_off()
        self.sound = place / "sound"
        self.path = place / "model.onnx"
        onnx.save(lstm(features=4, width=8), self.path)
        machine = hardware()
        for name in ("another processor", machine.cpu):
            self._study(name)
        self.model = describe(self.path)
        workload = workload_for(self.model, None, {})
        self._write_profile()
        self._space = resolve(find_space("session"), self.model, workload, machine)
        self._facts = {"CPU": machine.cpu}
        self.samples = {
            name: np.stack([feed[name] for feed in workload.feeds]) for name in workload.feeds[0]
        }
        storage_place, _ = place_of(str(self.sound))
        with quiet_optuna(), open_storage(storage_place) as database:
            studies = [study for study in database.get_all_studies() if study.user_attrs]
            attributes = studies[-1].user_attrs
            names = identity_of(setting(self._space))
            self._identity = {name: attributes[name] for name in names}
        self.study = studies[-1].study_name

    def _study(self, processor: str) -> None:
        FakeWorld(cost, on_disk=True).tune(
            self.path,
            trials=TRIALS,
            space="session",
            out=self.sound,
            seams={"hardware": lambda: replace(hardware(), cpu=processor)},
        )

    def _write_profile(self) -> None:
        node = TimeShare(name="/lstm", operator="LSTM", nodes=1, time_ms=0.5, share=0.5)
        profile = replace(
            PROFILE, operators=(node,), slowest=(node,), overheads=(node,), providers=(node,)
        )
        work = REPORT.work
        room = headroom(work, PEAKS, 1.0)
        session = ProfiledSession(
            name="default", file="model.onnx", profile=profile, work=work, headroom=room
        )
        digest = digest_files([self.sound / CONFIG])
        profiling = Profiling(sessions=(session,), peaks=PEAKS, config_sha256=digest)
        write_json(to_plain(profiling), self.sound / PROFILE_FILE)

    def fill(self, case: Path) -> None:
        """Copies the files of the study to the folder `case`."""
        for file in self.sound.iterdir():
            if file.is_file():
                shutil.copy(file, case)

    def go_on(self, case: Path) -> list[Trial]:
        """Returns the trials of the study in `case` after it went on for two more."""
        place, _ = place_of(str(case))
        studies = entries(place)
        with contextlib.suppress(AutotuneError):  # a study without options is refused, and listed
            options_of(choose(studies, None, place))
        with quiet_optuna(), open_storage(place) as database:
            ctx = setting(self._space, folder=case, model=self.model, facts=self._facts)
            study = open_study(database, place, ctx, self._identity)
            related_studies(database, study.study_name)
            search = build_search(FakeMeasurer(cost), self._space, study=study)
            search.run(TRIALS + 2, None)
            return read_trials(study)
