"""Every way in which autotune refuses a request.

A wrong request is an :class:`AutotuneError` and ends in one sentence and an exit code; a
configuration that fails is data (:class:`autotune.measure.outcome.Failure`); anything else is a bug
and keeps its traceback.
"""

import errno
import reprlib
from collections.abc import Iterable
from typing import ClassVar

_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
_DENIED = "permission denied: this user may not use it; change its permissions, or name another"
_REQUEST = {
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.ENAMETOOLONG: "the name is too long for the file system; name a shorter one",
    errno.ELOOP: "its links lead in a circle; name the file itself",
    errno.ENOENT: "it is not there; check the name",
    errno.ENOTDIR: "a part of the path is a file; check the name",
    errno.EISDIR: "it is a folder; name a file",
}
_MACHINE = {
    errno.EMFILE: "this process may open too few files; type `ulimit -n 1024` and try again",
    errno.ENFILE: "the machine has too many files open; close other programs and try again",
    errno.ENOMEM: "the machine has too little memory free; close other programs and try again",
    errno.EAGAIN: "the machine refuses another process (see `ulimit -u`); close other programs",
}
_LONGEST_NAME = 200


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
    """The storage or the disk failed; what was measured until then is kept (exit code 75)."""

    exit_code = 75


def system_fault(fault: BaseException) -> AutotuneError | None:
    """Returns the error of the user that a fault of the operating system amounts to.

    This is for files, disks and limits that fail where no module expects it. None means that the
    fault is a bug.
    """
    if isinstance(fault, MemoryError):
        return CannotMeasureError(f"{_MACHINE[errno.ENOMEM]} ({fault})")
    if not isinstance(fault, OSError) or fault.errno is None:
        return None
    name = "" if fault.filename is None else f"{shortened(str(fault.filename))}: "
    if fault.errno in _DISK:
        place = name or "the output cannot be written: "
        return StorageError(
            f"{place}{fault.strerror}. What was measured is kept; make room (temporary files go "
            "to the folder that TMPDIR names), then type the same command again"
        )
    if fault.errno in _REQUEST and name:
        return RequestError(f"{name}{_REQUEST[fault.errno]}")
    if fault.errno in _MACHINE:
        return CannotMeasureError(f"{name}{_MACHINE[fault.errno]}")
    return None


def shortened(name: str) -> str:
    """Returns a name as a message can hold it: a long one without its middle."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[-half:]}"


def typed(path: object) -> str:
    """Returns a path as it is typed in a shell."""
    import shlex  # seldom needed, and each child process imports this module

    return shlex.quote(str(path))


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_SHORT.maxlevel = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns ``" Did you mean 'x'?"`` for the known word nearest to `word`, or an empty string."""
    import difflib  # slow to import, and each child process imports this module

    if len(word) > _LONGEST_NAME:  # the comparison takes the square of the length
        return ""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""


def sentence(text: str) -> str:
    """Returns `text` with one mark at its end."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def shown(value: object) -> str:
    """Returns a value of any size and depth as a message quotes it, cut short where it is long.

    ``repr`` fails for deeply nested lists, and for whole numbers of thousands of digits.
    """
    try:
        return _SHORT.repr(value)
    except ValueError:
        return "a number of thousands of digits"
