"""The messages to a measuring process, and the files through which samples and outputs go.

The child is :mod:`autotune.measure.measure_child`. Messages without arguments are sent where their
replies are used. The message ``slice`` is in :func:`autotune.measure.duet.take_slice`, which also
freezes the child.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.decoder import Plan
from autotune.deploy.records import to_plain
from autotune.deploy.session import SessionConfig
from autotune.errors import DataError
from autotune.facts.batches import Batching
from autotune.facts.feeds import load_samples, save_samples
from autotune.facts.output_parts import UNKNOWN, Origins
from autotune.facts.workload import TIMING_SAMPLES, Workload
from autotune.measure.answers import OutputMismatchError, Outputs
from autotune.measure.flatten import output_of
from autotune.measure.replies import Done, Opened, Producers
from autotune.process.child import Child, ChildFailure

# The elements of an output lie in one order for all of its shapes, or in too many to know them all.
_MOST_SHAPES = 8


@dataclass(frozen=True, kw_only=True)
class SampleFiles:
    """The files through which samples and outputs go between this process and its children.

    Attributes:
        timing: The samples that are run in turn while timing.
        validation: The samples whose outputs are compared.
        outputs: Where a child writes these outputs.
        batch: Samples of one run; None where a sample is run as it is.
        plan: What a decoder generates; None where a sample is run as it is.
        others: Samples of further shapes, with which memory is measured; None without any.
        kept: Names of the outputs that are compared; all of them if empty.
    """

    timing: Path
    validation: Path
    outputs: Path
    one_shape: bool
    batch: int | None = None
    validated: int = 0
    plan: Plan | None = None
    others: Path | None = None
    kept: tuple[str, ...] = ()

    @property
    def first_runs(self) -> int:
        """How many runs the first ones take at least: all of several shapes are run, twice."""
        return 1 if self.one_shape else 2 * TIMING_SAMPLES

    @classmethod
    def write(
        cls, workload: Workload, folder: Path, batching: Batching | None = None, batch: int = 1
    ) -> "SampleFiles":
        """Writes samples to files in `folder` and returns their names.

        Args:
            batching: How they become batches; None where a sample is run as it is.
        """
        ending = "" if batching is None else f"-{batch}"
        files = cls(
            timing=folder / f"timing{ending}.npz",
            validation=folder / f"validation{ending}.npz",
            outputs=folder / f"answers{ending}.npz",
            one_shape=batching is not None or workload.one_shape,
            batch=None if batching is None else batch,
            validated=len(workload.validation),
            kept=workload.outputs,
        )
        timing, validation = workload.timing, workload.validation
        if batching is None and (others := workload.other_shapes):
            files = replace(files, others=folder / "others.npz")
            save_samples(others, folder / "others.npz")
        if batching is not None:
            timing = batching.timing(workload, batch)
            validation = batching.validation(workload, batch)
        save_samples(timing, files.timing)
        save_samples(validation, files.validation)
        return files


def request_session(
    child: Child,
    files: SampleFiles,
    model: Path,
    config: SessionConfig,
    limit_s: float,
    cache: Path | None = None,
    *,
    clients: int = 1,
    sessions: int = 1,
    history: int = 0,
) -> Opened:
    """Lets `child` read its samples and open the file `model` as `config` says.

    Args:
        sessions: How many sessions they have: one for all of them, or one for each.
        history: What its heap has seen; see :func:`autotune.measure.memory.live_through`.

    Raises:
        ChildFailure: it could not.
    """
    request = {
        "do": "open",
        "model": str(model),
        "session": config.to_json(),
        "samples": str(files.timing),
        "one_shape": files.one_shape,
        "others": None if files.others is None else str(files.others),
        "cache": "" if cache is None else str(cache),
        "clients": clients,
        "sessions": sessions,
        "history": history,
        "plan": None if files.plan is None else to_plain(files.plan),
    }
    return child.request(request, limit_s, Opened)


def request_of_config(config: Path, files: SampleFiles) -> dict[str, Any]:
    """Returns the message that lets a child load a config as an application does."""
    return {
        "do": "load",
        "config": str(config.resolve()),
        "samples": str(files.timing),
        "plan": None if files.plan is None else to_plain(files.plan),
    }


def request_outputs(
    child: Child,
    files: SampleFiles,
    limit_s: float,
    windows: tuple[int, int | None] | None = None,
) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the outputs of the validation samples, as `child` computes them, sample by sample.

    Args:
        child: The process.
        files: Its samples.
        limit_s: How long to wait for it.
        windows: Of held text, the number of the first window and that after the last; None means
            all samples.

    Raises:
        ChildFailure: it could not.
        OutputMismatchError: the outputs of a batch are not those of its samples, one after another.
    """
    files.outputs.unlink(missing_ok=True)  # another configuration's must not pass for this one's
    request: dict[str, Any] = {
        "do": "answers",
        "samples": str(files.validation),
        "to": str(files.outputs),
        "windows": windows,
    }
    child.request(request, limit_s, Done)
    outputs = [
        {n: array for n, array in each.items() if not files.kept or output_of(n) in files.kept}
        for each in read_outputs(files.outputs)
    ]
    if files.batch is None or files.batch == 1:
        return outputs
    return samples_of(outputs, files.batch, files.validated)


def request_origins(
    child: Child, files: SampleFiles, model: Path, references: Sequence[Outputs], limit_s: float
) -> Origins:
    """Returns the producers of the outputs of a model, as `child` finds them in its graph.

    Of samples whose outputs have the same shapes, one is run. Nothing is known of a model that
    `child` cannot read.

    Args:
        references: The outputs of the validation samples.
    """
    shapes = [{name: array.shape for name, array in each.items()} for each in references]
    chosen = [number for number, own in enumerate(shapes) if own not in shapes[:number]]
    files.outputs.unlink(missing_ok=True)
    request = {
        "do": "producers",
        "model": str(model),
        "samples": str(files.validation),
        "numbers": chosen[:_MOST_SHAPES],
        "to": str(files.outputs),
    }
    try:
        producers = child.request(request, limit_s, Producers)
        return Origins.of(producers.of_outputs, read_outputs(files.outputs))
    except ChildFailure:
        return UNKNOWN


def read_outputs(path: Path) -> list[dict[str, NDArray[np.generic]]]:
    """Returns each sample's outputs from the file that a child was asked to write to `path`.

    Raises:
        ChildFailure: of kind ``protocol``; it wrote no file, or something else.
    """
    try:
        # the child could have made a link to a file of the user's
        if path.is_symlink():
            raise ChildFailure("protocol", "its outputs are a link, not a file")
        return load_samples(path)
    except DataError as error:
        raise ChildFailure("protocol", f"its outputs cannot be read ({error})") from None


def samples_of(
    batches: Sequence[Outputs], size: int, count: int
) -> list[dict[str, NDArray[np.generic]]]:
    """Returns the outputs of single samples, so that errors compare with those of other sizes.

    Args:
        batches: The outputs of each batch.
        size: Samples of a batch.
        count: How many samples there are; the last batch may repeat some.

    Raises:
        OutputMismatchError: the first dimension of an output does not count the samples.
    """
    samples = []
    for outputs in batches:
        for name, array in outputs.items():
            if not array.ndim or len(array) % size:
                raise OutputMismatchError(
                    f"the output '{name}' has the shape {list(array.shape)} for a batch of {size}, "
                    f"and its first dimension must be a multiple of {size}"
                )
        parts = {name: np.split(array, size) for name, array in outputs.items()}
        samples += [{name: part[i] for name, part in parts.items()} for i in range(size)]
    return samples[:count]
