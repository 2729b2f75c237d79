"""Who makes the final comparison of a study that several workers share, and what came of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import optuna

from autotune.deploy.records import Json
from autotune.storage.database import Clock

T = TypeVar("T")

_HOLDER, _RESULT = "final_comparison", "result"
# A worker shows so often that it is alive, and is taken for dead after so long without a sign.
_BEAT_S = 10.0
_GRACE_S = 180.0
# Of workers that begin at once, the last one to write decides for all.
_LAST_WORD_S = 1.0


@dataclass
class SharedComparison:
    """The final comparison of a shared study, as one worker sees it."""

    study: optuna.Study
    worker: str
    clock: Clock
    _is_held: bool = field(default=False, init=False)
    _beats: int = field(default=0, init=False)
    _beaten_s: float = field(default=0.0, init=False)
    _seen: object = field(default=None, init=False)
    _seen_s: float = field(default=0.0, init=False)

    def begin(self) -> bool:
        """Takes the final comparison; returns whether no other worker makes it."""
        holder = self.study.user_attrs.get(_HOLDER)
        now_s = self.clock.monotonic()
        if holder is not None:
            if holder != self._seen:
                self._seen, self._seen_s = holder, now_s
            if now_s - self._seen_s < _GRACE_S:
                return False
        self._write()
        self.clock.sleep(_LAST_WORD_S)
        holder = self.study.user_attrs.get(_HOLDER)
        self._is_held = isinstance(holder, dict) and holder.get("worker") == self.worker
        return self._is_held

    def beating(self, report: Callable[[T], None]) -> Callable[[T], None]:
        """Returns a report of progress that also shows the other workers that this one is alive."""

        def beat(progress: T) -> None:
            if self._is_held and self.clock.monotonic() - self._beaten_s >= _BEAT_S:
                self._write()
            report(progress)

        return beat

    def end(self, result: Json | None) -> None:
        """Gives the final comparison up, or keeps its result for the other workers."""
        if result is not None:
            self.study.set_user_attr(_RESULT, result)
        self._is_held = False
        self.study.set_user_attr(_HOLDER, None)

    @property
    def result(self) -> object:
        """What a worker has kept; None where none has."""
        return self.study.user_attrs.get(_RESULT)

    def _write(self) -> None:
        self._beats += 1
        self._beaten_s = self.clock.monotonic()
        self.study.set_user_attr(_HOLDER, {"worker": self.worker, "beats": self._beats})
