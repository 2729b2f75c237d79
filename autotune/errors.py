"""Every way in which a user is told no.

A wrong request is an :class:`AutotuneError` and ends in one sentence and an exit code; a candidate
that fails is data (:class:`autotune.measure.outcome.Failure`); anything else is a bug and keeps its
traceback.
"""

import reprlib
from collections.abc import Iterable
from typing import ClassVar


class AutotuneError(Exception):
    """Something the user can mend: the message says what is wrong, where, and what to type next."""

    exit_code: ClassVar[int] = 2


class RequestError(AutotuneError):
    """The request itself is wrong: an option, a file, a name (exit code 2)."""


class ModelError(RequestError):
    """The model cannot be used (exit code 2)."""


class DataError(RequestError):
    """The input data do not fit the model (exit code 2)."""


class SpaceError(RequestError):
    """A search space is wrong; the message lists every fault of the file (exit code 2)."""


class FormatError(RequestError):
    """Data are not what they should be; the message names the key (exit code 2)."""


class ConfigError(RequestError):
    """A tuned config breaks its schema or asks for what may not be in one (exit code 2)."""


class MissingPackageError(RequestError):
    """A package that the request needs is not installed (exit code 2)."""


class StudyError(RequestError):
    """The study folder is not what the request takes it for (exit code 2)."""


class NotBetterError(AutotuneError):
    """The config is not better than the default here and now (exit code 3)."""

    exit_code = 3


class CannotMeasureError(AutotuneError):
    """The request is sound, yet nothing can be measured on this machine (exit code 4)."""

    exit_code = 4


class StorageError(AutotuneError):
    """Storage or disk gave out; what was measured until then is kept (exit code 75)."""

    exit_code = 75


# A word that is longer is no typing error, and comparing it with others takes long.
_LONGEST_WORD = 100

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlevel = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ``" Did you mean 'x'?"`` for the known word nearest to `word`, or an empty string."""
    import difflib  # slow to import, and each child process imports this module

    if len(word) > _LONGEST_WORD:
        return ""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def shown(value: object) -> str:
    """Returns a value of any size and depth as a message quotes it, cut short where it is long.

    ``repr`` fails for deeply nested lists, and for whole numbers of thousands of digits.
    """
    try:
        return _SHORT.repr(value)
    except ValueError:
        return "a number of thousands of digits"
