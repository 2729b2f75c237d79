"""Which parameters and values exist beside which execution provider.

It follows from the table of providers, so that a space need not say it: the CPU provider's
parameters exist where the provider is the CPU's, and the options of another one where it is chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.deploy.options import BATCH, OWN, RUNTIME, Value
from autotune.deploy.providers import OPENVINO_BF16, PROVIDERS
from autotune.errors import RequestError
from autotune.facts.providers import ProviderState, SearchedRuntime
from autotune.graph.parameters import GRAPH_PARAMETERS
from autotune.space.session import (
    EXECUTION_PROVIDER,
    PROVIDER_OPTIONS,
    SESSION_PARAMETERS,
    session_config,
)
from autotune.space.space import Condition, Parameter

# The graph parameters with values that some provider has no use for, and the table's field.
_FIELDS = {
    "precision": "precisions",
    "embeddings": "embeddings",
    "pre_pass": "pre_passes",
    "weight_storage": "storage_forms",
}
# Graph parameters whose effect is that of the CPU provider's kernels.
_CPU_ALONE = frozenset({"slow_in_float", "caches"})
# What values of options need of the machine.
_VALUE_NEEDS: Mapping[tuple[str, Value], str] = {("openvino.load_config", OPENVINO_BF16): "bf16"}
# What values of graph parameters need of the CPU provider, and of no other one.
_CPU_NEEDS = frozenset({"fp16_kernels"})


@dataclass(frozen=True, kw_only=True)
class SearchedProviders:
    """The execution providers of a study, for a space that is resolved.

    Attributes:
        states: The providers, all of them ready.
        unmet: Needs that are not met here, with the sentences that say so.
        runtimes: The ONNX Runtimes that have them, the user's own first.
    """

    states: tuple[ProviderState, ...]
    unmet: Mapping[str, str]
    runtimes: tuple[SearchedRuntime, ...]

    @classmethod
    def of(
        cls,
        parameters: Sequence[Parameter],
        fixed: Mapping[str, Value],
        ready: Sequence[ProviderState],
        unmet: Mapping[str, str],
        runtimes: Sequence[SearchedRuntime] = (),
    ) -> "SearchedProviders":
        """Returns the providers that configurations of a space can have.

        Raises:
            RequestError: the fixed provider, or none of the space's, can be used here; or the
                user's own ONNX Runtime would ignore a fixed value.
        """
        offered = [p.values for p in parameters if p.name == EXECUTION_PROVIDER]
        words = offered[0] if offered else ("cpu",)
        own = SearchedRuntime(text=OWN, states=tuple(ready))
        for name, value in fixed.items():
            if _sets(name, value) & own.unknown:
                raise RequestError(
                    f"--fix: your ONNX Runtime would ignore {name}={value}, which it does not "
                    "know; leave it out, or install a build that knows it"
                )
        here = {state.word for state in ready}
        brought = {s.word: s for each in runtimes for s in each.states if s.word not in here}
        ready = [*ready, *brought.values()]
        if EXECUTION_PROVIDER in fixed:
            words = (fixed[EXECUTION_PROVIDER],)
            if words[0] not in [state.word for state in ready]:
                raise RequestError(
                    f"--fix: the execution provider {words[0]} cannot be used here; "
                    "`autotune hardware` says why"
                )
        states = tuple(state for state in ready if state.word in words)
        if not states:
            raise RequestError(
                f"the search space is for {' and '.join(map(str, words))}, which cannot be used "
                "here; `autotune hardware` says why, and --space default searches what can"
            )
        return cls(states=states, unmet=unmet, runtimes=(own, *runtimes))

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the providers."""
        return tuple(state.word for state in self.states)

    def arranged(self, parameters: Sequence[Parameter]) -> Iterator[Parameter]:
        """Gives the parameters that some provider of the study has a use for.

        The provider comes first. The others get the condition under which they have an effect.
        """
        first = (RUNTIME, EXECUTION_PROVIDER)
        for parameter in sorted(parameters, key=lambda p: (*first, p.name).index(p.name)):
            name = parameter.name
            fitting = tuple(word for word in self.words if _suits(word, name))
            if not fitting:
                continue
            if name == RUNTIME:
                texts = tuple(text for text, has in self._words_of.items() if has & set(self.words))
                yield replace(parameter, values=texts)
                continue
            if name == EXECUTION_PROVIDER:
                yield replace(parameter, values=self.words, when=self._where_there_is_a_choice())
                continue
            kept = replace(parameter, values=self._offered(parameter))
            if len(fitting) < len(self.words):
                kept = replace(kept, when={EXECUTION_PROVIDER: fitting, **parameter.when})
            yield kept

    @property
    def _words_of(self) -> Mapping[str, frozenset[str]]:
        """The words of the providers that each ONNX Runtime has."""
        return {each.text: frozenset(s.word for s in each.states) for each in self.runtimes}

    def _where_there_is_a_choice(self) -> Condition:
        """Returns the runtimes that have another provider than the CPU's, where some have not."""
        others = set(self.words) - {"cpu"}
        texts = tuple(text for text, has in self._words_of.items() if has & others)
        return {RUNTIME: texts} if 0 < len(texts) < len(self.runtimes) else {}

    def _offered(self, parameter: Parameter) -> tuple[Value, ...]:
        """Returns the values of a parameter; of a device type those that are there."""
        word, _, option = parameter.name.partition(".")
        devices = [state.devices for state in self.states if state.word == word]
        if option != "device_type" or not devices:
            return parameter.values
        return tuple(value for value in parameter.values if value in devices[0])

    def reason_against(self, name: str, value: Value) -> str | None:
        """Returns why no provider of the study has a use for a value; None where one has."""
        need = _VALUE_NEEDS.get((name, value))
        if need is not None and need in self.unmet:
            return self.unmet[need]
        if name not in GRAPH_PARAMETERS:
            is_known = any(not _sets(name, value) & each.unknown for each in self.runtimes)
            return None if is_known else "ONNX Runtime does not know it here"
        fitting = [word for word in self.words if _value_suits(word, name, value)]
        if not fitting:
            return "no execution provider of this study gains from it"
        reasons = [self._lacking(word, name, value) for word in fitting]
        return reasons[0] if all(reasons) else None

    def _lacking(self, word: str, name: str, value: Value) -> str | None:
        """Returns the sentence of a need of a value that is not met beside a provider, if any."""
        for need in GRAPH_PARAMETERS[name].needs(value):
            if need in self.unmet and (word == "cpu" or need not in _CPU_NEEDS):
                return self.unmet[need]
        return None

    def impossible(self, parameters: Sequence[Parameter]) -> Iterator[Condition]:
        """Gives the values that make no sense beside some of the study's providers."""
        yield from self._impossible_beside_runtimes(parameters)
        if len(self.words) == 1:
            return
        for parameter in parameters:
            for word in self.words:
                name = parameter.name
                excluded = tuple(
                    value
                    for value in parameter.values
                    if name in GRAPH_PARAMETERS
                    and (not _value_suits(word, name, value) or self._lacking(word, name, value))
                )
                if excluded:
                    yield {EXECUTION_PROVIDER: (word,), name: excluded}

    def _impossible_beside_runtimes(self, parameters: Sequence[Parameter]) -> Iterator[Condition]:
        """Gives the providers that a runtime does not have, and the options that it ignores."""
        if len(self.runtimes) == 1:
            return
        for text, words in self._words_of.items():
            if absent := tuple(word for word in self.words if word not in words):
                yield {RUNTIME: (text,), EXECUTION_PROVIDER: absent}
        for runtime in self.runtimes:
            for parameter in parameters:
                ignored = tuple(
                    v for v in parameter.values if _sets(parameter.name, v) & runtime.unknown
                )
                if ignored:
                    yield {RUNTIME: (runtime.text,), parameter.name: ignored}


def _sets(name: str, value: Value) -> frozenset[str]:
    """Returns the options and optimisations that a value changes, by ONNX Runtime's names."""
    if name in GRAPH_PARAMETERS or value == SESSION_PARAMETERS[name].default:
        return frozenset()
    config = session_config({name: value}, {})
    return frozenset({*config.entries, *config.run_entries, *config.disabled_optimizers})


def _suits(word: str, parameter: str) -> bool:
    """Returns whether a parameter has an effect beside the provider `word`."""
    if parameter in PROVIDER_OPTIONS:
        return PROVIDER_OPTIONS[parameter][0] == word
    for_all = {EXECUTION_PROVIDER, BATCH, *GRAPH_PARAMETERS} - _CPU_ALONE
    if parameter in for_all or word == "cpu":
        return True
    return parameter in PROVIDERS[word].session_parameters


def _value_suits(word: str, parameter: str, value: Value) -> bool:
    """Returns whether a value of a graph parameter makes sense beside the provider `word`."""
    if word == "cpu" or parameter not in _FIELDS:
        return True
    is_default = value == GRAPH_PARAMETERS[parameter].domain.default
    return is_default or value in getattr(PROVIDERS[word], _FIELDS[parameter])
