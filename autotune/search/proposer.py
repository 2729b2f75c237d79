"""Which candidate next, by what the trials so far say of all the others.

Each objective is modelled (:mod:`autotune.search.effects`), and so are the answers' error and
whether a candidate runs at all. Next comes the candidate with the largest expected improvement of
the front's hypervolume in logarithms, where a tenth less of each objective counts the same. The
hypervolume is taken as the mean of scalarisations over random directions (Zhang and Golovin, Random
Hypervolume Scalarizations, ICML 2020), which holds for any number of objectives.
"""

import itertools
import math
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.measure.outcome import Failure
from autotune.search.effects import START, Coding, Floats, Mean, Model, Scales
from autotune.search.objective import OBJECTIVES, Objective
from autotune.search.trial import Limits, Trial
from autotune.space.candidate import BASELINE, Candidate
from autotune.space.space import Space

# How many candidates are drawn at random to look at, beside those around the front; and how often
# those around the best of them follow.
_RANDOM = 150
_ROUNDS = 3
_CENTRES = 4
_DRAWS = 16
_DIRECTIONS = 16
# The hypervolume reaches from the front to a little beyond the default, or the front's own ends
# where they are worse in one objective, but not far: as far as twice the default, a third of the
# trials went to what few would use.
_MARGIN = math.log(1.1)
_FARTHEST = math.log(1.25)
# A gain is relative to the hypervolume, or to one that reaches so far in each objective.
_LEAST_VOLUME = math.log(1.5)
# The ends of the front count by themselves as well: most users take the fastest.
_ENDS = 0.3
_LEAST_EXCESS, _LARGEST_EXCESS = 1e-3, 30.0
# Whether a candidate runs is 0 or 1, and one value alone may decide it. Errors span decades.
_YES_OR_NO = Scales(
    single=0.5,
    pair_graph=0.1,
    pair_mixed=0.05,
    pair_session=0.05,
    graph_half=0.3,
    noise=0.001,
)
_STARTS = {
    "made": _YES_OR_NO,
    "valid": _YES_OR_NO,
    "error": Scales(
        single=4.0,
        pair_graph=1.0,
        pair_mixed=0.1,
        pair_session=0.01,
        graph_half=0.5,
        noise=0.001,
    ),
}
# Models look at so many trials; what more of them would add is small.
_MOST_TRIALS = 400
# The scales of a model are chosen anew whenever there are so many times more trials.
_ANEW = 1.1


Prior = Mapping[str, Mean]
"""By objective, what relatives of a study let expect of rows of its space."""


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """What to measure next.

    Attributes:
        candidate: It.
        gain: Expected improvement of the front's hypervolume, relative to what it is.
    """

    candidate: Candidate
    gain: float


class Proposer:
    """Proposes candidates of a space.

    Args:
        space: What may be tried.
        objectives: What is made small.
        limits: What a configuration must keep.
        seed: Of the candidates that are looked at.
        prior: What relatives of the study let expect.
    """

    def __init__(
        self,
        space: Space,
        objectives: Sequence[Objective],
        limits: Limits,
        seed: int,
        prior: Prior | None = None,
    ) -> None:
        self._space = space
        self._objectives = objectives
        self._limits = limits
        self._random = np.random.default_rng(seed)
        self._prior = prior or {}
        self._coding = Coding(space)
        self._scales: dict[str, Scales] = {}
        self._chosen_at: dict[str, int] = {}
        self._neighbours: dict[Candidate, list[Candidate]] = {}

    def propose(self, trials: Sequence[Trial], taken: Container[Candidate]) -> Proposal | None:
        """Returns what to measure next; None where nothing is left that was not taken.

        Args:
            trials: What was measured, the baseline among it.
            taken: Candidates that are known already.
        """
        outlook = self._outlook(trials)
        best: Proposal | None = None
        seen: set[Candidate] = set()
        around = [*self._near(outlook.front), *self._crossed(outlook.front), *self._drawn()]
        for _ in range(_ROUNDS):
            pool = [c for c in dict.fromkeys(around) if c not in taken and c not in seen]
            if not pool:
                break
            seen.update(pool)
            gains = outlook.gains(self._coding.rows(pool))
            order = np.argsort(-gains)[:_CENTRES]
            if best is None or gains[order[0]] > best.gain:
                best = Proposal(candidate=pool[order[0]], gain=float(gains[order[0]]))
            around = self._near([pool[i] for i in order])
        if best is None:
            left = next((c for c in self._space.candidates or () if c not in taken), None)
            best = None if left is None else Proposal(candidate=left, gain=0.0)
        return best

    def simpler(self, trials: Sequence[Trial], candidate: Candidate) -> Candidate:
        """Returns `candidate` without the values that are worth nothing, one after another.

        One with values that the space does not know stays as it is: nothing is known of them.

        Args:
            trials: What was measured, the baseline among it.
            candidate: What was measured.
        """
        if not self._coding.covers(candidate):
            return candidate
        outlook = self._outlook(trials)
        for _ in candidate.values:
            values = candidate.to_json()
            fewer = [
                self._space.nearest({n: v for n, v in values.items() if n != name})
                for name in values
            ]
            fewer = [other for other in fewer if len(other.values) < len(candidate.values)]
            if not fewer:
                break
            losses = outlook.losses(self._coding.rows([candidate, *fewer]))
            least = int(np.argmin(losses))
            if losses[least] > 1.0:
                break
            candidate = fewer[least]
        return candidate

    def _near(self, centres: Sequence[Candidate]) -> list[Candidate]:
        """Returns the neighbours of the centres."""
        for centre in centres:
            if centre not in self._neighbours:
                self._neighbours[centre] = self._space.neighbours(centre)
        return [other for centre in centres for other in self._neighbours[centre]]

    def _crossed(self, front: Sequence[Candidate]) -> list[Candidate]:
        """Returns each member's graph half with each other's session half."""
        return [
            self._space.nearest({**one.session.to_json(), **other.graph.to_json()})
            for one, other in itertools.permutations(front, 2)
        ]

    def _drawn(self) -> list[Candidate]:
        everything = self._space.candidates
        if everything is not None:
            count = min(_RANDOM, len(everything))
            chosen = self._random.choice(len(everything), count, replace=False)
            return [everything[i] for i in chosen]
        return [
            self._space.candidate(lambda p: p.values[self._random.integers(len(p.values))])
            for _ in range(_RANDOM)
        ]

    def _outlook(self, trials: Sequence[Trial]) -> "_Outlook":
        # what a user asked for may have values that the space does not know
        trials = self._telling([t for t in trials if self._coding.covers(t.candidate)])
        base = next(trial.measurement for trial in trials if trial.candidate == BASELINE)
        assert base is not None
        measured = [(t, m) for t in trials if (m := t.measurement) is not None]
        candidates = [trial.candidate for trial, _ in measured]
        rows = self._coding.rows(candidates)

        def log_of(objective: Objective) -> Model:
            scale = objective.of(base) or 1.0
            values = [math.log((objective.of(m) or scale) / scale) for _, m in measured]
            return self._model(objective.name, rows, values)

        targets = [log_of(objective) for objective in self._objectives]
        tolerances = [math.log1p(objective.tolerance) for objective in self._objectives]
        limited = {
            "latency_ms": (self._limits.max_latency_ms, base.latency_ms),
            "peak_memory_mib": (self._limits.max_memory_mib, base.peak_memory_mib),
        }
        hurdles = [
            _Hurdle(model=log_of(OBJECTIVES[name]), limit=math.log(limit / scale))
            for name, (limit, scale) in limited.items()
            if limit is not None
        ]
        hurdles += self._hurdles_of_failures(trials)
        admitted = [max(self._violated(trial).values()) <= 0 for trial, _ in measured]
        return _Outlook(targets, tolerances, hurdles, rows, candidates, np.asarray(admitted))

    def _hurdles_of_failures(self, trials: Sequence[Trial]) -> Iterator["_Hurdle"]:
        """Gives whether a model can be made, whether it runs, and whether its answers are right.

        The first two are 0 where it is so and 1 where it is not: below a half is expected to be so.
        """
        rows = self._coding.rows([trial.candidate for trial in trials])
        violated = [self._violated(trial) for trial in trials]
        excess = np.asarray([v["error"] for v in violated])
        wrong = excess > 0
        unmade = np.asarray([_is_unmade(trial) for trial in trials])
        failed = np.asarray([v["valid"] > 0 for v in violated]) & ~unmade
        failed |= wrong & self._is_broken(rows, wrong)
        if unmade.any():
            # what cannot be prepared cannot be in any session
            mask = self._coding.is_graph
            yield _Hurdle(model=self._model("made", rows * mask, 1.0 * unmade), limit=0.5, of=mask)
        if failed.any():
            yield _Hurdle(model=self._model("valid", rows, 1.0 * failed), limit=0.5)
        ran = ~unmade & ~failed
        if wrong[ran].any():
            # answers known of a precision are known in every session, storage and pre-pass
            mask = self._coding.is_of_answers
            logs = np.log(np.clip(1 + excess, _LEAST_EXCESS, _LARGEST_EXCESS))
            base_log = logs[next(i for i, t in enumerate(trials) if t.candidate == BASELINE)]
            model = self._model("error", (rows * mask)[ran], (logs - base_log)[ran])
            yield _Hurdle(model=model, limit=-base_log, of=mask)

    def _is_broken(self, rows: Floats, wrong: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Returns whether a model is one that is wrong without any change of precision.

        Then it is the fault of what else was done to it, with every precision.
        """
        mask = self._coding.is_of_answers
        rest = rows * (self._coding.is_graph & ~mask)
        at_fault = wrong & rest.any(axis=1) & ~(rows * mask).any(axis=1)
        broken = {row.tobytes() for row in rest[at_fault]}
        return np.asarray([row.tobytes() in broken for row in rest])

    def _telling(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Returns the trials that the models look at: all, up to :data:`_MOST_TRIALS`.

        Of more, the baseline, the best in each objective, the latest, what failed or was wrong,
        and others evenly from the rest: the cost of a model is the cube of their number.
        """
        if len(trials) <= _MOST_TRIALS:
            return trials
        chosen = {i for i, trial in enumerate(trials) if trial.candidate == BASELINE}
        for objective in self._objectives:
            values = [(objective.of(t.measurement) if t.measurement else None) for t in trials]
            known = [(value, i) for i, value in enumerate(values) if value is not None]
            chosen |= {i for _, i in sorted(known)[: _MOST_TRIALS // 8]}
        wrong = [i for i, t in enumerate(trials) if max(self._violated(t).values()) > 0]
        chosen |= set(wrong[-_MOST_TRIALS // 4 :])
        chosen |= set(range(len(trials) - _MOST_TRIALS // 4, len(trials)))
        rest = [i for i in range(len(trials)) if i not in chosen]
        left = _MOST_TRIALS - len(chosen)
        chosen |= {rest[i * len(rest) // left] for i in range(left)}
        return [trials[i] for i in sorted(chosen)]

    def _violated(self, trial: Trial) -> dict[str, float]:
        return self._limits.violations(trial.outcome)

    def _model(self, name: str, rows: Floats, values: Sequence[float] | Floats) -> Model:
        count = len(values)
        anew = count >= _ANEW * self._chosen_at.get(name, 0)
        model = Model(
            self._coding,
            rows,
            np.asarray(values, dtype=np.float64),
            start=_STARTS.get(name, START),
            scales=self._scales.get(name),
            sweeps=1 if anew else 0,
            mean=self._prior.get(name),
        )
        if anew:
            self._chosen_at[name] = count
            self._scales[name] = model.scales
        return model


def _is_unmade(trial: Trial) -> bool:
    return isinstance(trial.outcome, Failure) and trial.outcome.phase == "prepare"


@dataclass(frozen=True, kw_only=True)
class _Hurdle:
    """Something that must stay below a limit.

    Attributes:
        model: What is known of it.
        limit: The limit, as the model counts.
        of: The columns that it depends on; 1 for all.
    """

    model: Model
    limit: float
    of: NDArray[np.bool_] | int = 1

    def shares_cleared(self, rows: Floats) -> Floats:
        """Returns how likely each row is to stay below."""
        mean, deviation = self.model.predict(rows * self.of)
        deviations = (self.limit - mean) / deviation
        found: Floats = np.asarray([0.5 * math.erfc(-d / math.sqrt(2)) for d in deviations])
        return found


class _Outlook:
    """What the trials so far say of candidates that were not measured.

    Args:
        targets: A model for each objective.
        tolerances: By how much the logarithm of each may grow before it is a loss.
        hurdles: What must stay below a limit.
        rows: Of what was measured.
        candidates: Likewise.
        admitted: Which of them keep all limits.
    """

    def __init__(
        self,
        targets: Sequence[Model],
        tolerances: Sequence[float],
        hurdles: Sequence[_Hurdle],
        rows: Floats,
        candidates: Sequence[Candidate],
        admitted: NDArray[np.bool_],
    ) -> None:
        self._targets = targets
        self._tolerances = np.asarray(tolerances)
        self._hurdles = hurdles
        # the model's means, not the numbers themselves: the luckiest of them promises too much
        means = np.stack([target.predict(rows)[0] for target in targets], axis=1)[admitted]
        kept = [c for c, keeps in zip(candidates, admitted, strict=True) if keeps]
        best = [i for i, mine in enumerate(means) if not (means < mine).all(axis=1).any()]
        self.front = [kept[i] for i in best]
        values = means[best]
        worst = values.max(axis=0, initial=0.0)
        self._reference = np.minimum(worst, _FARTHEST) + _MARGIN
        count = len(targets)
        fixed = np.random.default_rng(0)
        self._draws = fixed.normal(size=(_DRAWS, 1, count))
        towards = np.abs(fixed.normal(size=(_DIRECTIONS, count)))
        self._directions = towards / np.linalg.norm(towards, axis=1, keepdims=True)
        self._best = self._scalarised(values).max(axis=0, initial=0.0)
        self._ends = values.min(axis=0, initial=0.0)
        self._volume = max(float((self._best**count).mean()), _LEAST_VOLUME**count)

    def gains(self, rows: Floats) -> Floats:
        """Returns the expected relative improvement of the hypervolume by each row."""
        told = [target.predict(rows) for target in self._targets]
        means = np.stack([mean for mean, _ in told], axis=1)
        deviations = np.stack([deviation for _, deviation in told], axis=1)
        drawn = means + deviations * self._draws
        power = drawn.shape[-1]
        volume = np.maximum(self._scalarised(drawn), self._best) ** power - self._best**power
        gains = volume.mean(axis=-1) / self._volume
        gains += _ENDS * np.maximum(self._ends - drawn, 0.0).sum(axis=-1)
        expected: Floats = gains.mean(axis=0)
        for hurdle in self._hurdles:
            expected *= hurdle.shares_cleared(rows)
        return expected

    def losses(self, rows: Floats) -> Floats:
        """Returns how much worse all rows but the first are than it, in tolerances.

        Of what does not clear the hurdles any more it is infinite.
        """
        means = np.stack([target.predict(rows)[0] for target in self._targets], axis=1)
        found: Floats = ((means[1:] - means[0]) / self._tolerances).max(axis=1)
        for hurdle in self._hurdles:
            found[hurdle.shares_cleared(rows[1:]) < 0.5] = np.inf
        return found

    def _scalarised(self, values: Floats) -> Floats:
        """Returns how far values reach from the reference in each direction; [..., directions]."""
        reach = np.maximum(self._reference - values, 0.0)
        # objective by objective: numpy is slow along a short last axis
        found: Floats = reach[..., 0, None] / self._directions[:, 0]
        for i in range(1, reach.shape[-1]):
            np.minimum(found, reach[..., i, None] / self._directions[:, i], out=found)
        return found
