"""The other ONNX Runtimes of a study: which providers they have here, and what they do not know."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from autotune.deploy.options import OPTIMIZERS, RUN_ENTRIES, SESSION_ENTRIES
from autotune.errors import RequestError
from autotune.facts.model import Model
from autotune.facts.providers import READY, ProviderState, states_in
from autotune.process.child import ChildFailure
from autotune.runtimes.environments import ask, check_model, chosen, site_of

# Instruction sets of x86 for sixteen and eight bits.
_SUITED = frozenset({"avx512_bf16", "amx_bf16", "amx_int8", "avx512_vnni", "avx_vnni"})


@dataclass(frozen=True, kw_only=True)
class SearchedRuntime:
    """An ONNX Runtime beside the user's own.

    Attributes:
        states: The execution providers that can be used here.
        unknown: Options and optimisations that it does not know; it would ignore them in silence.
    """

    text: str
    states: tuple[ProviderState, ...]
    unknown: frozenset[str] = frozenset()


def promising_runtime(features: Collection[str], states: Sequence[ProviderState]) -> str:
    """Returns a sentence on a build that this processor suits and that is not here; or nothing.

    Args:
        states: The execution providers, those of other runtimes in the study among them.
    """
    suiting = sorted(_SUITED & set(features))
    is_there = any(state.word == "openvino" and state.state == READY for state in states)
    if not suiting or is_there:
        return ""
    return (
        f"This processor has {', '.join(suiting)}, which OpenVINO computes with in bfloat16 and "
        "int8, and no ONNX Runtime of this study has it: autotune runtimes add "
        "onnxruntime-openvino, then add --runtimes onnxruntime-openvino."
    )


def searched_runtimes(texts: Sequence[str], model: Model) -> tuple[SearchedRuntime, ...]:
    """Returns the runtimes that ``--runtimes`` names, the user's own apart.

    Raises:
        RequestError: one is unknown, was not added, is broken or cannot open the model.
    """
    found = []
    for environment in chosen(texts) if texts else ():
        text = str(environment.release)
        site = site_of(text)
        assert site is not None
        check_model(environment.release, model.path)
        try:
            answer = ask(site, [*SESSION_ENTRIES, *RUN_ENTRIES, *OPTIMIZERS])
        except ChildFailure as failure:
            raise RequestError(
                f"--runtimes: {text} cannot be used here: {failure.message}"
            ) from None
        states = states_in(site, answer.providers, text.replace("==", " "))
        found.append(SearchedRuntime(text=text, states=states, unknown=frozenset(answer.unknown)))
    return tuple(found)
