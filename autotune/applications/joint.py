"""The search over all sessions of an application in one process.

Which member of each model's front is opened, with how many threads, spinning, arena and memory
pattern, or with one pool of threads for all.
"""

import hashlib
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import optuna

from autotune import __version__
from autotune.applications.replay import Arrangement, Opening, Played, Replays
from autotune.applications.schedule import Schedule
from autotune.deploy.cpu import cpu_model, usable_cores
from autotune.deploy.options import Value
from autotune.deploy.records import Text, from_plain, to_plain
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import contents
from autotune.facts.runtime import runtime

TODAY = "today"
"""The name of a session as the application opens it."""

OWN_BESTS = ("each model's own best", "own best without spinning")
"""Points that each search begins with."""

# A replay that takes so much longer than today's is not repeated.
_HOPELESS = 1.5
# After so many points that are known already, one is drawn at random.
_MOST_REPEATED = 10
# Where the time is up, so many points are tried until one can be measured.
_FEWEST_TRIED = 3
# As many points are counted one by one.
_MANY = 1000
# Attributes of Optuna's trials.
_TRIAL, _DIGEST = "trial", "arrangement"
_SPINNING = "session.intra_op.allow_spinning"
_AS_IS = "as it is"
_SHARED_ARENA = SessionConfig(
    entries={"session.use_env_allocators": "1"}, env_allocator={"arena_extend_strategy": 1}
)

Choices = Mapping[str, Value]
"""A point of the joint search: for each session a member and its changes, and the pool."""


@dataclass(frozen=True, kw_only=True)
class JointSession:
    """A session in the joint search.

    Attributes:
        name: Its name.
        members: What can be opened in its place by label, :data:`TODAY` first.
        least_threads: The fewest threads with which it works.
        count: How many of it are open at one time.
        is_forked: Whether a fork of the process that opened it calls it, which has none of its
            threads: their numbers stay what the application chose.
    """

    name: str
    members: Mapping[str, Opening]
    least_threads: int = 1
    count: int = 1
    is_forked: bool = False


@dataclass(frozen=True, kw_only=True)
class JointTrial:
    """A point that was measured.

    Attributes:
        label: What it is, where it has a name.
        choices: The point.
        played: Its measurement; None where it failed.
        failure: Why it failed.
    """

    label: Text
    choices: Mapping[Text, Value]
    played: Played | None
    failure: Text = ""

    @property
    def numbers(self) -> Played:
        """The measurement of a point that did not fail."""
        assert self.played is not None
        return self.played

    @property
    def costs(self) -> tuple[float, float, float]:
        """Time over today's, peak and held memory in MiB, of a point that did not fail."""
        return self.numbers.ratio, self.numbers.peak_mib, self.numbers.held_mib


@dataclass(kw_only=True)
class JointSearch:
    """Searches arrangements of all sessions.

    Attributes:
        parts: The sessions.
        cores: Cores that this process may use.
        seed: Random seed.
        turns: How many replays each has.
        trials: What was measured.
    """

    parts: Sequence[JointSession]
    cores: int
    seed: int
    turns: int = 2
    trials: list[JointTrial] = field(default_factory=list)

    def run(
        self,
        measurer: Replays,
        count: int,
        on_trial: Callable[[int, JointTrial], None],
        study: optuna.Study,
        timeout_s: float | None = None,
    ) -> None:
        """Measures `count` different arrangements beside today's.

        Args:
            measurer: Measures them.
            count: How many, with those that an earlier run measured.
            on_trial: Called after each.
            study: Keeps them; what an earlier run measured is taken from there.
            timeout_s: No new point is measured after this time, once one can be compared at the
                end or a few have failed; None for no limit.
        """
        until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        study.sampler = sampler_of(self.seed, count)
        known = {digest(self.arrangement({})): _unchanged(measurer)}
        for trial in study.trials:
            if _DIGEST in trial.user_attrs and self.is_point(trial.params):
                key = trial.user_attrs[_DIGEST]
                known[key] = _kept(trial)
                self.trials.append(known[key])
        labels = self._enqueue_first(study)
        random, repeated = Random(self.seed), 0
        count = min(count, self._different() - 1)  # today's is not measured beside itself

        def objective(trial: optuna.Trial) -> tuple[float, float, float]:
            nonlocal repeated
            choices = self._suggest(trial)
            arrangement = self.arrangement(choices)
            key = digest(arrangement)
            if key in known:
                repeated += 1
                if repeated % _MOST_REPEATED == 0:  # the sampler is content with what it knows
                    drawn = {name: random.choice(list(v)) for name, v in self.space().items()}
                    study.enqueue_trial(drawn)
                raise optuna.TrialPruned
            played = measurer.measure(arrangement, self.turns, _HOPELESS)
            failure = played if isinstance(played, str) else ""
            own = None if isinstance(played, str) else played
            known[key] = JointTrial(
                label=labels.get(key, ""), choices=choices, played=own, failure=failure
            )
            self.trials.append(known[key])
            trial.set_user_attr(_TRIAL, to_plain(known[key]))
            trial.set_user_attr(_DIGEST, key)
            on_trial(len(self.trials), known[key])
            if own is None:
                raise optuna.TrialPruned
            return own.ratio, max(1.0, own.peak_mib), max(1.0, own.held_mib)

        def is_over() -> bool:
            has_some = any(own.played for own in self.trials) or len(self.trials) >= _FEWEST_TRIED
            is_late = has_some and time.monotonic() >= until_s
            return is_late or len(self.trials) >= count or repeated > _MOST_REPEATED * count

        def stop(study: optuna.Study, _: object) -> None:
            if is_over():
                study.stop()

        if not is_over():
            study.optimize(objective, callbacks=[stop])

    def _enqueue_first(self, study: optuna.Study) -> dict[str, str]:
        """Enqueues the points that are measured first; returns their names by their digests."""
        unchanged = {name: values[0] for name, values in self.space().items()}
        labels: dict[str, str] = {}
        for label, choices in self.starting_points().items():
            # what is left open would be drawn; of equal points the first gives its name
            study.enqueue_trial({**unchanged, **choices}, skip_if_exists=True)
            labels.setdefault(digest(self.arrangement(choices)), label)
        return labels

    def starting_points(self) -> dict[str, Choices]:
        """Returns the points that are measured first, by their names."""
        best = {f"{part.name}.member": _label(part, 1) for part in self.parts}
        leanest = {f"{part.name}.member": _label(part, -1) for part in self.parts}
        quiet = {f"{part.name}.spinning": "off" for part in self.parts}
        # a pattern keeps a block for each shape, on top of what the arena holds already
        shared = {f"{part.name}.arena": "shared" for part in self.parts}
        lean = shared | {f"{part.name}.pattern": "off" for part in self.parts} | quiet
        points: dict[str, Choices] = {
            OWN_BESTS[0]: best,
            OWN_BESTS[1]: best | quiet,
            "own best in one arena": best | lean,
            "as it is, without spinning": quiet,
            "each model's leanest": leanest,
            "leanest in one arena": leanest | lean,
        }
        if self._may_pool and self.cores > 1:
            points["own best on one pool"] = best | {"pool": self.cores}
        return points

    @property
    def size(self) -> int:
        """How many points there are."""
        return math.prod(len(values) for values in self.space().values())

    def _different(self) -> int:
        """Returns how many different arrangements there are; of many points, the points."""
        if self.size > _MANY:
            return self.size
        names, values = zip(*self.space().items(), strict=True)
        points = (dict(zip(names, point, strict=True)) for point in itertools.product(*values))
        return len({digest(self.arrangement(point)) for point in points})

    @property
    def _may_pool(self) -> bool:
        """Whether there are sessions that can share a pool of threads."""
        return sum(part.count for part in self.parts) > 1 and not any(
            part.is_forked for part in self.parts
        )

    def _suggest(self, trial: optuna.Trial) -> dict[str, Value]:
        return {
            name: trial.suggest_categorical(name, values) for name, values in self.space().items()
        }

    def is_point(self, choices: Choices) -> bool:
        """Returns whether choices are of this search: members may have come and gone."""
        space = self.space()
        return choices.keys() == space.keys() and all(
            name in space and value in space[name] for name, value in choices.items()
        )

    def space(self) -> dict[str, Sequence[Any]]:
        """Returns the values of each choice; the first of them changes nothing."""
        space: dict[str, Sequence[Any]] = {}
        if self._may_pool:
            space["pool"] = [0, *(count for count in self._threads() if count > 1)]
        for part in self.parts:
            space |= self._values(part)
        return space

    def _threads(self) -> list[int]:
        """Returns the powers of two up to the number of cores, and that number."""
        powers = {2**power for power in range(self.cores.bit_length()) if 2**power <= self.cores}
        return sorted(powers | {self.cores})

    def _values(self, part: JointSession) -> Mapping[str, Sequence[Any]]:
        threads = [
            count for count in self._threads() if count >= part.least_threads and not part.is_forked
        ]
        return {
            f"{part.name}.member": list(part.members),
            f"{part.name}.threads": [0, *threads],
            f"{part.name}.spinning": [_AS_IS, "off"],
            f"{part.name}.arena": [_AS_IS, "on", "off", "shared"],
            f"{part.name}.pattern": [_AS_IS, "off"],
        }

    def arrangement(self, choices: Choices) -> Arrangement:
        """Returns the sessions that a point stands for."""
        openings = {}
        pool = int(choices.get("pool", 0)) or None
        for part in self.parts:
            opening = part.members[str(choices.get(f"{part.name}.member", TODAY))]
            own = {
                name: choices.get(f"{part.name}.{name}")
                for name in ("threads", "spinning", "arena", "pattern")
            }
            if pool:  # its threads spin as ONNX Runtime has it, and a session has none of its own
                own["threads"] = own["spinning"] = None
            openings[part.name] = replace(opening, session=_changed(opening.session, own))
        return Arrangement(openings=openings, pool_threads=pool, choices=choices)


def _changed(session: SessionConfig, own: Mapping[str, Any]) -> SessionConfig:
    """Returns a session with the changes of a point."""
    options, entries = dict(session.options), dict(session.entries)
    runs, allocator = dict(session.run_entries), dict(session.env_allocator)
    if own["threads"]:
        options["intra_op_num_threads"] = own["threads"]
    if own["spinning"] == "off":
        entries[_SPINNING] = "0"
        entries.pop("session.force_spinning_stop", None)
    if own["pattern"] == "off":
        options["enable_mem_pattern"] = False
    if own["arena"] in ("on", "off", "shared"):
        options.pop("enable_cpu_mem_arena", None)
        entries.pop("session.use_env_allocators", None)
        runs, allocator = {}, {}
        if own["arena"] == "off":
            options["enable_cpu_mem_arena"] = False
            entries.pop("session.use_device_allocator_for_initializers", None)
        elif own["arena"] == "shared":
            entries |= _SHARED_ARENA.entries
            allocator = dict(_SHARED_ARENA.env_allocator)
    return replace(
        session, options=options, entries=entries, run_entries=runs, env_allocator=allocator
    )


def _label(part: JointSession, place: int) -> str:
    """Returns the label of a member; today's where there is no other."""
    labels = list(part.members)
    return labels[place] if len(labels) > 1 else labels[0]


def _unchanged(measurer: Replays) -> JointTrial:
    """Returns today's sessions beside themselves."""
    own = measurer.baseline
    played = Played(
        ratios=(1.0,),
        seconds=own.seconds,
        cpu_s=own.cpu_s,
        peak_mib=own.peak_mib,
        held_mib=own.held_mib,
        load_s=0.0,
    )
    return JointTrial(label=TODAY, choices={}, played=played)


def sampler_of(seed: int, count: int) -> optuna.samplers.BaseSampler:
    """Returns Optuna's sampler for a search of so many points."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=seed, multivariate=True, group=True, n_startup_trials=max(4, count // 4)
        )


def joint_study(
    storage: optuna.storages.BaseStorage | None, search: JointSearch, conditions: str
) -> optuna.Study:
    """Returns the study that keeps what a search measures under these conditions.

    A parameter of Optuna's has the same values in a whole study, and members may come and go when a
    model's own study goes on: there is a study for each set of values, and a new one takes over the
    trials of the others that are points of it.

    Args:
        storage: Where it lies; None keeps it in memory.
        search: The search.
        conditions: A digest of what is replayed, and where.
    """
    space = {name: list(values) for name, values in search.space().items()}
    names = [] if storage is None else optuna.get_all_study_names(storage)
    name = f"{conditions[:32]}-{_sha256(space)[:32]}"
    study = optuna.create_study(
        storage=storage, study_name=name, directions=["minimize"] * 3, load_if_exists=True
    )
    if storage is None or name in names:
        return study
    distributions: dict[str, Any] = {
        key: optuna.distributions.CategoricalDistribution(values) for key, values in space.items()
    }
    taken = set()
    for other in names:
        known = optuna.load_study(study_name=other, storage=storage).trials
        for trial in known if other.startswith(conditions[:32]) else ():
            key = trial.user_attrs.get(_DIGEST)
            if key and key not in taken and search.is_point(trial.params):
                taken.add(key)
                study.add_trial(
                    optuna.create_trial(
                        state=trial.state,
                        values=trial.values,
                        params=trial.params,
                        distributions=distributions,
                        user_attrs=trial.user_attrs,
                    )
                )
    return study


def digest(arrangement: Arrangement) -> str:
    """Returns a text that equal arrangements share, whatever point they stand for."""
    openings = {name: opening.to_json() for name, opening in arrangement.openings.items()}
    return _sha256([openings, arrangement.pool_threads])


def conditions_of(schedule: Schedule, today: Arrangement) -> str:
    """Returns a digest of all on which a measurement depends beside its own arrangement."""
    feeds = hashlib.sha256()
    for part in contents(schedule.feeds):
        feeds.update(part)
    facts = [
        [(session.name, session.opened.sha256) for session in schedule.sessions],
        [asdict(call) for call in schedule.calls],
        feeds.hexdigest(),
        digest(today),
        [__version__, runtime().version, cpu_model(), usable_cores()],
    ]
    return _sha256(facts)


def _sha256(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _kept(trial: optuna.trial.FrozenTrial) -> JointTrial:
    """Returns a point that an earlier run measured.

    Raises:
        FormatError: another version kept it.
    """
    return from_plain(JointTrial, trial.user_attrs[_TRIAL])


def choices_in_words(choices: Choices, names: Iterable[str]) -> str:
    """Returns a point in words: what it says of the sessions of these names."""
    pool = choices.get("pool")
    words = [f"one pool of {pool} threads"] if pool else []
    for name in names:
        if own := session_in_words(choices, name):
            words.append(f"{name}: {own}")
    return "; ".join(words) or "as it is"


def session_in_words(choices: Choices, session: str) -> str:
    """Returns what a point changes of one session; empty where nothing."""
    words = []
    member = choices.get(f"{session}.member", TODAY)
    if member != TODAY:
        words.append(str(member))
    if not choices.get("pool"):
        if threads := choices.get(f"{session}.threads"):
            words.append(f"{threads} thread{'s' if threads != 1 else ''}")
        if choices.get(f"{session}.spinning") == "off":
            words.append("no spinning")
    if choices.get(f"{session}.pattern") == "off":
        words.append("no memory pattern")
    arena = choices.get(f"{session}.arena", _AS_IS)
    if arena != _AS_IS:
        words.append({"off": "no arena", "on": "arena"}.get(str(arena), f"{arena} arena"))
    return ", ".join(words)
