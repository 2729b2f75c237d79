"""The space of a study: resolved for its model, this machine and its runtimes; its objectives."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.deploy.providers import PROVIDERS
from autotune.errors import RequestError
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.providers import (
    READY,
    ProviderState,
    SearchedRuntime,
    choose_providers,
    only_the_cpu,
)
from autotune.facts.workload import Workload
from autotune.graph.parameters import OUTPUTS
from autotune.measure.device_memory import DeviceMemory
from autotune.search import objective
from autotune.space.resolve import resolve
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space
from autotune.study.options import StudyOptions
from autotune.study.seams import Seams


def searched_space(
    options: StudyOptions,
    seams: Seams,
    whole: Space,
    model: Model,
    workload: Workload,
    machine: Hardware,
    clients: int,
    note: Callable[[str], None] | None = None,
) -> tuple[Space, str]:
    """Returns the space of a study, and a hint at what it lacks.

    Args:
        whole: The space as its file says.
        note: Called with what ``--runtimes all`` installs; None installs nothing.

    Raises:
        RequestError: a provider, a runtime or a fixed value cannot be used here.
    """
    runtimes = seams.runtimes(options.runtimes, model, note)
    states = _with_brought(seams.providers(), runtimes)
    words = [state.word for state in choose_providers(options.providers, states)]
    own = [s for s in seams.providers() if s.word in words and s.state == READY]
    fusions: list[Sequence[str]] = []

    def firing(_: Model) -> Sequence[str]:
        if not fusions:
            fusions.append(seams.firing(model))
        return fusions[0]

    def resolved(*others: SearchedRuntime) -> Space:
        return resolve(
            whole,
            model,
            workload,
            machine,
            {**options.fix, **({OUTPUTS: ",".join(workload.outputs)} if workload.outputs else {})},
            own,
            clients,
            options.batch,
            firing,
            others,
        )

    space = resolved(*(_with(each, words) for each in runtimes))
    if runtimes:
        # with more or fewer runtimes a study goes on with the trials that it has
        with contextlib.suppress(RequestError):
            space = replace(space, identity=resolved().digest())
    if options.providers or EXECUTION_PROVIDER not in {p.name for p in whole.parameters}:
        return space, ""
    return space, only_the_cpu(states)


def _with_brought(
    states: Sequence[ProviderState], runtimes: Sequence[SearchedRuntime]
) -> list[ProviderState]:
    """Returns the providers; of those that are not ready here the ones that a runtime brings."""
    by_word = {state.word: state for state in states}
    for state in (state for each in runtimes for state in each.states):
        if state.word not in by_word or by_word[state.word].state != READY:
            by_word[state.word] = state
    return list(by_word.values())


def _with(runtime: SearchedRuntime, words: Sequence[str]) -> SearchedRuntime:
    """Returns a runtime with these of its providers alone."""
    return replace(runtime, states=tuple(s for s in runtime.states if s.word in words))


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
    objectives = objective.find(names)
    prefer = prefer or objectives[0].word
    objective.check_preference(prefer, objectives)
    return names, prefer


def _runs_on_devices(space: Space) -> bool:
    """Returns whether all providers of a space compute on devices whose memory can be measured."""
    values = [p.values for p in space.parameters if p.name == EXECUTION_PROVIDER]
    providers = [PROVIDERS[str(word)] for word in (values[0] if values else ("cpu",))]
    on_devices = all(provider.device == "cuda" for provider in providers)
    return on_devices and DeviceMemory.start() is not None
