"""What the batch size of a result means for its numbers, in sentences."""

from autotune.results.compare import Comparisons
from autotune.results.result import StudyResult

_MEANING = "A latency is that of a whole batch; a speed-up counts samples."


def batch_remark(result: StudyResult) -> str | None:
    """Returns how many samples the runs of a result have; None where it has no batch sizes."""
    if result.batching is None:
        return None
    tuned, default = (result.batch_of(member) for member in (result.best, result.baseline))
    if result.best is result.baseline:
        return f"The default runs batches of {default}. {_MEANING}"
    return f"Tuned for batches of {tuned}; the default runs batches of {default}. {_MEANING}"


def compared_batches(comparisons: Comparisons) -> str | None:
    """Returns how many samples the runs of configurations have; None where all have one."""
    sizes = {config.name: config.batch for config in comparisons.configs}
    if not any(sizes.values()):
        return None
    sizes = {comparisons.baseline: comparisons.configs[0].baseline_batch, **sizes}
    listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    return f"Samples of a run: {listed}. {_MEANING}"
