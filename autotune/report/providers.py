"""What a result says of execution providers other than the CPU's."""

from collections.abc import Iterator

from rich.text import Text

from autotune.deploy.config import Evidence, ProviderEvidence
from autotune.deploy.providers import CPU, PROVIDERS, Provider
from autotune.report.text import interval, latency, percent
from autotune.results.result import Member, StudyResult
from autotune.space.session import EXECUTION_PROVIDER

_MOST_TYPES = 6


def provider_remarks(result: StudyResult) -> Iterator[Text]:
    """Yields sentences on the provider of the chosen config, and on the default of the fastest."""
    yield from _beyond_the_provider(result)
    provider, measured = _provider_of(result.best), result.best.evidence.provider
    if provider is None or measured is None:
        return
    yield Text(f"{_placement(provider, measured)}{_copies(measured)}")
    yield from _loading(provider, result.best.evidence, measured)
    if measured.device_memory_by_difference:
        yield Text(
            "The driver does not tell the memory of single processes: the device memory is what "
            "came to be used meanwhile, and may hold that of other programs.",
            style="yellow",
        )


def _beyond_the_provider(result: StudyResult) -> Iterator[Text]:
    """Yields what the fastest provider gives by itself, so that one sees what tuning adds."""
    fastest = min(result.members, key=lambda member: member.evidence.latency_ms)
    provider = _provider_of(fastest)
    default = {EXECUTION_PROVIDER: fastest.candidate.get(EXECUTION_PROVIDER)}
    measured = (*result.members, *result.others)
    beside = next((member for member in measured if member.candidate == default), None)
    if beside is None or provider is None:
        return
    evidence = beside.evidence
    source = "" if result.complete else " in the search"
    yield Text(
        f"{provider.title} with its default options: {evidence.speedup.value:.2f}× "
        f"({interval(evidence.speedup)}) the default's speed{source}, "
        f"{evidence.peak_memory_mib:.1f} MiB."
    )


def _provider_of(member: Member) -> Provider | None:
    """Returns the provider of a member; None where it is the CPU's."""
    word = member.candidate.get(EXECUTION_PROVIDER)
    return PROVIDERS[str(word)] if word is not None else None


def _placement(provider: Provider, measured: ProviderEvidence) -> str:
    """Returns which share of the nodes the provider runs, and what stayed behind."""
    share = measured.placement.get(provider.name, 0.0)
    if not measured.left_behind:
        return f"{provider.title} runs all nodes of the model."
    types = ", ".join(measured.left_behind[:_MOST_TYPES])
    more = " and others" if len(measured.left_behind) > _MOST_TYPES else ""
    rest = percent(measured.placement.get(CPU, 1 - share))
    return (
        f"{provider.title} runs {percent(share)} of the nodes; {rest} stay on the CPU: "
        f"{types}{more}."
    )


def _copies(measured: ProviderEvidence) -> str:
    if measured.copy_ms is None:
        return ""
    return (
        f" Inputs and outputs lay on the device: copying them takes {latency(measured.copy_ms)} ms "
        "more."
    )


def _loading(provider: Provider, evidence: Evidence, measured: ProviderEvidence) -> Iterator[Text]:
    if measured.cached_load_ms is None:
        return
    yield Text(
        f"{provider.title} compiles the model: the first session took {evidence.load_ms:.0f} ms, "
        f"later ones {measured.cached_load_ms:.0f} ms with what it keeps beside the config. "
        "On another machine the first session compiles it anew."
    )
