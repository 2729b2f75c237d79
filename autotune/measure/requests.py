"""The messages to a measuring process, and the files through which samples and outputs go.

The child is :mod:`autotune.measure.measure_child`. The message ``turn`` is in
:func:`autotune.measure.reference.take_turn`, which also freezes the child.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.process_options import ProcessOptions
from autotune.deploy.session import SessionConfig
from autotune.facts.batches import Batching
from autotune.facts.feeds import save_samples
from autotune.facts.workload import Workload
from autotune.measure.answers import read_outputs, samples_of
from autotune.measure.crew import Crew, Side
from autotune.measure.open_loop import OpenLoop, side_by_side
from autotune.measure.replies import FirstRuns, Held, Opened, Written


@dataclass(frozen=True, kw_only=True)
class SampleFiles:
    """The files through which samples and outputs go between this process and its children.

    Attributes:
        timing: The samples that are run in turn while timing.
        validation: The samples whose outputs are compared.
        outputs: Where a child writes these outputs.
        one_shape: Whether all samples have the same shapes.
        batch: Samples of one run; None where a sample is run as it is.
        validated: How many samples are compared.
    """

    timing: Path
    validation: Path
    outputs: Path
    one_shape: bool
    batch: int | None = None
    validated: int = 0

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

    @classmethod
    def of_batches(
        cls, workload: Workload, batching: Batching, batch: int, folder: Path
    ) -> "SampleFiles":
        """Writes batches of so many samples."""
        files = cls(
            timing=folder / f"timing-{batch}.npz",
            validation=folder / f"validation-{batch}.npz",
            outputs=folder / f"answers-{batch}.npz",
            one_shape=True,
            batch=batch,
            validated=len(workload.validation),
        )
        save_samples(batching.timing(workload, batch), files.timing)
        save_samples(batching.validation(workload, batch), files.validation)
        return files


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """The state of a measuring process before it opens a session.

    Attributes:
        history: What its heap has seen; see :func:`autotune.measure.heap.live`.
        process: Options that the process sets for itself; None leaves them.
    """

    history: int = 0
    process: ProcessOptions | None = None


def request_session(
    child: Side,
    files: SampleFiles,
    model: Path,
    config: SessionConfig,
    limit_s: float,
    cache: Path | None = None,
    *,
    clients: int = 1,
    sessions: int = 1,
    conditions: Conditions | None = None,
) -> Opened:
    """Lets `child` read its samples and open the file `model` as `config` says.

    Args:
        child: The process.
        files: Its samples.
        model: The model's file.
        config: How it is opened.
        limit_s: How long to wait for it.
        cache: The folder in which a provider keeps what it compiles; None keeps nothing.
        clients: How many clients call in each process.
        sessions: How many sessions they have there: one for all of them, or one for each.
        conditions: The state of the process before; that of a fresh one if None.

    Raises:
        ChildFailure: it could not.
    """
    conditions = conditions or Conditions()
    request = {
        "do": "open",
        "model": str(model),
        "session": config.to_json(),
        "samples": str(files.timing),
        "one_shape": files.one_shape,
        "cache": "" if cache is None else str(cache),
        "clients": clients,
        "sessions": sessions,
        "history": conditions.history,
        "process": None if conditions.process is None else vars(conditions.process),
    }
    return child.request(request, limit_s, Opened)


def request_first_runs(child: Side, limit_s: float) -> FirstRuns:
    """Lets `child` run until its memory has settled.

    Raises:
        ChildFailure: it could not.
    """
    return child.request({"do": "first_runs"}, limit_s, FirstRuns)


def request_outputs(
    child: Side, files: SampleFiles, limit_s: float
) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the outputs of the validation samples, as `child` computes them, sample by sample.

    Raises:
        ChildFailure: it could not.
        OutputMismatchError: the outputs of a batch are not those of its samples, one after another.
    """
    files.outputs.unlink(missing_ok=True)  # another candidate's must not pass for this one's
    request = {"do": "answers", "samples": str(files.validation), "to": str(files.outputs)}
    child.request(request, limit_s, Written)
    outputs = read_outputs(files.outputs)
    if files.batch is None or files.batch == 1:
        return outputs
    return samples_of(outputs, files.batch, files.validated)


def request_held(child: Side, limit_s: float) -> Held:
    """Returns the memory that `child` holds now.

    Raises:
        ChildFailure: it did not answer.
    """
    return child.request({"do": "held"}, limit_s, Held)


def request_open_loop(child: Side, arrivals_s: Sequence[float], limit_s: float) -> OpenLoop:
    """Sends the sessions of `child` requests by a schedule; returns their latencies.

    Clients of one process take requests out of one queue. Where each client has a process, requests
    go to the processes in turn, as a round-robin load balancer sends them.

    Args:
        child: The process, or several.
        arrivals_s: When requests arrive, in seconds from the beginning, in order; at least one for
            each process.
        limit_s: How long to wait for the answer after the last of them.

    Raises:
        ChildFailure: it did not answer.
    """
    timeout_s = arrivals_s[-1] + limit_s
    if isinstance(child, Crew):
        shares = [arrivals_s[first :: child.count] for first in range(child.count)]
        messages = [{"do": "open_loop", "arrivals_s": list(share)} for share in shares]
        return side_by_side(child.request_each(messages, timeout_s, OpenLoop))
    message = {"do": "open_loop", "arrivals_s": list(arrivals_s)}
    return child.request(message, timeout_s, OpenLoop)
