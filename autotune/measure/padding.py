"""Whether inputs of several lengths can be padded and run together without a change of answers."""

import tempfile
from pathlib import Path

from autotune.deploy.batcher import Batcher, Batches
from autotune.facts.feeds import save_samples
from autotune.facts.model import Model
from autotune.facts.workload import Workload, evenly
from autotune.measure.companions import by_sample
from autotune.measure.configuration_run import TimeLimits
from autotune.measure.fidelity import OutputMismatchError, compare
from autotune.measure.requests import SampleFiles, request_outputs, request_session
from autotune.measure.sample_sets import UNOPTIMISED
from autotune.process import scratch
from autotune.process.child import Child, ChildFailure, memory_limit

_WORKER = "autotune.measure.measure_child"
_LIMITS = TimeLimits(load_s=600.0, run_s=300.0)
_SAMPLES = 4
# Beyond the longest of them, so that samples of one length are padded too.
_FURTHER = 8
# Another order of the same sums differs by less.
_SAME_ANSWERS = 1e-3


def padding_is_harmless(model: Model, workload: Workload, batches: Batches) -> bool:
    """Returns whether the unoptimised model's answers to a padded batch are those to its samples.

    Args:
        workload: Samples with a batch dimension, of which the first row counts.
        batches: The inputs that are padded.
    """
    feeds = evenly(workload.validation, _SAMPLES)
    rows = [{name: array[0] for name, array in feed.items()} for feed in feeds]
    axes = batches.axes
    longest = max(row[name].shape[axis - 1] for row in rows for name, axis in axes.items())
    size = longest + _FURTHER
    together = Batches(axes=axes, sizes=(size,), tokens=size * len(rows))
    (numbers, padded), *_ = Batcher(together).batches(rows)
    alone = [{name: array[None] for name, array in rows[number].items()} for number in numbers]
    with (
        tempfile.TemporaryDirectory(dir=scratch.root()) as folder,
        Child(_WORKER, memory_limit()) as child,
    ):
        files = SampleFiles.write(workload, Path(folder))
        try:
            request_session(child, files, model.path.absolute(), UNOPTIMISED, _LIMITS.load_s)
            save_samples(alone, files.validation)
            right = request_outputs(child, files, _LIMITS.of_runs(len(alone)))
            save_samples([padded], files.validation)
            same = request_outputs(child, files, _LIMITS.of_runs(len(alone)))
            return compare(right, by_sample(same, len(alone), right)).error <= _SAME_ANSWERS
        except (ChildFailure, OutputMismatchError):
            return False
