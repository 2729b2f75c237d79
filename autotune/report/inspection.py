"""An inspection: the findings first, the facts after."""

from collections.abc import Iterator

from autotune.deploy.decoder import Decoder
from autotune.facts.model_facts import in_brackets
from autotune.inspection.findings import LOW, Finding, RemedyEffect
from autotune.inspection.inspect import Inspection
from autotune.report.profile import headroom_sentence, peaks_sentence
from autotune.report.text import interval, percent
from autotune.report.view import BLANK, Block, Line, Tone, View, lines

_TONES: dict[str, Tone] = {"high": "bad", "medium": "warning", "low": "title"}
_MOST_KINDS = 6
_MOST_PAIRS = 6
_LEAST_SHOWN_BYTES = 100 << 10
_INDENT = " " * 8


def view_inspection(inspection: Inspection) -> View:
    """Returns the headline, the findings, then the distance to the peak and the model's facts."""
    blocks: list[Block] = [Line(_headline(inspection), "title"), BLANK]
    for finding in inspection.findings:
        title = f"{finding.severity:<6}  {finding.summary}"
        blocks += [Line(title, _TONES[finding.severity]), *_details(finding), BLANK]
    return View(blocks=[*blocks, *lines(*_facts(inspection))], data=inspection.to_json())


def _headline(inspection: Inspection) -> str:
    name = inspection.model.path.name
    count = len(inspection.findings)
    if not count:
        return f"{name}: nothing was found that holds it back here."
    return f"{name}: {count} finding{'s, the most important first' if count > 1 else ''}."


def _details(finding: Finding) -> Iterator[Line]:
    yield Line(_INDENT + finding.evidence)
    if finding.effect is not None:
        yield Line(_INDENT + _effect(finding.effect))
    elif finding.failure:
        yield Line(f"{_INDENT}The remedy could not be measured: {finding.failure}", "warning")
    if finding.effect is not None and finding.severity == LOW:
        yield Line(f"{_INDENT}The remedy does not help this model here.")
    else:
        yield Line(_INDENT + finding.advice, "hint")


def _effect(effect: RemedyEffect) -> str:
    latency = effect.latency
    sentence = (
        f"Measured with {effect.remedy}: {latency.value:.2f} times the latency "
        f"({interval(latency)}), {effect.memory:.2f} times the peak memory "
        f"({effect.default_memory_mib:.0f} MiB)"
    )
    if effect.default_held_mib - effect.held_mib > 0.1 * effect.default_held_mib:
        sentence += (
            f", and {effect.held_mib:.0f} MiB held between runs instead of "
            f"{effect.default_held_mib:.0f} MiB"
        )
    if abs(effect.error - effect.default_error) > 0.1 * max(effect.error, effect.default_error):
        sentence += f", error {effect.error:.1g} instead of {effect.default_error:.1g}"
    return f"{sentence}."


def _facts(inspection: Inspection) -> Iterator[str]:
    model, report = inspection.model, inspection.report
    if inspection.failure:
        yield f"Nothing was measured: {inspection.failure}"
    if inspection.headroom is not None:
        yield headroom_sentence(inspection.headroom, "The default")
    if inspection.peaks is not None:
        yield peaks_sentence(inspection.peaks)
    if inspection.profile is not None:
        rows = inspection.profile.operators[:_MOST_KINDS]
        yield f"Time: {', '.join(f'{row.name} {percent(row.share)}' for row in rows)}."
    yield _work(inspection)
    kinds = [(name, number) for name, number in model.operators.items() if name != "Constant"]
    named = ", ".join(f"{number} {name}" for name, number in kinds[:_MOST_KINDS])
    more = f" and {len(kinds) - _MOST_KINDS} more" if len(kinds) > _MOST_KINDS else ""
    yield (
        f"Model: {sum(number for _, number in kinds)} nodes ({named}{more}), {model.parameters:,} "
        f"parameters, opset {report.opset}"
        + (f", written by {report.producer}." if report.producer else ".")
    )
    yield _weights(inspection)
    yield from _inputs(inspection)
    if model.decoder is not None:
        yield from _fed_back(model.decoder)
    if inspection.unmeasured:
        yield f"Only a measurement shows: {', '.join(inspection.unmeasured)}."
    if inspection.unknown:
        names = ", ".join(inspection.unknown)
        yield f"Not known, because the optimised graph could not be read: {names}."
    if inspection.clear:
        yield f"Not found: {', '.join(inspection.clear)}."


def _fed_back(decoder: Decoder) -> Iterator[str]:
    """Gives the outputs that are inputs of the next step, and the names of the other inputs."""
    kind = "A decoder" if decoder.generates else "A recurrent model"
    count = len(decoder.pairs)
    yield f"{kind}: {count} output{'s are' if count > 1 else ' is'} fed back."
    for pair in decoder.pairs[:_MOST_PAIRS]:
        grows = "" if pair.axis is None else f", grows along dimension {pair.axis}"
        yield f"  {pair.past} = {pair.present}: {pair.kind} {in_brackets(pair.shape)}{grows}"
    if count > _MOST_PAIRS:
        yield f"  and {count - _MOST_PAIRS} more; --json lists them all"
    if decoder.generates:
        roles = {"tokens": decoder.tokens, "logits": decoder.logits, "mask": decoder.mask}
        roles |= {"positions": decoder.positions, "cache flag": decoder.branch}
        named = ", ".join(f"{role} {name}" for role, name in roles.items() if name)
        context = f", a context of {decoder.context} tokens" if decoder.context else ""
        yield f"  {named}{context}"


def _work(inspection: Inspection) -> str:
    work = inspection.report.work
    total = work.operations or 1
    kinds = list(work.by_operator.items())[:3]
    most = ", ".join(f"{percent(number / total)} {name}" for name, number in kinds)
    most = f" ({most})" if most else ""
    unknown = f"; {work.unknown} products could not be counted" if work.unknown else ""
    int8 = f" ({percent(work.int8_operations / total)} in int8)" if work.int8_operations else ""
    return (
        f"Work of a run: {_operations(work.operations)}{int8} in products{most}{unknown}. It "
        f"reads {work.weight_bytes / 2**20:.1f} MiB of weights."
    )


def _operations(number: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= size:
            return f"{number / size:.3g} {unit} operations"
    return f"{number} operations"


def _weights(inspection: Inspection) -> str:
    report = inspection.report
    groups = [
        f"{group.size_bytes / 2**20:.1f} MiB {group.dtype}"
        for group in report.weights
        if group.size_bytes >= _LEAST_SHOWN_BYTES
    ]
    outside_mib = report.external_bytes / 2**20
    place = f", {outside_mib:.1f} MiB of them outside the file" if outside_mib else ""
    return f"Weights: {', '.join(groups) or 'less than 0.1 MiB'}{place}."


def _inputs(inspection: Inspection) -> Iterator[str]:
    """Gives what the model takes and gives, and the samples that were made of it."""
    shapes = [
        f"{tensor.name} {tensor.dtype} {in_brackets(tensor.shape)}"
        for tensor in inspection.model.inputs
    ]
    yield f"Inputs: {', '.join(shapes) or 'none'}. Outputs: {', '.join(inspection.model.outputs)}."
    notes = [note.removeprefix("inputs: ") for note in inspection.workload]
    yield f"Samples: {'; '.join(notes)}."
