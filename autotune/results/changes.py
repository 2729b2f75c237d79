"""The changes of a candidate from the default, and the candidate without some of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.deploy.options import Value
from autotune.graph.precision import PRECISIONS
from autotune.graph.precision_options import OPTIONS
from autotune.space.candidate import Candidate
from autotune.space.session import EXECUTION_PROVIDER, PROVIDER_OPTIONS
from autotune.space.space import Space


@dataclass(frozen=True)
class Change:
    """Differences of a candidate from the default that are put back together.

    Attributes:
        of: The candidate.
        without: The candidate without them.
    """

    of: Candidate
    without: Candidate

    @cached_property
    def values(self) -> dict[str, Value]:
        """The parameters that are put back, with their values in the candidate."""
        rest = self.without.to_json()
        return {name: value for name, value in self.of.values if name not in rest}

    @property
    def words(self) -> str:
        """The same in words."""
        return Candidate.of(self.values).in_words()


def changes_of(candidate: Candidate, space: Space) -> list[Change]:
    """Returns a change for each difference of the candidate, with all that exists beside it alone.

    The options of a precision are changes of their own, and go with the precision as well.
    """
    return [Change(candidate, put_back(candidate, (name,), space)) for name in candidate.to_json()]


def outermost(changes: Sequence[Change]) -> list[Change]:
    """Returns the changes that are no part of another one."""
    names = [change.values.keys() for change in changes]
    return [
        change
        for change, own in zip(changes, names, strict=True)
        if not any(own < others for others in names)
    ]


def put_back(candidate: Candidate, names: Iterable[str], space: Space) -> Candidate:
    """Returns the candidate with these parameters at their defaults, and all that needs them."""
    values = candidate.to_json()
    for name in names:
        values.pop(name, None)
    while orphans := [name for name in values if not _exists(name, values, space)]:
        for name in orphans:
            del values[name]
    return Candidate.of(values)


def is_free(name: str, space: Space) -> bool:
    """Returns whether the space lets a parameter keep its default; what it lacks is free as well.

    A parameter that the user fixed, or whose default the space leaves out, is not.
    """
    return all(
        parameter.default in parameter.values
        for parameter in space.parameters
        if parameter.name == name
    )


def _exists(name: str, values: Mapping[str, Value], space: Space) -> bool:
    """Returns whether a parameter means anything beside these values."""
    for parameter in space.parameters:
        if parameter.name == name:
            return parameter.is_active(values)
    # the candidate is the user's own, and the space does not have all of its parameters
    if name in PROVIDER_OPTIONS:
        return values.get(EXECUTION_PROVIDER) == PROVIDER_OPTIONS[name][0]
    return name not in OPTIONS or name in _options_of(str(values.get("precision", "")))


def _options_of(precision: str) -> Collection[str]:
    return PRECISIONS[precision].options if precision in PRECISIONS else ()
