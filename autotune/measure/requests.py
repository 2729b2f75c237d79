"""The messages to a measuring process, and the files through which samples and outputs go.

The child is :mod:`autotune.measure.measure_child`. The message ``turn`` is in
:func:`autotune.measure.reference.take_turn`, which also freezes the child.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.process_options import ProcessOptions
from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import save_samples
from autotune.facts.workload import Workload
from autotune.measure.answers import read_outputs
from autotune.measure.replies import FirstRuns, Held, Opened, Written
from autotune.process.child import Child


@dataclass(frozen=True, kw_only=True)
class SampleFiles:
    """The files through which samples and outputs go between this process and its children.

    Attributes:
        timing: The samples that are run in turn while timing.
        validation: The samples whose outputs are compared.
        outputs: Where a child writes these outputs.
        one_shape: Whether all samples have the same shapes.
    """

    timing: Path
    validation: Path
    outputs: Path
    one_shape: bool

    @classmethod
    def write(cls, workload: Workload, folder: Path) -> "SampleFiles":
        """Writes the samples of `workload` to files in `folder` and returns their names."""
        files = cls(
            timing=folder / "timing.npz",
            validation=folder / "validation.npz",
            outputs=folder / "answers.npz",
            one_shape=workload.one_shape,
        )
        save_samples(workload.timing, files.timing)
        save_samples(workload.validation, files.validation)
        return files


def request_session(
    child: Child,
    files: SampleFiles,
    model: Path,
    config: SessionConfig,
    limit_s: float,
    cache: Path | None = None,
    *,
    history: int = 0,
    process: ProcessOptions | None = None,
) -> Opened:
    """Lets `child` read its samples and open the file `model` as `config` says.

    Args:
        child: The process.
        files: Its samples.
        model: The model's file.
        config: How it is opened.
        limit_s: How long to wait for it.
        cache: The folder in which a provider keeps what it compiles; None keeps nothing.
        history: What its heap has seen before; see :func:`autotune.measure.heap.live`.
        process: Options that it sets for itself; None leaves them.

    Raises:
        ChildFailure: it could not.
    """
    request = {
        "do": "open",
        "model": str(model),
        "session": config.to_json(),
        "samples": str(files.timing),
        "one_shape": files.one_shape,
        "cache": "" if cache is None else str(cache),
        "history": history,
        "process": None if process is None else vars(process),
    }
    return child.request(request, limit_s, Opened)


def request_first_runs(child: Child, limit_s: float) -> FirstRuns:
    """Lets `child` run until its memory has settled.

    Raises:
        ChildFailure: it could not.
    """
    return child.request({"do": "first_runs"}, limit_s, FirstRuns)


def request_outputs(
    child: Child, files: SampleFiles, limit_s: float
) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the outputs of the validation samples, as `child` computes them.

    Raises:
        ChildFailure: it could not.
    """
    files.outputs.unlink(missing_ok=True)  # another candidate's must not pass for this one's
    request = {"do": "answers", "samples": str(files.validation), "to": str(files.outputs)}
    child.request(request, limit_s, Written)
    return read_outputs(files.outputs)


def request_held(child: Child, limit_s: float) -> Held:
    """Returns the memory that `child` holds now.

    Raises:
        ChildFailure: it did not answer.
    """
    return child.request({"do": "held"}, limit_s, Held)
