"""The workers of a study: what they measure counts together, and each waits for the others.

Where no other worker takes part, nothing is ever waited for.
"""

from dataclasses import dataclass

import optuna
from optuna.storages import fail_stale_trials
from optuna.trial import TrialState

from autotune.search.record import Record, release
from autotune.storage.database import Clock

# How often a worker without a trial looks whether the others are done.
_POLL_S = 1.0


@dataclass
class Workers:
    """All workers of a study, as one of them sees them.

    Attributes:
        record: What the study holds; it is read anew here.
    """

    study: optuna.Study
    record: Record
    clock: Clock

    def have_spent(self, budget: int) -> bool:
        """Returns whether they have measured so many trials, or the default failed.

        The last trials of others may be released yet, so they are waited for.
        """
        record = self.record
        record.read(self.study)
        while len(record.trials) < budget <= len(record.trials) + len(record.claimed):
            self.poll()
        baseline = record.baseline
        baseline_failed = baseline is not None and baseline.measurement is None
        return baseline_failed or len(record.trials) >= budget

    def await_running(self) -> None:
        """Waits for the trials that others are measuring now: their numbers count too."""
        self.record.read(self.study)
        awaited = set(self.record.claimed)
        while awaited & self.record.claimed.keys():
            self.poll()

    def poll(self) -> None:
        """Waits a moment, and releases the trials of workers that died meanwhile."""
        self.clock.sleep(_POLL_S)
        fail_stale_trials(self.study)
        release(self.study, self.record.lost)
        self.record.read(self.study)

    def release_running(self) -> None:
        """Releases all running trials: this worker is the only one, so they were cut off."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        release(self.study, running)
