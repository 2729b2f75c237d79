"""The sound files that hostile.py changes: a whole study, whose measurements are computed."""

import contextlib
import hashlib
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import optuna

from autotune.deploy.config import Interval
from autotune.deploy.digest import digest_files
from autotune.deploy.process_options import ProcessOptions
from autotune.deploy.records import to_plain
from autotune.deploy.telemetry import switch_off
from autotune.errors import AutotuneError
from autotune.facts.hardware import hardware
from autotune.facts.model import describe
from autotune.facts.sample_models import lstm
from autotune.facts.work import Work
from autotune.facts.workload import workload_for
from autotune.inspection.headroom import Peaks, headroom
from autotune.inspection.profile import Profile, TimeShare
from autotune.measure.outcome import Effort, Fidelity, IsBeaten, Measurement, Memory, never_beaten
from autotune.results.emit import CONFIG, write_json
from autotune.results.profiling import PROFILE_FILE, ProfiledSession, Profiling
from autotune.search.objective import DEFAULT, find
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import Candidate
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.storage import trials
from autotune.storage.database import open_storage, quiet_optuna
from autotune.storage.identity import Identity, open_study
from autotune.storage.relatives import relatives
from autotune.storage.spool import Spool
from autotune.storage.trials import Record, read_trials, worker_of
from autotune.study.begin import run_study
from autotune.study.builder import build_search
from autotune.study.options import StudyOptions
from autotune.study.resume import choose, entries, options_of, place_of
from autotune.study.seams import Seams

TRIALS = 5


class ComputingMeasurer:
    """A measurer whose numbers depend on the candidate alone."""

    reference_ms = 10.0

    def measure(
        self, candidate: Candidate, effort: Effort, is_beaten: IsBeaten = never_beaten
    ) -> Measurement:
        """Returns numbers computed from the candidate's name; no effort makes them better."""
        del effort, is_beaten
        digits = hashlib.sha256(candidate.key.encode()).digest()
        return _measurement(5.0 + digits[0] / 25, 50.0 + digits[1] / 3)

    def canonical(self, candidate: Candidate) -> Candidate:
        """Returns the candidate itself."""
        return candidate

    def answers_of(self, _: Path) -> Fidelity:
        """Returns right answers: the benchmark is about what is read, not about answers."""
        return Fidelity(error=0.0, cosine=1.0, max_difference=0.0, agreement=None)

    def measure_with(self, candidate: Candidate, effort: Effort, _: ProcessOptions) -> Measurement:
        """Returns the same as without options of a process."""
        return self.measure(candidate, effort)

    def rescale(self, reference_ms: float) -> None:
        """Does nothing: its scale is fixed."""

    def renew(self) -> None:
        """Does nothing: there is no reference."""

    def close(self) -> None:
        """Does nothing: there is no process."""


def _measurement(latency_ms: float, memory_mib: float) -> Measurement:
    ratio = latency_ms / ComputingMeasurer.reference_ms
    return Measurement(
        ratio=Interval(value=ratio, low=ratio, high=ratio),
        latency_ms=latency_ms,
        memory=Memory(
            base_mib=0.0,
            load_peak_mib=0.0,
            run_peak_mib=memory_mib,
            resident_mib=memory_mib,
            anonymous_mib=None,
            growth_mib=0.0,
        ),
        fidelity=Fidelity(error=0.0, cosine=1.0, max_difference=0.0, agreement=1.0),
        p50_ms=latency_ms,
        p90_ms=None,
        p95_ms=None,
        p99_ms=None,
        load_ms=1.0,
        first_run_ms=latency_ms,
        cpu_s=latency_ms / 1e3,
        runs=40,
        turns=20,
        quiet_turns=20,
        contaminated_turns=0,
        steady=True,
        raced=False,
        spent_s={"candidate": 0.1},
        samples=None,
    )


class World:
    """A folder with a finished study, and what is needed to go on with copies of it.

    Args:
        place: An empty folder.

    Attributes:
        sound: The folder of the study.
        model: The description of its model.
        samples: Sound inputs of the model, by name.
    """

    def __init__(self, place: Path) -> None:
        switch_off()
        self.sound = place / "sound"
        self.path = place / "model.onnx"
        onnx.save(lstm(features=4, width=8), self.path)
        machine = hardware()
        for name in ("a relative's processor", machine.cpu):
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
            self._identity = Identity(
                **{n: attributes[n] for n in Identity.__dataclass_fields__ if n in attributes}
            )
            spooled = read_trials(
                optuna.load_study(study_name=studies[-1].study_name, storage=database)
            )
        self.study = studies[-1].study_name
        self.spool_lines = [trials.describe(replace(trial, number=0)) for trial in spooled]

    def _study(self, processor: str) -> None:
        seams = Seams(
            measurer=lambda _: ComputingMeasurer(),
            lock=lambda *_, **__: nullcontext(),
            hardware=lambda: replace(hardware(), cpu=processor),
        )
        options = StudyOptions.of(self.path, trials=TRIALS, space="session", out=self.sound)
        run_study(options, lambda _: None, seams)

    def _write_profile(self) -> None:
        """Writes a made-up profile of the config."""
        node = TimeShare(name="/lstm", operator="LSTM", nodes=1, time_ms=0.5, share=0.5)
        profile = Profile(
            run_ms=1.0,
            profiled_ms=1.5,
            runs=9,
            operators=(node,),
            slowest=(node,),
            overheads=(node,),
            executed=2,
            providers=(node,),
            provider_changes=0,
            waiting_ms=0.1,
            weights_mib=None,
            activations_mib=None,
            arena_mib=None,
        )
        work = Work(
            float_operations=1000,
            int8_operations=0,
            weight_bytes=100,
            boundary_bytes=10,
            traffic_bytes=200,
            by_operator={"LSTM": 1000},
            nodes=2,
            unknown=0,
        )
        peaks = Peaks(float_per_s=1e9, int8_per_s=1e9, bytes_per_s=1e9, moved_bytes=1)
        room = headroom(work, peaks, 1.0)
        session = ProfiledSession(
            name="default", file="model.onnx", profile=profile, work=work, headroom=room
        )
        digest = digest_files([self.sound / CONFIG])
        profiling = Profiling(sessions=(session,), peaks=peaks, config_sha256=digest)
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
            study = open_study(database, place, case, self.path, self._identity, self._facts)
            relatives(database, study.study_name)
            search = build_search(
                ComputingMeasurer(),
                self._space,
                study=study,
                objectives=find(DEFAULT),
                limits=Limits(),
                record=Record(study, worker_of(case), "here"),
                spool=Spool(case, study.study_name),
            )
            search.run(TRIALS + 2, None)
            return read_trials(study)
