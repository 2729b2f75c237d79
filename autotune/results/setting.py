"""What a study works on: the model, its inputs, the search space, the wishes and the machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import Environment
from autotune.facts.batches import Batching
from autotune.facts.model import Model
from autotune.facts.workload import Workload
from autotune.search.objective import Objective
from autotune.search.trial import Limits
from autotune.space.space import Space


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Everything about a study that is settled before its first trial.

    Attributes:
        study: The name of the study in its storage.
        folder: The folder that it writes to.
        model: The model.
        workload: The inputs.
        space: The search space, resolved for the model and the machine.
        objectives: The objectives.
        limits: The limits that an emitted config keeps.
        prefer: The word of what decides between members of the front.
        seed: Random seed.
        environment: The machine and the versions.
        batching: The batch sizes; None where each run has one sample.
        clients: How many clients run at once.
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
