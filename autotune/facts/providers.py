"""Which execution providers can be used on this machine, in its ONNX Runtime and in others."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path

from autotune.deploy.options import OPTIMIZERS, RUN_ENTRIES, SESSION_ENTRIES
from autotune.deploy.plugins import has_plugin, is_built_in
from autotune.deploy.providers import PROVIDERS, WORDS, Provider
from autotune.errors import RequestError, did_you_mean
from autotune.facts.model import Model
from autotune.facts.probe import Probe
from autotune.facts.runtime import runtime, without_places
from autotune.process.child import Child, ChildFailure, memory_limit
from autotune.runtimes.environments import ask, check_model, chosen, site_of
from autotune.runtimes.library import unknown_names
from autotune.runtimes.names import ALL, Release

READY = "ready"
NO_DEVICE = "no device"
NOT_INSTALLED = "not installed"

_CHILD = "autotune.facts.provider_child"
_TIME_LIMIT_S = 120.0
_NAMES = (*SESSION_ENTRIES, *RUN_ENTRIES, *OPTIMIZERS)


@dataclass(frozen=True, kw_only=True)
class ProviderState:
    """An execution provider on this machine.

    Attributes:
        word: Its word in :data:`autotune.deploy.providers.PROVIDERS`.
        state: ``ready``, ``no device`` (installed, but not usable here) or ``not installed``.
        package: Package and version that bring it; empty where it is not installed.
        devices: The devices that it offers, where it names them.
        reason: Why it is not ready, with what helps; empty if it is.
        unknown_options: Options and optimisations that its ONNX Runtime does not know.
    """

    word: str
    state: str
    package: str = ""
    devices: tuple[str, ...] = ()
    reason: str = ""
    unknown_options: tuple[str, ...] = ()


CPU_STATE = ProviderState(word="cpu", state=READY)
"""The CPU provider, which every ONNX Runtime has."""


@cache
def provider_states() -> tuple[ProviderState, ...]:
    """Returns the state of every provider that autotune knows, the CPU provider first.

    Each that is installed runs a small model in a child process of its own.

    Raises:
        MissingPackageError: no flavour of ONNX Runtime is installed.
    """
    from autotune.deploy.runtime import onnxruntime

    unknown = unknown_names(_NAMES, Path(onnxruntime.__file__).parent)
    states = (_state(word, provider) for word, provider in PROVIDERS.items())
    return tuple(replace(state, unknown_options=unknown) for state in states)


def _state(word: str, provider: Provider) -> ProviderState:
    if word == "cpu":
        return ProviderState(word=word, state=READY, package=_package(provider))
    if not (is_built_in(provider) or has_plugin(provider)):
        how = " or ".join(provider.packages)
        return ProviderState(word=word, state=NOT_INSTALLED, reason=f"{how} brings it")
    probe = _probe(word)
    return ProviderState(
        word=word,
        state=NO_DEVICE if probe.problem else READY,
        package=_package(provider),
        devices=probe.devices,
        reason=without_places(probe.problem),
    )


def states_in(site: Path, built_in: Sequence[str], package: str) -> tuple[ProviderState, ...]:
    """Returns the execution providers of another ONNX Runtime that can be used here."""
    ready = [ProviderState(word="cpu", state=READY, package=package)]
    for word, provider in PROVIDERS.items():
        if word != "cpu" and provider.name in built_in:
            probe = _probe(word, site)
            if not probe.problem:
                ready.append(
                    ProviderState(word=word, state=READY, package=package, devices=probe.devices)
                )
    return tuple(ready)


def _probe(word: str, site: Path | None = None) -> Probe:
    with Child(_CHILD, memory_limit(), site, measures=True) as child:
        try:
            return child.request({"do": "probe", "provider": word}, _TIME_LIMIT_S, Probe)
        except ChildFailure as failure:
            return Probe(devices=(), problem=f"its library fails ({failure.kind})")


def _package(provider: Provider) -> str:
    """Returns name and version of the installed package that brings the provider.

    Several packages of ONNX Runtime may lie on the path; the one that Python imports has its
    version.
    """
    imported = runtime().version
    packages = []
    for name in provider.packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages.append((name, metadata.version(name)))
    packages.sort(key=lambda item: item[1] != imported)
    return " ".join(packages[0]) if packages else "a build of onnxruntime"


def choose_providers(
    words: Sequence[str], states: Sequence[ProviderState]
) -> tuple[ProviderState, ...]:
    """Returns the providers that a study searches, all of them ready.

    Args:
        words: What the user asks for; all that are ready if empty.

    Raises:
        RequestError: a word is unknown or repeated, or its provider is not ready here.
    """
    by_word = {state.word: state for state in states}
    for word in words:
        if word not in by_word:
            own = WORDS.get(word)  # ONNX Runtime's own name of a provider
            near = f" Did you mean '{own}'?" if own else did_you_mean(word, by_word)
            raise RequestError(f"--providers: '{word}' is none of {', '.join(by_word)}.{near}")
        state = by_word[word]
        if state.state != READY:
            raise RequestError(
                f"--providers: {PROVIDERS[word].title} cannot be used here "
                f"({state.state}: {state.reason})"
            )
    if len(set(words)) < len(words):
        raise RequestError("--providers: name each of the providers once")
    if words:
        return tuple(by_word[word] for word in words)
    return tuple(state for state in states if state.state == READY)


def only_the_cpu(states: Sequence[ProviderState]) -> str:
    """Returns a sentence on why a study runs on the CPU alone; empty where it need not.

    Args:
        states: All execution providers. What is not installed was not asked for.
    """
    others = [state for state in states if state.word != "cpu"]
    broken = next((state for state in others if state.state == NO_DEVICE), None)
    if broken is None or any(state.state == READY for state in others):
        return ""
    title = PROVIDERS[broken.word].title
    return f"{title} cannot be used here, so the study runs on the CPU: {broken.reason}."


# Instruction sets of x86 for sixteen and eight bits.
_SUITED = frozenset({"avx512_bf16", "amx_bf16", "amx_int8", "avx512_vnni", "avx_vnni"})


@dataclass(frozen=True, kw_only=True)
class SearchedRuntime:
    """An ONNX Runtime of a study.

    Attributes:
        text: Its name; :data:`~autotune.deploy.options.OWN` for the user's own.
        states: The execution providers that can be used here.
    """

    text: str
    states: tuple[ProviderState, ...]

    @property
    def unknown(self) -> frozenset[str]:
        """Options and optimisations that it does not know; it would ignore them in silence."""
        return frozenset(name for state in self.states for name in state.unknown_options)


def suiting_features(features: Collection[str]) -> list[str]:
    """Returns the instruction sets of a processor for sixteen and eight bits, by name."""
    return sorted(_SUITED & set(features))


def searched_runtimes(
    texts: Sequence[str], model: Model, note: Callable[[str], None] | None = None
) -> tuple[SearchedRuntime, ...]:
    """Returns the runtimes that ``--runtimes`` names, the user's own apart.

    Args:
        note: Called with what ``all`` installs and leaves out; None installs nothing.

    Raises:
        RequestError: one is unknown, was not added, is broken or cannot open the model.
    """
    searched = []
    for environment in chosen(texts, note) if texts else ():
        try:
            searched.append(_searched(environment.release, model))
        except RequestError as error:
            if list(texts) != [ALL]:
                raise
            if note is not None:
                note(str(error))
    return tuple(searched)


def _searched(release: Release, model: Model) -> SearchedRuntime:
    """Returns a runtime with the execution providers that can be used here."""
    text, site = str(release), site_of(str(release))
    assert site is not None
    check_model(release, model.path)
    try:
        answer = ask(site, _NAMES)
    except ChildFailure as failure:
        raise RequestError(f"--runtimes: {text} cannot be used here: {failure.message}") from None
    states = states_in(site, answer.providers, text.replace("==", " "))
    states = tuple(replace(state, unknown_options=answer.unknown) for state in states)
    return SearchedRuntime(text=text, states=states)
