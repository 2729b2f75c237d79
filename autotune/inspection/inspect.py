"""An inspection: what a model is, what holds it back here, and how far it is from the roof."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.deploy.decoder import Plan
from autotune.deploy.records import Json, to_plain
from autotune.errors import CannotMeasureError, RequestError
from autotune.facts.hardware import Hardware, hardware
from autotune.facts.inputs import workload_for
from autotune.facts.model import Model, describe, without_breaking
from autotune.facts.workload import Workload
from autotune.graph.prepare import Preparer
from autotune.inspection.checks import CHECKS
from autotune.inspection.findings import SEVERITIES, Finding, InspectedModel, RemedyEffect
from autotune.inspection.growth import measure_growth, shape_feeds
from autotune.inspection.headroom import Headroom, Peaks, headroom, measure_peaks
from autotune.inspection.model_report import ModelReport, read_model
from autotune.inspection.profile import Profile, profile_session
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import SEARCH, Measurement
from autotune.process import scratch
from autotune.space.configuration import BASELINE, Configuration

OnStep = Callable[[int, int], None]
"""Called after each step with the steps done and all steps."""

# A remedy with large errors is reported with them; the study's own limit is another matter.
_MAX_ERROR = 1.0
# Profile, peaks, growth over shapes, and the default, before the remedies.
_STEPS = 4


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The outcome of an inspection; what was not measured is None.

    Attributes:
        workload: Where the inputs come from, a sentence each.
        findings: The findings, the worst first.
        clear: What was looked for and not found.
        unknown: What could not be looked for, because the optimised graph could not be read.
        unmeasured: What only a measurement would show, where nothing was measured.
        failure: Why nothing could be measured; empty where it could, or should not.
    """

    model: Model
    machine: Hardware
    workload: tuple[str, ...]
    report: ModelReport
    findings: tuple[Finding, ...]
    clear: tuple[str, ...]
    unknown: tuple[str, ...]
    unmeasured: tuple[str, ...]
    failure: str = ""
    profile: Profile | None = None
    peaks: Peaks | None = None
    headroom: Headroom | None = None
    memory_mib: float | None = None

    def to_json(self) -> Json:
        """Returns the inspection as JSON values."""
        data: Json = to_plain(self)
        if self.headroom is not None:
            data["headroom"] = self.headroom.to_json()
        return data


def inspect_model(
    path: Path,
    *,
    data: Path | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    values: Mapping[str, float] | None = None,
    pairs: Mapping[str, str] | None = None,
    quick: bool = False,
    on_step: OnStep = lambda _done, _total: None,
) -> Inspection:
    """Returns what a model is and what holds it back on this machine.

    Args:
        data: Inputs; generated if None.
        values: Numbers that fill generated inputs, by their names.
        pairs: Outputs that are inputs of the next step, by the names of the inputs.

    Raises:
        ModelError: the file cannot be used.
        DataError: the inputs cannot be read, or do not fit the model.
        RequestError: `shapes` does not fit the model.
    """
    model, failure = describe(path, pairs), ""
    try:
        workload = workload_for(model, data, shapes or {}, values=values or {})
    except RequestError as error:
        if data is not None or shapes or values:
            raise
        # the facts are shown all the same: they say which sizes are open
        failure, notes = str(error), ("none could be made",)
        decoder = model.decoder
        plan = Plan(decoder=decoder, new_tokens=1) if decoder and decoder.generates else None
        opened = tuple(d for t in model.inputs for d in t.shape if isinstance(d, str))
        workload = Workload(feeds=({},), source="generated", notes=notes, plan=plan, chosen=opened)
    model = model if failure else without_breaking(model, workload.feeds[0])
    report = read_model(model.path, workload)
    plain = InspectedModel(model=model, report=report, machine=hardware(), workload=workload)
    if quick or failure:
        return replace(_inspection(plain), failure=failure)
    try:
        inspected, peaks = _measured(plain, on_step)
        return _with_effects(inspected, peaks, on_step)
    except CannotMeasureError as error:
        return replace(_inspection(plain), failure=str(error))


def _inspection(inspected: InspectedModel) -> Inspection:
    """Returns the inspection by the facts that were read and measured so far."""
    pairs = [(check, check.find(inspected)) for check in CHECKS]
    is_measured = inspected.profile is not None
    is_read = inspected.report.optimised is not None
    return Inspection(
        model=inspected.model,
        machine=inspected.machine,
        workload=inspected.workload.notes,
        report=inspected.report,
        findings=_sorted([finding for _, finding in pairs if finding is not None]),
        clear=tuple(
            check.about
            for check, finding in pairs
            if finding is None
            and (is_measured or not check.measured)
            and (is_read or not check.optimised)
        ),
        unknown=tuple(check.about for check in CHECKS if check.optimised and not is_read),
        unmeasured=tuple(c.about for c in CHECKS if c.measured and not is_measured),
        profile=inspected.profile,
    )


def _measured(inspected: InspectedModel, on_step: OnStep) -> tuple[InspectedModel, Peaks]:
    """Returns the model with everything that is measured of the default, and the peaks."""
    path, workload = inspected.model.path, inspected.workload
    profile = profile_session(path, inspected.model.default_session, workload)
    on_step(1, _STEPS)
    peaks = measure_peaks(inspected.report.work.least_bytes)
    on_step(2, _STEPS)
    growth = measure_growth(path, shape_feeds(inspected.model, workload, profile))
    on_step(3, _STEPS)
    return replace(inspected, profile=profile, growth=growth), peaks


def _with_effects(inspected: InspectedModel, peaks: Peaks, on_step: OnStep) -> Inspection:
    """Returns the inspection, each remedy measured against the default."""
    inspection, workload = _inspection(inspected), inspected.workload
    total = _STEPS + sum(bool(finding.remedy) for finding in inspection.findings)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=scratch.root())))
        preparer = Preparer(
            inspected.model, folder, workload=workload, signature=workload.signature()
        )
        measurer = DuetMeasurer(inspected.model, workload, preparer, max_error=_MAX_ERROR)
        stack.callback(measurer.close)
        default = measurer.measure(BASELINE, SEARCH)
        if not isinstance(default, Measurement):
            raise CannotMeasureError(f"the default cannot be measured: {default.message}")
        on_step(_STEPS, total)
        findings = []
        done = _STEPS
        for finding in inspection.findings:
            findings.append(_rated(finding, measurer, default))
            done += bool(finding.remedy)
            on_step(done, total)
    return replace(
        inspection,
        findings=_sorted(findings),
        peaks=peaks,
        # a decoder's latency is that of one token, and the work that of a whole prompt
        headroom=None
        if workload.plan
        else headroom(inspected.report.work, peaks, default.latency_ms),
        memory_mib=default.peak_memory_mib,
    )


def _rated(finding: Finding, measurer: DuetMeasurer, default: Measurement) -> Finding:
    """Returns the finding with what its remedy is worth, and the severity by that."""
    if not finding.remedy:
        return finding
    configuration = Configuration.of(finding.remedy)
    outcome = measurer.measure(configuration, SEARCH)
    if not isinstance(outcome, Measurement):
        return replace(finding, failure=outcome.message)
    rate = next(kind.rate for kind in CHECKS if kind.name == finding.name)
    effect = RemedyEffect(
        remedy=configuration.in_words(),
        latency=outcome.ratio,
        memory=outcome.peak_memory_mib / default.peak_memory_mib,
        default_memory_mib=default.peak_memory_mib,
        held_mib=outcome.held_memory_mib,
        default_held_mib=default.held_memory_mib,
        error=outcome.fidelity.error,
        default_error=default.fidelity.error,
    )
    return replace(finding, effect=effect, severity=rate(effect))


def _sorted(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Returns the findings, the worst first; in the order of the checks where equal."""
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))
