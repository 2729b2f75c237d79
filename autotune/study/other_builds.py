"""What a build of ONNX Runtime would bring that a study does not search: probed, or named."""

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from autotune.deploy.providers import PROVIDERS, WORDS
from autotune.errors import AutotuneError, typed
from autotune.facts.hardware import Hardware
from autotune.facts.providers import (
    READY,
    ProviderState,
    SearchedRuntime,
    choose_providers,
    suiting_features,
)
from autotune.measure.outcome import SEARCH, Measurement
from autotune.results.result import StudyResult
from autotune.runtimes.environments import added, missing_builds
from autotune.search.context import Context
from autotune.space.configuration import Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.start import provider_forms, providers_alone
from autotune.study.loop import Search
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress

STAGE = "other builds"
"""The stage of the progress whose note is the last line of a study."""

_LONGEST_S = 60.0
# Of the time that --timeout gives.
_SHARE = 0.1
_PROBED = ("fp32", "int8_static", "int8_nncf")


@dataclass(frozen=True)
class OtherBuilds:
    """The builds that bring an execution provider which a study does not search.

    Attributes:
        runtimes: Describes the ONNX Runtimes of these names.
        states: The execution providers in the user's own ONNX Runtime.
    """

    ctx: Context
    options: StudyOptions
    search: Search
    runtimes: Callable[..., tuple[SearchedRuntime, ...]]
    machine: Hardware
    states: Sequence[ProviderState]

    @property
    def reserved_s(self) -> float:
        """How much of the time of ``--timeout`` is the probe's."""
        return min(_LONGEST_S, _SHARE * (self.options.timeout_s or 0.0)) if self._added else 0.0

    def say(self, result: StudyResult, deadline_s: float, *, probes: bool) -> None:
        """Reports what another build brings, or which there is; nothing where there is none.

        Args:
            deadline_s: When the study is to end, by the clock.
            probes: Whether to measure. The study of an application does not, and is not told to
                search another build, which it cannot.
        """
        sentence = ""
        # the study's result is written, whatever happens here
        with contextlib.suppress(AutotuneError, KeyboardInterrupt):
            if probes and self._added:
                sentence = self._probe(result, deadline_s)
            elif self._missing and not self._added:
                sentence = self._named(probes=probes)
        if sentence:
            self.search.report(Progress(stage=STAGE, note=sentence))

    @cached_property
    def _added(self) -> tuple[str, ...]:
        """The runtimes that were added, the newest of each name."""
        newest = {each.name: each for each in added()}
        words = {n: [WORDS[p] for p in each.providers if p in WORDS] for n, each in newest.items()}
        return tuple(str(newest[name].release) for name in newest if self._brings(words[name]))

    @cached_property
    def _missing(self) -> tuple[str, ...]:
        """The builds that can be installed here."""
        missing = (release.name for release in missing_builds())
        return tuple(
            name
            for name in missing
            if self._brings([word for word, p in PROVIDERS.items() if name in p.flavours])
        )

    def _brings(self, words: Collection[str]) -> bool:
        """Returns whether the study would search one of these providers, and has not got it."""
        own = {state.word for state in self.states if state.state == READY}
        return self._is_free and bool(set(words) - own)

    @cached_property
    def _is_free(self) -> bool:
        """Whether the user left the execution provider to the study."""
        options = self.options
        if options.runtimes or options.providers or EXECUTION_PROVIDER in options.fix:
            return False
        return EXECUTION_PROVIDER in {p.name for p in find_space(options.space).parameters}

    def _named(self, *, probes: bool) -> str:
        features = ", ".join(suiting_features(self.machine.features))
        suits = f", which computes in bfloat16 or int8 with {features} of this processor"
        names = ", ".join(self._missing)
        said = (
            f"Not measured, and made for this kind of machine: {names}{suits if features else ''}."
        )
        if probes:
            return f"{said} `{self._command('all')}` installs it beside yours and searches both."
        return f"{said} An application is studied in an environment that has it."

    def _command(self, names: str) -> str:
        return f"autotune study {typed(self.ctx.folder)} --runtimes {names}"

    def _probe(self, result: StudyResult, deadline_s: float) -> str:
        clock_s = self.search.clock.monotonic
        began_s = clock_s()
        end_s = min(deadline_s, began_s + _LONGEST_S)
        searched = [trial.measurement for trial in self.search.trials]
        longest_s = max(sum(m.spent_s.values()) for m in searched if m is not None)
        measured: list[tuple[Configuration, Measurement]] = []
        forms = self._forms() if began_s + longest_s < end_s else []
        done = 0
        for form in forms:
            form_began_s = clock_s()
            if form_began_s + longest_s > end_s:
                break
            self.search.report(Progress(stage=STAGE, done=done, total=len(forms)))
            outcome = self.search.measurer.measure(form, SEARCH)
            if isinstance(outcome, Measurement) and self.ctx.limits.may_admit(outcome):
                measured.append((form, outcome))
            done += 1
            longest_s = max(longest_s, clock_s() - form_began_s)
        effort = f"{done} of {len(forms)} configurations, {clock_s() - began_s:.0f} s"
        return self._words(result, measured, effort if done else "")

    def _forms(self) -> list[Configuration]:
        """Returns the default of each provider of other builds, in floats, 16 bits and int8."""
        ctx, options = self.ctx, self.options
        space = resolve(
            find_space(options.space),
            ctx.model,
            ctx.workload,
            self.machine,
            options.fix,
            choose_providers((), self.states),
            ctx.clients,
            options.batch,
            runtimes=self.runtimes(self._added, ctx.model),
        )
        forms = [*providers_alone(space), *provider_forms(space)]
        return [
            form
            for form in dict.fromkeys(forms)
            if form.runtime in self._added and form.to_json().get("precision", "fp32") in _PROBED
        ]

    def _words(
        self,
        result: StudyResult,
        measured: Sequence[tuple[Configuration, Measurement]],
        effort: str,
    ) -> str:
        """Returns the sentence on a probe.

        Args:
            effort: How much it measured; empty where it measured nothing.
        """
        names = ",".join(self._added)
        command = self._command(names)
        if not effort:
            return f"Not measured, no time was left: {names} is here. `{command}` searches it."
        if not measured:
            return f"A probe of {names} ({effort}) found none that runs and keeps the limits."
        form, best = min(measured, key=lambda pair: pair[1].latency_ms)
        ratio, mine = best.ratio, 1 / result.best.evidence.speedup.value
        own = "takes" if result.complete else "is not confirmed either, and took"
        return (
            f"A probe, not confirmed ({effort}), took {ratio.value:.2f} ({ratio.low:.2f}–"
            f"{ratio.high:.2f}) of the default's time, error {best.fidelity.error:.1g}, "
            f"{form.in_words()}; the config of this study {own} {mine:.2f}. "
            f"`{command}` searches it."
        )
