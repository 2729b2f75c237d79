"""What all samples show of the selected configuration, in sentences."""

from collections.abc import Iterator

from autotune.measure.companions import Companions
from autotune.measure.judging import Judgement, WorstSample
from autotune.measure.sequential import BEYOND, WITHIN
from autotune.report.text import printable
from autotune.report.view import Line
from autotune.results.result import StudyResult

# Another order of the same sums differs by less.
_SAME_ANSWERS = 1e-3


def judgement_remarks(result: StudyResult) -> Iterator[Line]:
    """Yields what all samples show, a sentence for each configuration that was judged on them."""
    for judgement in result.judgements:
        for text in _sentences(judgement):
            yield Line(text, "" if judgement.decision == WITHIN else "warning")
    judged = [judgement.trial for judgement in result.judgements]
    if judged and result.picked not in judged and result.best is not result.baseline:
        yield Line(f"Trial {result.picked} was not judged on all samples.", "warning")


def _sentences(judgement: Judgement) -> Iterator[str]:
    yield from (_called(judgement, item) for item in judgement.companions if _matters(item))
    if judgement.samples:
        yield from _on_samples(judgement)
    elif judgement.decision != WITHIN:
        yield f"Trial {judgement.trial}: {_decision(judgement)}."


def _matters(companions: Companions) -> bool:
    """Returns whether answers depend on what else is in a run by more than rounding."""
    return (companions.difference or 0.0) > _SAME_ANSWERS


def _called(judgement: Judgement, companions: Companions) -> str:
    way = f"in batches of {companions.batch} with other samples"
    if companions.padding:
        way = f"with {companions.padding} padded positions behind"
    return (
        f"The answers of trial {judgement.trial} depend on what else is in a run: {way} they "
        f"differ by {companions.difference:.1g} from those to a sample alone."
    )


def _on_samples(judgement: Judgement) -> Iterator[str]:
    count = f"{judgement.samples:,} of {judgement.available:,} samples"
    numbers = [f"error {judgement.error:.2g}"]
    if judgement.metric is not None and judgement.reference_metric is not None:
        numbers.append(f"metric {judgement.metric:.4g}, {judgement.reference_metric:.4g} before")
    if (drop := judgement.drop) is not None:
        numbers.append(f"a fall of {drop.value:.4g} ({drop.low:.2g} to {drop.high:.2g})")
    yield f"Trial {judgement.trial} on {count}: {', '.join(numbers)}: {_decision(judgement)}."
    if judgement.worst:
        yield f"  Furthest off: {', '.join(map(_sample, judgement.worst))}."


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
