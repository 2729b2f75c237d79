"""Which worker of a shared study measures which configuration: one table of its database.

A row is a claim, and the unique key of study and configuration makes it the only one. A claim holds
while its trial runs, which Optuna's heartbeat tells, and for good once the trial is measured. The
claim of a trial that failed, because its worker died, can be taken over.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import sqlalchemy
from sqlalchemy import Column, Integer, String, Table
from sqlalchemy.exc import IntegrityError, ProgrammingError

from autotune.process.signals import signals_later

FINAL_COMPARISON = "final comparison"
"""The claim to the final comparison stands in the place of a configuration's."""

# A configuration that three workers died of is not measured a fourth time.
_MOST_TRIES = 3

_METADATA = sqlalchemy.MetaData()
_CLAIMS = Table(
    "autotune_claims",
    _METADATA,
    Column("study", Integer, primary_key=True),
    Column("configuration", String(32), primary_key=True),
    Column("trial", Integer, nullable=False),
    Column("tries", Integer, nullable=False),
)
_STUDIES = sqlalchemy.table("studies", sqlalchemy.column("study_id"))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A row of the table.

    Attributes:
        configuration: The configuration's key, or :data:`FINAL_COMPARISON`.
        tries: How many workers have claimed the configuration one after another.
    """

    configuration: str
    trial: int
    tries: int

    @property
    def may_be_tried_again(self) -> bool:
        """Whether another worker may measure the configuration if this one died."""
        return self.tries < _MOST_TRIES


class Claims:
    """The claims of one study, as one worker sees and makes them."""

    def __init__(self, engine: sqlalchemy.Engine, study: int) -> None:
        self._engine = engine
        self._study = study
        with signals_later():
            try:
                _METADATA.create_all(engine)
            except (IntegrityError, ProgrammingError):
                _METADATA.create_all(engine)  # another worker made the table at the same moment

    def all(self) -> list[Claim]:
        """Returns the claims of all workers."""
        with signals_later(), self._engine.connect() as connection:
            return self._read(connection)

    def take(
        self,
        configuration: str,
        trial: int,
        is_free: Callable[[Claim], bool],
        budget: int | None = None,
    ) -> bool:
        """Claims a configuration for a running trial; returns whether it is this worker's now.

        Args:
            is_free: Whether another claim holds no longer.
            budget: How many configurations may be claimed in all; any number if None.
        """
        # another worker's row may be there first
        with (
            contextlib.suppress(IntegrityError),
            signals_later(),
            self._engine.begin() as connection,
        ):
            # one worker at a time: otherwise two could take the last place of the budget
            own_row = _STUDIES.c.study_id == self._study
            connection.execute(sqlalchemy.select(_STUDIES).where(own_row).with_for_update())
            claims = self._read(connection)
            earlier = next((c for c in claims if c.configuration == configuration), None)
            if earlier is not None and earlier.trial == trial:
                return True  # the reply to the first attempt was lost
            if earlier is not None and not (is_free(earlier) and earlier.may_be_tried_again):
                return False
            standing = [c for c in claims if c.configuration != FINAL_COMPARISON and not is_free(c)]
            if budget is not None and len(standing) >= budget:
                return False
            row = {"trial": trial, "tries": 1}
            if earlier is None:
                key = {"study": self._study, "configuration": configuration}
                connection.execute(sqlalchemy.insert(_CLAIMS).values({**key, **row}))
            else:
                if configuration != FINAL_COMPARISON:
                    row["tries"] = earlier.tries + 1
                own_claim = self._is(configuration)
                connection.execute(sqlalchemy.update(_CLAIMS).where(own_claim).values(row))
            return True
        return False

    def remove(self, configuration: str) -> None:
        """Removes the claim to a configuration that turned out to equal another one."""
        with signals_later(), self._engine.begin() as connection:
            connection.execute(sqlalchemy.delete(_CLAIMS).where(self._is(configuration)))

    def _is(self, configuration: str) -> sqlalchemy.ColumnElement[bool]:
        return (_CLAIMS.c.study == self._study) & (_CLAIMS.c.configuration == configuration)

    def _read(self, connection: sqlalchemy.Connection) -> list[Claim]:
        rows = connection.execute(sqlalchemy.select(_CLAIMS).where(_CLAIMS.c.study == self._study))
        return [
            Claim(configuration=row.configuration, trial=row.trial, tries=row.tries) for row in rows
        ]
