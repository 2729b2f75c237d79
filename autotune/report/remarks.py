"""What qualifies the numbers of a result, in sentences: answers, batches, clients, providers."""

from collections.abc import Iterator, Sequence

from autotune.deploy.config import Coverage, Numbers, ProviderEvidence
from autotune.deploy.fitting import install_command
from autotune.deploy.loaded import RequiredRuntime
from autotune.deploy.options import OWN, RUNTIME
from autotune.deploy.providers import CPU, PROVIDERS, Provider
from autotune.errors import typed
from autotune.measure.companions import Companions
from autotune.measure.judging import Judgement, WorstSample
from autotune.measure.sequential import BEYOND, WITHIN
from autotune.report.text import interval, latency, percent, printable
from autotune.report.view import Line
from autotune.results.result import Member, StudyResult
from autotune.search.objective import find
from autotune.space.session import EXECUTION_PROVIDER

BATCH_MEANING = "A latency is that of a whole batch; a speed-up counts samples."
"""What the numbers of configurations with batch sizes mean."""

_MOST_NAMES = 3
_MOST_TYPES = 6


def coverage_remarks(coverage: Coverage | None) -> Iterator[Line]:
    """Yields a sentence for each reason why the comparison of the answers proves little."""
    if coverage is None:
        return
    if nothing := coverage.uncompared_outputs:
        listed = ", ".join(f"'{printable(name)}'" for name in nothing[:_MOST_NAMES])
        yield Line(
            f"Nothing could be compared in {listed}: empty, or without a finite number, in all "
            f"{coverage.samples} samples. Only an unchanged graph could be selected. Give samples "
            "in which the model finds something with --data.",
            "warning",
        )
    if names := [n for n in coverage.constant_outputs if n not in coverage.uncompared_outputs]:
        listed = ", ".join(f"'{printable(name)}'" for name in names[:_MOST_NAMES])
        if len(names) > _MOST_NAMES:
            listed += f" and {len(names) - _MOST_NAMES} more"
        subject = f"The outputs {listed} are" if len(names) > 1 else f"The output {listed} is"
        yield Line(
            f"{subject} the same for all {coverage.samples} samples, so the comparison of the "
            "answers proves little. Give other inputs with --data.",
            "warning",
        )
    if 0 < coverage.share < 1:
        yield Line(
            f"{100 * (1 - coverage.share):.2g} % of the numbers in the outputs were not compared: "
            "they are NaN or infinite in the unoptimised model.",
            "warning",
        )
    if coverage.repeat_error:
        yield Line(
            "The answers of the model differ from run to run: error "
            f"{coverage.repeat_error:.1g} between two runs on the same inputs.",
            "warning",
        )


def batch_remark(result: StudyResult) -> str:
    """Returns how many samples the runs of a result have; empty where it has no batch sizes."""
    if result.batching is None:
        return ""
    tuned, default = (result.batch_of(member) for member in (result.best, result.baseline))
    if result.best is result.baseline:
        return f"The default runs batches of {default}. {BATCH_MEANING}"
    return f"Tuned for batches of {tuned}; the default runs batches of {default}. {BATCH_MEANING}"


def rate_of(member: Member) -> float:
    """Returns a member's samples per second, or its new tokens per second; 0 with one client."""
    return member.evidence.throughput_per_s or member.evidence.tokens_per_s or 0.0


def served(member: Member) -> str:
    """Returns a member's throughput and 99th percentile under load, in a phrase."""
    what = "samples/s" if member.evidence.tokens_per_s is None else "tokens/s"
    p99_ms = member.evidence.p99_ms
    unknown = "unknown from so few runs (--max-latency asks for more)"
    p99 = unknown if p99_ms is None else f"{latency(p99_ms)} ms"
    return f"{rate_of(member):.4g} {what}, p99 {p99}"


def runtime_remarks(result: StudyResult) -> Iterator[Line]:
    """Yields what there is with the user's own ONNX Runtime, and what with another one."""
    compared = (*result.members, *result.others)
    others = [member for member in compared if _runtime(member) != OWN and member.admitted]
    if not others:
        return
    first = find(result.objectives)[0]

    def best_of(members: Sequence[Member]) -> Member:
        return min(members, key=lambda member: first.cost(member.evidence.values[first.name]))

    has_other = _runtime(result.best) != OWN
    other = result.best if has_other else best_of(others)
    eligible = [m for m in result.members if _runtime(m) == OWN and m.admitted]
    own = best_of(eligible or [result.baseline]) if has_other else result.best
    yield Line(f"With what you have ({result.environment.onnxruntime}): {_beside_default(own)}")
    if has_other and own is not result.baseline:
        yield Line(f"  To use it: autotune pick {typed(result.folder)} --trial {own.trial}")
    package, _, version = _runtime(other).partition("==")
    yield Line(f"With {package} {version}: {_beside_default(other)}")
    needed = RequiredRuntime(package=package, version=version)
    if has_other:
        yield Line(f"  best.json needs it: {install_command(needed)}")
    else:
        command = install_command(needed)
        yield Line(f"  That is no better by more than the noise; it would need {command}")


def _runtime(member: Member) -> str:
    return str(member.configuration.get(RUNTIME, OWN))


def _beside_default(member: Member) -> str:
    evidence = member.evidence
    if not member.configuration:
        return "the default."
    speedup = f"{evidence.speedup.value:.2f}× ({interval(evidence.speedup)})"
    return f"trial {member.trial}, {speedup}, {evidence.peak_memory_mib:.1f} MiB: {member.words}."


def provider_remarks(result: StudyResult) -> Iterator[Line]:
    """Yields sentences on the provider of the chosen config, and on the default of the fastest."""
    yield from _beyond_the_provider(result)
    provider, measured = _provider_of(result.best), result.best.evidence.provider
    if provider is None or measured is None:
        return
    yield Line(f"{_placement(provider, measured)}{_copies(measured)}")
    yield from _loading(provider, result.best.evidence, measured)
    if measured.device_memory_by_difference:
        yield Line(
            "The driver does not report the memory of single processes: the device memory is what "
            "was allocated meanwhile, and may include that of other programs.",
            "warning",
        )


def _beyond_the_provider(result: StudyResult) -> Iterator[Line]:
    """Yields what the fastest provider gives by itself, so that one sees what tuning adds."""
    fastest = min(result.members, key=lambda member: member.evidence.latency_ms)
    provider = _provider_of(fastest)
    default = {EXECUTION_PROVIDER: fastest.configuration.get(EXECUTION_PROVIDER)}
    measured = (*result.members, *result.others)
    beside = next((member for member in measured if member.configuration == default), None)
    if beside is None or provider is None:
        return
    evidence = beside.evidence
    source = "" if result.complete else ", as the search estimates it"
    yield Line(
        f"{provider.title} with its default options: {evidence.speedup.value:.2f}× "
        f"({interval(evidence.speedup)}) the default's speed{source}, "
        f"{evidence.peak_memory_mib:.1f} MiB."
    )


def _provider_of(member: Member) -> Provider | None:
    """Returns the provider of a member; None where it is the CPU's."""
    word = member.configuration.get(EXECUTION_PROVIDER)
    return PROVIDERS[str(word)] if word is not None else None


def _placement(provider: Provider, measured: ProviderEvidence) -> str:
    """Returns which share of the nodes the provider runs, and which operators stay on the CPU."""
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
        " Inputs and outputs were on the device: copying them takes another "
        f"{latency(measured.copy_ms)} ms."
    )


def _loading(provider: Provider, evidence: Numbers, measured: ProviderEvidence) -> Iterator[Line]:
    if measured.cached_load_ms is None:
        return
    yield Line(
        f"{provider.title} compiles the model: the first session took {evidence.load_ms:.0f} ms, "
        f"later ones {measured.cached_load_ms:.0f} ms with the cache beside the config. "
        "On another machine the first session compiles it again."
    )


# Another order of the same sums differs by less.
_SAME_ANSWERS = 1e-3


def judgement_remarks(result: StudyResult) -> Iterator[Line]:
    """Yields what all samples show, a sentence for each configuration that was judged on them."""
    numbers = [judgement.trial for judgement in result.judgements]
    for place, judgement in enumerate(result.judgements, start=1):
        # the winner with all of its changes is judged after its smallest form
        form = " in its smallest form" if judgement.trial in numbers[place:] else ""
        for text in _sentences(judgement, f"trial {judgement.trial}{form}"):
            yield Line(text, "" if judgement.decision == WITHIN else "warning")
    if numbers and result.picked not in numbers and result.best is not result.baseline:
        yield Line(f"Trial {result.picked} was not judged on all samples.", "warning")


def _sentences(judgement: Judgement, name: str) -> Iterator[str]:
    yield from (_called(name, item) for item in judgement.companions if _matters(item))
    if judgement.samples:
        yield from _on_samples(judgement, name)
    elif judgement.decision != WITHIN:
        yield f"{_capital(name)}: {_decision(judgement)}."


def _capital(words: str) -> str:
    return words[0].upper() + words[1:]


def _matters(companions: Companions) -> bool:
    """Returns whether answers depend on what else is in a run by more than rounding."""
    return (companions.difference or 0.0) > _SAME_ANSWERS


def _called(name: str, companions: Companions) -> str:
    way = f"in batches of {companions.batch} with other samples"
    if companions.padding:
        way = f"with {companions.padding} padded positions behind"
    return (
        f"The answers of {name} depend on what else is in a run: {way} they "
        f"differ by {companions.difference:.1g} from those to a sample alone."
    )


def _on_samples(judgement: Judgement, name: str) -> Iterator[str]:
    count = f"{judgement.samples:,} of {judgement.available:,} samples"
    numbers = [f"error {judgement.error:.2g}"]
    if judgement.metric is not None and judgement.reference_metric is not None:
        numbers.append(f"metric {judgement.metric:.4g}, {judgement.reference_metric:.4g} before")
    if (drop := judgement.drop) is not None:
        numbers.append(f"a fall of {drop.value:.4g} ({drop.low:.2g} to {drop.high:.2g})")
    yield f"{_capital(name)} on {count}: {', '.join(numbers)}: {_decision(judgement)}."
    if judgement.worst:
        yield f"  Largest errors: {', '.join(map(_sample, judgement.worst))}."


def _decision(judgement: Judgement) -> str:
    reason = f" ({printable(judgement.reason)})" if judgement.reason else ""
    if judgement.decision == WITHIN:
        return f"within the limits{reason}"
    if judgement.decision == BEYOND:
        return f"beyond a limit{reason}, so it was not selected"
    end = "by the numbers it is within the limits" if judgement.admitted else "it was not selected"
    if judgement.reason and not judgement.samples:
        return f"{printable(judgement.reason)}; {end}"
    return f"too few samples to tell{reason}; {end}"


def _sample(sample: WorstSample) -> str:
    words = f"sample {sample.number} (error {sample.error:.2g}"
    if sample.metric is not None and sample.metric != sample.reference_metric:
        words += f", metric {sample.metric:.4g} instead of {sample.reference_metric:.4g}"
    return f"{words})"
