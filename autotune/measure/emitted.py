"""The answers of an emitted config, from a process that loads it as an application does."""

from pathlib import Path

from autotune.measure.fidelity import OutputMismatchError
from autotune.measure.outcome import Failure, Fidelity
from autotune.measure.replies import Loaded
from autotune.measure.requests import request_outputs
from autotune.measure.sample_sets import SampleSet
from autotune.measure.visit import TimeLimits
from autotune.process.child import Child, ChildFailure, memory_limit

_CHILD = "autotune.measure.emitted_child"


def emitted_answers(config: Path, samples: SampleSet, limits: TimeLimits) -> Fidelity | Failure:
    """Returns how right the answers of an emitted config are, or why it gives none.

    Args:
        config: The file of the config.
        samples: The samples that it answers.
        limits: How long to wait for the process.
    """
    with Child(_CHILD, memory_limit()) as child:
        try:
            message = {"do": "load", "config": str(config.resolve())}
            child.request(message, limits.load_s, Loaded)
            outputs = request_outputs(child, samples.files, limits.run_s)
            return samples.judge.compare(outputs)
        except ChildFailure as fault:
            return Failure(kind=fault.kind, phase="answers", message=fault.message)
        except OutputMismatchError as mismatch:
            return Failure(kind="wrong_answers", phase="answers", message=str(mismatch))
