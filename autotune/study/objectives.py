"""The objectives of a study: those that the user names, or those that suit its devices."""

from collections.abc import Sequence

from autotune.deploy.providers import PROVIDERS
from autotune.errors import RequestError
from autotune.measure.device_memory import DeviceMemory
from autotune.search import objective
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space
from autotune.study.options import StudyOptions


def objectives_of(options: StudyOptions, space: Space) -> tuple[Sequence[str], str]:
    """Returns the names of the objectives, and the word of what decides between members.

    Where the user named no objective, and every provider of the study computes on a device whose
    driver tells its memory, that memory takes the place of the process's.

    Raises:
        RequestError: throughput is an objective, and one client runs single samples; or no
            objective has the word of the preference.
    """
    names, prefer = options.sought, options.prefer
    if names in (objective.DEFAULT, objective.LOADED_DEFAULT) and _runs_on_devices(space):
        names = (names[0], objective.DEVICE_MEMORY)
        memory = objective.OBJECTIVES["peak_memory_mib"].word
        prefer = objective.OBJECTIVES[objective.DEVICE_MEMORY].word if prefer == memory else prefer
    if options.clients == 1 and not options.batch and objective.THROUGHPUT in names:
        raise RequestError(
            f"--objective {objective.THROUGHPUT} needs several clients or batch sizes: add "
            "--clients N or --batch 1,2,4. With one client it is the inverse of latency_ms"
        )
    found = objective.find(names)
    prefer = prefer or found[0].word
    objective.check_preference(prefer, found)
    return names, prefer


def _runs_on_devices(space: Space) -> bool:
    """Returns whether all providers of a space compute on devices whose memory can be measured."""
    values = [p.values for p in space.parameters if p.name == EXECUTION_PROVIDER]
    providers = [PROVIDERS[str(word)] for word in (values[0] if values else ("cpu",))]
    on_devices = all(provider.device == "cuda" for provider in providers)
    return on_devices and DeviceMemory.start() is not None
