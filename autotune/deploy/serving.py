"""How a config was called while it was tuned: by how many clients, on which sessions and batches.

Standard library only, because the loader reads configs.
"""

from dataclasses import dataclass
from typing import Annotated

from autotune.deploy.records import PositiveWhole, one_of

SHARED, PER_CLIENT = "shared", "per_client"
"""One session for all clients, or one for each client."""

SESSION_KINDS = (SHARED, PER_CLIENT)
"""What the sessions of several clients can be."""


SessionKind = Annotated[str, one_of(SESSION_KINDS)]
"""One of :data:`SESSION_KINDS`."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What a config was tuned for, where that is not one caller.

    Attributes:
        clients: How many clients called at once, in a closed loop: each began its next run when the
            last one ended.
        sessions: The sessions that they called, one of :data:`SESSION_KINDS`.
        batch: Samples of a run; None where a sample was run as it was.
        baseline_batch: Samples of a run of the default beside it; None in the same way.
    """

    clients: PositiveWhole
    sessions: SessionKind = SHARED
    batch: PositiveWhole | None = None
    baseline_batch: PositiveWhole | None = None

    @property
    def words(self) -> str:
        """What it was tuned for, and how the application calls it, in a phrase."""
        parts = [f"batches of {self.batch}"] if self.batch is not None else []
        if self.clients > 1 or not parts:
            parts.append(self._client_words)
        return f"tuned for {' and '.join(parts)}"

    @property
    def _client_words(self) -> str:
        how = {
            SHARED: "which share one session",
            PER_CLIENT: "each with a session of its own",
        }
        return f"{self.clients} clients, {how[self.sessions]}"
