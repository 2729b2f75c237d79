"""The space of a study: resolved for its model, this machine and the ONNX Runtimes it searches."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from autotune.errors import RequestError
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.providers import READY, ProviderState, choose_providers
from autotune.facts.searched_runtimes import SearchedRuntime, promising_runtime
from autotune.facts.workload import Workload
from autotune.graph.parameters import OUTPUTS
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
) -> tuple[Space, str]:
    """Returns the space of a study, and a hint at a build of ONNX Runtime that is not here.

    Args:
        whole: The space as its file says.

    Raises:
        RequestError: a provider, a runtime or a fixed value cannot be used here.
    """
    runtimes = seams.runtimes(options.runtimes, model)
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
    return space, promising_runtime(machine.features, states)


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
