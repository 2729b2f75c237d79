"""The context of a study: everything about it that is resolved before its first trial."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.deploy.loaded import Environment
from autotune.deploy.options import RUNTIME, Value
from autotune.facts.batches import Batching
from autotune.facts.hardware import Facts
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.measure.answers import Metric
from autotune.search.objective import Objective
from autotune.search.trial import Limits
from autotune.space.configuration import Configuration
from autotune.space.space import Space


@dataclass(frozen=True, kw_only=True)
class Context:
    """A study's options as resolved for its model and this machine; every later room takes it.

    Attributes:
        space: The search space, resolved for the model and the machine.
        prefer: The word of what decides between members of the front.
        facts: The machine and its ONNX Runtime, for people.
        metric_source: Digest of the file that it is written in; empty without one.
        first: The user's configurations, which are measured right after the default.
        hint: Why the study runs on the CPU alone; empty where it need not.
    """

    study: str
    folder: Path
    model: Model
    workload: Workload
    space: Space
    objectives: Sequence[Objective]
    limits: Limits
    prefer: str
    seed: int
    environment: Environment
    batching: Batching | None = None
    clients: int = 1
    facts: Facts = field(default_factory=dict)
    metric: Metric | None = None
    metric_name: str = ""
    metric_source: str = ""
    first: Sequence[Configuration] = ()
    hint: str = ""

    @property
    def runtimes(self) -> Sequence[Value]:
        """The builds of ONNX Runtime that are searched; none where there is the own one alone."""
        return [v for p in self.space.parameters if p.name == RUNTIME for v in p.values]
