"""A session in a process of its own, for what is asked of it beside the trials of a study."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.session import SessionConfig
from autotune.facts.feeds import Feed, save_samples
from autotune.facts.output_parts import Origins
from autotune.facts.workload import Workload
from autotune.measure.answers import Outputs
from autotune.measure.configuration_run import FIRST_LIMITS
from autotune.measure.memory import Usage
from autotune.measure.replies import FirstRuns, Opened
from autotune.measure.requests import (
    SampleFiles,
    request_origins,
    request_outputs,
    request_session,
)
from autotune.process.child import Child, memory_limit

_WORKER = "autotune.measure.measure_child"


@dataclass(frozen=True, kw_only=True)
class ChildSession:
    """A session in a process of its own. Where that fails, its methods raise ``ChildFailure``."""

    child: Child
    files: SampleFiles
    opened: Opened

    def outputs(self, feeds: Sequence[Feed], batch: int = 1) -> Sequence[Outputs]:
        """Returns the outputs of a run with each feed.

        Args:
            batch: How many samples a feed holds; more of them may take longer.
        """
        save_samples(feeds, self.files.validation)
        return request_outputs(self.child, self.files, FIRST_LIMITS.of_runs(batch * len(feeds)))

    def origins(self, model: Path, references: Sequence[Outputs]) -> Origins:
        """Returns the producers of the outputs that the last feeds gave; see `request_origins`.

        Args:
            model: The model of this session.
        """
        limit_s = FIRST_LIMITS.of_runs(len(references))
        return request_origins(self.child, self.files, model.absolute(), references, limit_s)

    def first_runs(self) -> FirstRuns:
        """Runs the timing samples in turn until the memory has settled."""
        limit_s = FIRST_LIMITS.of_runs(self.files.first_runs)
        return self.child.request({"do": "first_runs"}, limit_s, FirstRuns)

    def held(self) -> Usage:
        """Returns the memory that the process holds now."""
        return self.child.request({"do": "held"}, FIRST_LIMITS.run_s, Usage)


@contextmanager
def child_session(
    model: Path, config: SessionConfig, workload: Workload, site: Path | None = None
) -> Iterator[ChildSession]:
    """Opens a session in a limited process of its own, which ends with the block.

    Args:
        workload: The timing samples are those of the first runs.
        site: The folder of another ONNX Runtime; None for the user's own.

    Raises:
        ChildFailure: it cannot be opened.
    """
    with Child(_WORKER, memory_limit(), site, measures=True) as child:
        files = SampleFiles.write(workload, child.folder)
        opened = request_session(child, files, model.absolute(), config, FIRST_LIMITS.load_s)
        yield ChildSession(child=child, files=files, opened=opened)
