"""The command that repeats a study, from the options that its storage keeps."""

import shlex
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from autotune.search.objective import DEFAULT, LOADED_DEFAULT, find
from autotune.study.options import StudyOptions

_OF_ONE_RUN = frozenset({"model", "out", "storage", "study_name", "first", "wait"})
_UNITS = {"_s": "s", "_mib": "MiB", "_ms": "ms"}
_UNLIKE = {
    "shapes": "--shape",
    "pairs": "--pair",
    "objectives": "--objective",
    "early_stop": "--no-early-stop",
}


def _flag(name: str) -> str:
    unit = next(filter(name.endswith, _UNITS), "")
    return _UNLIKE.get(name) or f"--{name.removesuffix(unit).replace('_', '-')}"


FLAGS = {
    item.name: _flag(item.name) for item in fields(StudyOptions) if item.name not in _OF_ONE_RUN
}
"""The options that decide what a study does, as the command line names them."""


def command_of(options: StudyOptions, metric: str) -> str:
    """Returns the `autotune study` command that repeats a study.

    Args:
        metric: Name of the user's metric, which the options in a storage lack; empty without one.
    """
    words = ["autotune", "study", str(options.model)]
    default = StudyOptions(model=options.model)
    given = {item.name: getattr(options, item.name) for item in fields(options)}
    given["metric"] = metric or None
    # the storage keeps the values that the defaults stood for
    if options.clients == 1:
        given["clients"] = None
    if options.sought == LOADED_DEFAULT:
        given["objectives"] = DEFAULT
    if options.preference == find(options.sought)[0].word:
        given["prefer"] = None
    if options.max_error == default.error_limit and not metric:
        given["max_error"] = None
    for name, flag in FLAGS.items():
        value = given[name]
        if value == getattr(default, name) and name != "trials":
            continue
        words += [word for text in _texts(name, value) for word in (flag, text) if word]
    return shlex.join(words)


def _texts(name: str, value: Any) -> Iterator[str]:
    """Yields the value of an option as the command line takes it, once for each repetition."""
    if name in {"early_stop", "process_options"}:
        yield ""  # the flag alone
    elif name in {"fix", "pairs"}:
        yield from (f"{key}={item}" for key, item in value.items())
    elif name == "shapes":
        yield from (f"{key}={','.join(map(str, sizes))}" for key, sizes in value.items())
    elif name == "objectives":
        yield from value
    elif name in {"providers", "runtimes", "batch", "certify", "prompt_tokens"}:
        yield ",".join(map(str, value))
    elif isinstance(value, float):
        yield f"{value:.12g}{next((_UNITS[end] for end in _UNITS if name.endswith(end)), '')}"
    else:
        yield str(value)
