"""The sections of the page that have one form: a figure, lines and tables, and folded tables."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.report.page.figure import Figure
from autotune.report.page.state import StudyState
from autotune.report.profile import view_profile
from autotune.report.text import duration, percent
from autotune.report.view import Block, Table, lines


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section of the page.

    Attributes:
        summary: The title of what is folded at its end; empty where nothing is.
    """

    name: str
    title: str
    note: str = ""
    blocks: Sequence[Block] = ()
    figure: Figure | None = None
    summary: str = ""
    folded: Table | None = None


def sections_of(state: StudyState, figures: Mapping[str, Figure]) -> dict[str, Section]:
    """Returns the sections of a study by name; those that have nothing to show are left out."""
    return {section.name: section for section in _sections(state, figures)}


def _sections(state: StudyState, figures: Mapping[str, Figure]) -> Iterator[Section]:
    result = state.result
    for name in ("search", "memory"):
        if name in figures:
            yield _of_figure(figures[name])
    if result is not None and "effects" in figures:
        yield _of_figure(figures["effects"])
    if state.profiling is not None:
        yield Section(
            name="profile",
            title="Where the time of a run goes",
            note="By ONNX Runtime's profiler, in a process of its own after the study. The "
            "profiler slows a run down: compare shares, not sums.",
            blocks=view_profile(state.profiling).blocks,
        )
    if answers := list(_answers(state)):
        yield Section(
            name="answers",
            title="Answers",
            note="How far the outputs are from those of the unoptimised model, as the search "
            "measured it. The error is the relative L2 distance, mean over the samples, of the "
            "worst output; of a decoder it is the rise of the perplexity.",
            blocks=answers,
        )
    if "noise" in figures:
        yield _of_figure(figures["noise"], lines(*_noise(state)))


def _of_figure(figure: Figure, blocks: Sequence[Block] = ()) -> Section:
    """Returns the section that a figure heads."""
    return Section(
        name=figure.name,
        title=figure.title,
        note=figure.caption,
        blocks=blocks,
        figure=figure,
    )


def _answers(state: StudyState) -> Iterator[Block]:
    """Yields how right the answers of default and chosen configuration are, as far as at hand."""
    pairs = {"chosen": state.chosen, "the default": state.baseline}
    if state.chosen is state.baseline:
        del pairs["chosen"]
    rated = {name: measured.fidelity for name, measured in pairs.items() if measured is not None}
    if not rated:
        return
    headings = ["configuration", "error", "smallest cosine", "largest difference"]
    has_metric = any(fidelity.metric is not None for fidelity in rated.values())
    headings += ["top-1 agreement", *(["metric"] if has_metric else [])]
    rows = [
        [
            name,
            f"{fidelity.error:.2g}",
            f"{fidelity.cosine:.6f}",
            f"{fidelity.max_difference:.2g}",
            "" if fidelity.agreement is None else percent(fidelity.agreement),
            *([_number(fidelity.metric, ".4g")] if has_metric else []),
        ]
        for name, fidelity in rated.items()
    ]
    yield Table(headings=headings, rows=rows)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _noise(state: StudyState) -> Iterator[str]:
    """Yields what the noise of the machine means for this study, a sentence each."""
    result = state.result
    if result is not None and result.complete:
        floor = percent(result.baseline.evidence.noise_floor)
        yield (
            f"Noise floor of the final comparison: {floor}. "
            "A smaller difference does not count as a gain."
        )
    measured = [m for trial in state.trials if (m := trial.measurement) is not None]
    if measured:
        disturbed = sum(m.contaminated_turns for m in measured)
        spent_s = sum(sum(m.spent_s.values()) for m in measured)
        yield (
            f"{disturbed} time slices were disturbed and measured again. Measuring took "
            f"{duration(spent_s)} in the search."
        )
