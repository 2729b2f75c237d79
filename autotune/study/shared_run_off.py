"""The final comparison of a study that many workers share: one of them does it for all."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import optuna

from autotune.errors import FormatError
from autotune.graph.prepare import Preparer
from autotune.measure.outcome import Measurer
from autotune.results.emit import emit
from autotune.results.result import StudyResult
from autotune.results.setting import Setting
from autotune.results.summary import plain_limits
from autotune.results.verify import verify
from autotune.space.candidate import Candidate
from autotune.storage.clock import Clock
from autotune.storage.faults import is_given_up
from autotune.storage.trials import Record
from autotune.study.progress import OnProgress, Progress

_POLL_S = 2.0
_RESULT = "result"


@dataclass(frozen=True, kw_only=True)
class SharedRunOff:
    """The final comparison, claimed by one worker; the others wait for its result.

    Attributes:
        study: Optuna's study, which keeps the result as an attribute.
        record: Its trials.
        setting: What the study works on.
        preparer: Makes the model files of candidates.
        measurer: Checks what is written to this worker's folder.
        report: Called while this worker waits.
        clock: Waits.
    """

    study: optuna.Study
    record: Record
    setting: Setting
    preparer: Preparer
    measurer: Measurer
    report: OnProgress
    clock: Clock

    def result(self, compare: Callable[[], StudyResult]) -> StudyResult:
        """Returns the result, which is also written to this worker's folder.

        Args:
            compare: Does the final comparison and returns the written result.
        """
        while True:
            recorded = self._recorded()
            if recorded is not None:
                return self._adopt(recorded)
            result = self._hold(compare)
            if result is not None:
                return result
            self.report(Progress(stage="run-off", total=1))
            self.clock.sleep(_POLL_S)

    def _recorded(self) -> StudyResult | None:
        """Returns the result of another worker, by all trials and the same wishes."""
        setting = self.setting
        try:
            recorded = StudyResult.from_json(self.study.user_attrs.get(_RESULT), setting.folder)
        except FormatError:
            return None
        wishes = (len(self.record.trials), setting.prefer, plain_limits(setting.limits))
        same = (recorded.trials, recorded.prefer, recorded.limits) == wishes
        return recorded if same and recorded.is_decided else None

    def _hold(self, compare: Callable[[], StudyResult]) -> StudyResult | None:
        """Returns the result if this worker may compare; None if another worker does."""
        results: list[StudyResult] = []

        def hold(trial: optuna.Trial) -> tuple[float, ...]:
            if self.record.claim_run_off(trial):
                results.append(compare())
                self.study.set_user_attr(_RESULT, results[0].to_json())
            raise optuna.TrialPruned

        optuna.storages.fail_stale_trials(self.study)
        try:
            # a trial has a heartbeat: the claim of a worker that dies is released
            self.study.optimize(hold, n_trials=1)
        except Exception as error:
            # a worker that was suspended is taken for dead; what it has measured counts
            if not results or not is_given_up(error):
                raise
        return results[0] if results else None

    def _adopt(self, result: StudyResult) -> StudyResult:
        """Writes the result of another worker to this worker's folder."""
        candidate = Candidate.of(result.best.candidate)
        result = replace(result, model=self.setting.model.path.resolve())
        result = emit(result, self.preparer.prepare(candidate.graph.to_json()))
        verify(result, self.measurer, self.setting.limits)
        return result
