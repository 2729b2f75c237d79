"""The study of one model of an application, on the inputs that were recorded."""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.applications.options import ApplicationOptions
from autotune.applications.recording import RecordedSession, Shape
from autotune.applications.today import today_parameters
from autotune.deploy.config import CONFIG, TunedConfig
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, load_samples
from autotune.facts.generated import one_sample
from autotune.facts.model import Model
from autotune.graph.prepare import PreparationError, Preparer
from autotune.results.result import FRONT, Member, StudyResult
from autotune.results.writing import CACHE, write
from autotune.space.configuration import Configuration
from autotune.space.parameters import PARAMETERS
from autotune.space.session import FIXED_DIMENSIONS, session_config
from autotune.study.cleaning import STUDIES
from autotune.study.options import StudyOptions
from autotune.study.progress import OnProgress, Progress
from autotune.study.run import run_study

_SAMPLES = 32
# Long calls are sampled: all samples take about this long together.
_SAMPLED_S, _FEWEST_SAMPLES = 2.0, 4
_FEWEST_TRIALS = 2
# The defaults and today's options are the first two: a session that takes time has two more, which
# are those of a provider and of its half precision where there is one.
_FEWEST_OF_BUSY = 4
_BUSY_SHARE = 0.1
_MOST_MEMBERS = 4


@dataclass(frozen=True, kw_only=True)
class OwnMember:
    """A member of a model's front.

    Attributes:
        label: Its trial, such as ``trial 12``.
        model: The file that it opens.
        session: How it is opened.
        member: Its evidence.
    """

    label: str
    model: Path
    session: SessionConfig
    member: Member


@dataclass(frozen=True, kw_only=True)
class OwnStudy:
    """A model's own study.

    Attributes:
        result: Its result.
        preparer: Makes its files.
        members: Its best in the first objective first, the leanest last; the default is none.
        notes: Remarks for the user.
    """

    result: StudyResult
    preparer: Preparer
    members: tuple[OwnMember, ...]
    notes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The folder of the study."""
        return self.result.folder

    def words(self, label: str) -> str:
        """Returns a member in words, with its error; the label for one that has none."""
        own = next((m.member for m in self.members if m.label == label), None)
        return label if own is None else f"{own.words}; error {own.evidence.error:.1g}"

    def write(self, label: str, folder: Path) -> tuple[TunedConfig, Path]:
        """Writes the config of a member with its model; returns it, and the folder of its model.

        Args:
            label: The member's label; any other stands for the default.
            folder: A folder for this alone.
        """
        own = next((m.member for m in self.members if m.label == label), self.result.baseline)
        folder.mkdir(parents=True, exist_ok=True)
        write(replace(self.result, folder=folder, picked=own.trial), self.preparer)
        (folder / FRONT).unlink()  # it stands in the folder of the study
        return TunedConfig.read(folder / CONFIG), folder


def own_study(
    options: ApplicationOptions,
    session: RecordedSession,
    model: Model,
    report: OnProgress,
    *,
    trials: int,
    timeout_s: float | None,
    samples: Sequence[Feed] = (),
) -> OwnStudy:
    """Returns the study of one model, which goes on where an earlier one ended.

    It has no final comparison: its best are compared in the application, once.

    Args:
        options: What the application's study is asked for.
        session: The session with its shapes and inputs.
        model: Its model.
        report: Called as the study goes on.
        trials: How many trials it may take.
        timeout_s: How long it may take; None for no limit.
        samples: Its inputs where it is part of a chain; else those of the recording are taken.

    Raises:
        AutotuneError: nothing can be measured here.
    """
    folder = options.folder / STUDIES
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{session.name}.inputs"
    generated = _write_own_samples(samples, session, model, data, options.seed)
    first = _today_file(session, folder)
    report(Progress(stage="", note=f"{session.name}: its own study, {trials} trials"))
    result = run_study(
        StudyOptions.of(
            model.path,
            trials=trials,
            timeout_s=timeout_s,
            data=data,
            out=folder / f"{session.name}.autotune",
            space=options.space,
            providers=options.providers or None,
            max_error=options.max_error_of(session.name),
            metric=options.metric_of(session.name),
            max_drop=options.max_drop,
            fix={FIXED_DIMENSIONS: "false"},
            first=first,
            seed=options.seed,
            wait=options.wait or None,
        ),
        report,
        compare=False,
    )
    preparer = Preparer(model, result.folder / CACHE, workload=None, signature=result.workload)
    notes = (f"{session.name}: {generated} of its samples are generated",) if generated else ()
    return OwnStudy(
        result=result, preparer=preparer, members=_members(result, preparer), notes=notes
    )


def trials_of(sessions: Sequence[RecordedSession], trials: int) -> Mapping[str, int]:
    """Returns how many trials each session's model has, by its share of the time.

    They may be a few more than `trials`.
    """
    whole = sum(session.seconds for session in sessions) or 1.0
    shares = {session.name: session.seconds / whole for session in sessions}
    return {
        name: max(
            _FEWEST_OF_BUSY if share >= _BUSY_SHARE else _FEWEST_TRIALS, round(trials * share)
        )
        for name, share in shares.items()
    }


def _write_own_samples(
    samples: Sequence[Feed], session: RecordedSession, model: Model, folder: Path, seed: int
) -> int:
    """Writes the samples of a session's study, as many as its time allows.

    Returns how many of them were generated.
    """
    call_s = session.seconds / max(1, session.calls)
    count = min(_SAMPLES, max(_FEWEST_SAMPLES, round(_SAMPLED_S / max(1e-9, call_s))))
    if not samples:
        shapes = [shape for shape in session.shapes.values() if shape.calls]
        return write_samples(shapes, model, folder, seed, count)
    _make_empty(folder)
    places = np.unique(np.linspace(0, len(samples) - 1, count).astype(int))
    for number, place in enumerate(places):
        _write_sample(folder / f"{number:04d}.npz", samples[place])
    return 0


def _make_empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npz"):
        old.unlink()


def write_samples(
    chosen: Sequence[Shape], model: Model, folder: Path, seed: int, most: int = _SAMPLES
) -> int:
    """Writes samples of shapes to a folder, a file each; returns how many were generated.

    There are as many of each shape as its calls ask for, in the order of their size, so that any
    few taken evenly from them are a fair choice. The largest is there however rare it is, because
    it decides on the memory.
    """
    _make_empty(folder)
    shapes = sorted(
        chosen,
        key=lambda shape: sum(int(np.prod(item.shape)) for item in shape.inputs),
    )
    ends = np.cumsum([shape.calls for shape in shapes])
    count = min(most, int(ends[-1]))
    places = np.searchsorted(ends, (np.arange(count) + 0.5) * ends[-1] / count).tolist()
    if places[-1] < len(shapes) - 1:
        places.append(len(shapes) - 1)
    generated, used = 0, dict.fromkeys(range(len(shapes)), 0)
    for number, place in enumerate(places):
        shape = shapes[place]
        turn, used[place] = used[place], used[place] + 1
        files = shape.files
        kept = load_samples(files[turn % len(files)]) if files else []
        feed: Feed | None = next(iter(kept), None)
        if feed is None:
            sizes = {item.name: item.shape for item in shape.inputs}
            feed = one_sample(model, sizes, seed + turn)
            generated += 1
        _write_sample(folder / f"{number:04d}.npz", feed)
    return generated


def _write_sample(path: Path, feed: Feed) -> None:
    """Writes an .npz file; ``numpy.savez`` refuses an array whose name is ``file``."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in feed.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)


def _today_file(session: RecordedSession, folder: Path) -> tuple[Path, ...]:
    """Returns a file with the application's own options, which the study measures first."""
    values = {
        name: value
        for name, value in today_parameters(session.opened.passed).items()
        if name in PARAMETERS and PARAMETERS[name].problem(value) is None
    }
    if not values:
        return ()
    path = folder / f"{session.name}.today.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return (path,)


def _members(result: StudyResult, preparer: Preparer) -> tuple[OwnMember, ...]:
    """Returns members that keep the limits: the selected one, then others, the leanest last."""
    admitted = [m for m in result.members[1:] if m.admitted]
    admitted.sort(key=lambda member: member.trial != result.picked)
    leanest = min(admitted[1:], key=lambda m: m.evidence.peak_memory_mib, default=None)
    chosen = [m for m in admitted if m is not leanest][: _MOST_MEMBERS - 1]
    members = []
    for member in [*chosen, *([leanest] if leanest is not None else [])]:
        configuration = Configuration.of(member.configuration)
        try:
            prepared = preparer.prepare(configuration.graph.to_json())
        except PreparationError:
            continue
        session = session_config(
            configuration.session.to_json(), result.dimensions_of(member), result.breaking
        )
        members.append(
            OwnMember(
                label=f"trial {member.trial}", model=prepared.path, session=session, member=member
            )
        )
    return tuple(members)
