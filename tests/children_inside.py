"""The work of child processes that read and write models, done inside the process of a test.

A child of autotune protects it from a stranger's model. The models of tests without a marker are
our own, so :func:`children_inside` lets the handlers of these children answer in this process, with
the same messages and records, and saves the half second that a process takes to start.
"""

import functools
import json
import os
import runpy
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from autotune.deploy.records import from_plain
from autotune.process import child_end
from autotune.process.child import Child, ChildFailure

R = TypeVar("R")

MODULES = (
    "autotune.facts.model_child",
    "autotune.facts.tokens_child",
    "autotune.facts.tried_inputs_child",
    "autotune.graph.optimizers_child",
    "autotune.graph.prepare_child",
    "autotune.inspection.model_report_child",
)
"""Children that only read and write files; the others are measured, and stay processes."""


@functools.cache
def _handlers(module: str) -> Mapping[str, child_end.Handler]:
    """Returns what `module` passes to ``serve`` when it runs as a child."""
    with mock.patch.object(child_end, "serve") as serve:
        runpy.run_module(module, run_name="__main__")
    handlers: Mapping[str, child_end.Handler] = serve.call_args.args[0]
    return handlers


class _InsideChild:
    """The methods of a child that answers in this process."""

    _start = Child.__init__
    _module: str
    _folder: Path

    def __init__(self, module: str, limits: Any, site: Path | None = None) -> None:
        if module not in MODULES:
            _InsideChild._start(self, module, limits, site)  # type: ignore[arg-type]
        self._module = module
        self._folder = Path(tempfile.mkdtemp())

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def pid(self) -> int:
        return os.getpid()

    def request(self, message: child_end.Message, timeout_s: float, reply: type[R]) -> R:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = child_end._answer(_handlers(self._module), message)
        if "failure" in answer:
            raise ChildFailure(str(answer["kind"]), str(answer["failure"]))
        return from_plain(reply, json.loads(json.dumps(answer["reply"], default=vars)))

    def is_running(self) -> bool:
        return True

    def freeze(self) -> None:
        pass

    def thaw(self) -> None:
        pass

    def stop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def children_inside(patch: Callable[[object, str, Any], None]) -> None:
    """Lets the children of :data:`MODULES` answer in this process."""
    for name in ("__init__", "folder", "pid", "request", "is_running", "freeze", "thaw", "stop"):
        patch(Child, name, vars(_InsideChild)[name])
