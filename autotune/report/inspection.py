"""An inspection: the findings first, the facts after."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from autotune.inspection.findings import LOW, Effect, Finding
from autotune.inspection.inspect import Inspection
from autotune.report.profile import headroom_sentence, peaks_sentence
from autotune.report.text import interval, percent

_STYLES = {"high": "bold red", "medium": "bold yellow", "low": "bold"}
_MOST_KINDS = 6
_LEAST_SHOWN_BYTES = 100 << 10


def render_inspection(inspection: Inspection) -> RenderableType:
    """Returns the headline, the findings, then the distance to the roof and the model's facts."""
    parts: list[RenderableType] = [Text(_headline(inspection), style="bold"), ""]
    for finding in inspection.findings:
        parts += [
            Text.assemble((finding.severity, _STYLES[finding.severity]), f"  {finding.says}"),
            Padding(Group(*_details(finding)), (0, 0, 1, 8), expand=False),
        ]
    return Group(*parts, *map(Text, _facts(inspection)))


def _headline(inspection: Inspection) -> str:
    name = inspection.model.path.name
    count = len(inspection.findings)
    if not count:
        return f"{name}: nothing found that holds it back here."
    return f"{name}: {count} finding{'s, the most important first' if count > 1 else ''}."


def _details(finding: Finding) -> Iterator[Text]:
    yield Text(finding.evidence)
    if finding.effect is not None:
        yield Text(_effect(finding.effect))
    elif finding.failure:
        yield Text(f"The remedy could not be measured: {finding.failure}", style="yellow")
    if finding.effect is not None and finding.severity == LOW:
        yield Text("The remedy does not pay for this model here.")
    else:
        yield Text(finding.remedy, style="cyan")


def _effect(effect: Effect) -> str:
    latency = effect.latency
    sentence = (
        f"Measured with {effect.remedy}: {latency.value:.2f} of the latency ({interval(latency)}), "
        f"{effect.memory:.2f} of the peak memory ({effect.default_memory_mib:.0f} MiB)"
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
    model, reading = inspection.model, inspection.reading
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
    more = f" and {len(kinds) - _MOST_KINDS} more types" if len(kinds) > _MOST_KINDS else ""
    yield (
        f"Model: {sum(number for _, number in kinds)} nodes ({named}{more}), {model.parameters:,} "
        f"parameters, opset {reading.opset}"
        + (f", written by {reading.producer}." if reading.producer else ".")
    )
    yield _weights(inspection)
    yield from _inputs(inspection)
    if inspection.unmeasured:
        yield f"Only a measurement shows: {', '.join(inspection.unmeasured)}."
    if inspection.clear:
        yield f"Not found: {', '.join(inspection.clear)}."


def _work(inspection: Inspection) -> str:
    work = inspection.reading.work
    total = work.operations or 1
    kinds = list(work.by_operator.items())[:3]
    most = ", ".join(f"{percent(number / total)} {name}" for name, number in kinds)
    unknown = f"; {work.unknown} nodes have unknown shapes" if work.unknown else ""
    int8 = f" ({percent(work.int8_operations / total)} in int8)" if work.int8_operations else ""
    return (
        f"Work of a run: {_operations(work.operations)}{int8}: {most}{unknown}. It reads "
        f"{work.weight_bytes / 2**20:.1f} MiB of weights; all nodes together move "
        f"{work.traffic_bytes / 2**20:.0f} MiB."
    )


def _operations(number: int) -> str:
    for size, unit in ((1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
        if number >= size:
            return f"{number / size:.3g} {unit} operations"
    return f"{number} operations"


def _weights(inspection: Inspection) -> str:
    reading = inspection.reading
    groups = [
        f"{group.size_bytes / 2**20:.1f} MiB {group.dtype}"
        for group in reading.weights
        if group.size_bytes >= _LEAST_SHOWN_BYTES
    ]
    outside_mib = reading.external_bytes / 2**20
    place = f", {outside_mib:.1f} MiB of them outside the file" if outside_mib else ""
    return f"Weights: {', '.join(groups) or 'less than 0.1 MiB'}{place}."


def _inputs(inspection: Inspection) -> Iterator[str]:
    """Gives what the model takes and gives, and the samples that were made of it."""
    shapes = [
        f"{tensor.name} {tensor.dtype} "
        f"[{', '.join('?' if size is None else str(size) for size in tensor.shape)}]"
        for tensor in inspection.model.inputs
    ]
    yield f"Inputs: {', '.join(shapes) or 'none'}. Outputs: {', '.join(inspection.model.outputs)}."
    notes = [note.removeprefix("inputs: ") for note in inspection.workload]
    yield f"Samples: {'; '.join(notes)}."
