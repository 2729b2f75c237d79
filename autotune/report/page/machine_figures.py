"""Memory by phase, and the noise of the machine, as figures."""

from collections.abc import Sequence

from autotune.measure.outcome import Measurement
from autotune.report.page.figure import Figure, axis, dots, plot, wrapped
from autotune.report.page.rows import Row
from autotune.report.page.state import StudyState

# A trial that was stopped at once has a wider interval.
_WIDEST_PERCENT = 60

PHASES = (
    "peak while the session is created",
    "peak in the first runs",
    "held at the end",
    "growth in the timed runs",
)
"""The phases of :func:`memory_by_phase`."""


def memory_by_phase(measurement: Measurement) -> list[float]:
    """Returns what a session adds in each of :data:`PHASES`, in MiB."""
    memory = measurement.memory
    added = [memory.load_peak_mib, memory.run_peak_mib, memory.resident_mib]
    return [*(max(0.0, mib - memory.base_mib) for mib in added), memory.growth_mib]


def memory_figure(state: StudyState) -> Figure | None:
    """Returns the memory of default and chosen configuration by phase; None if not at hand."""
    pairs = [("the default", state.baseline, "@bad"), ("chosen", state.chosen, "@good")]
    traces = []
    for name, measurement, colour in pairs:
        if measurement is None or (name == "chosen" and measurement is state.baseline):
            continue
        sizes = memory_by_phase(measurement)
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "x": sizes,
                "y": [wrapped(phase, 22) for phase in PHASES],
                "text": [f"{mib:.1f}" for mib in sizes],
                "textposition": "auto",
                "marker": {"color": colour},
                "hovertemplate": "%{y}: %{x:.1f} MiB<extra></extra>",
            }
        )
    if not traces:
        return None
    return Figure(
        name="memory",
        title="Memory by phase",
        caption="Memory that a session adds to its process, as the search measured it. The first "
        "two are high-water marks; their larger one, with any growth, is the peak memory.",
        plot=plot(
            traces,
            xaxis=axis("MiB"),
            yaxis=axis("", autorange="reversed"),
            barmode="group",
            bargap=0.3,
        ),
        height_px=340,
    )


def noise_figure(rows: Sequence[Row]) -> Figure | None:
    """Returns how undisturbed each trial was; None without trials."""
    measured = [(row.trial, row.measurement) for row in rows if row.measurement is not None]
    if not measured:
        return None
    numbers = [trial for trial, _ in measured]
    quiet = [100 * m.undisturbed_turns / m.turns if m.turns else 0.0 for _, m in measured]
    widths = [100 * (m.ratio.high - m.ratio.low) / 2 / m.ratio.value for _, m in measured]
    traces = [
        {
            **dots("undisturbed", numbers, quiet, "@accent"),
            "type": "bar",
            "hovertemplate": "trial %{x}: %{y:.0f} % were undisturbed<extra></extra>",
        },
        {
            **dots("half of the interval", numbers, widths, "@second"),
            "yaxis": "y2",
            "hovertemplate": "trial %{x}: ± %{y:.1f} %<extra></extra>",
        },
    ]
    return Figure(
        name="noise",
        title="Noise of the machine",
        caption="Above: the share of a trial's time slices that nothing disturbed; its "
        "latency rests on these. Below: half of the 95 % interval of its latency. Trials that "
        "were stopped early have wide ones.",
        plot=plot(
            traces,
            xaxis=axis("trial", anchor="y2"),
            yaxis=axis("undisturbed, %", domain=[0.54, 1], range=[0, 105]),
            yaxis2=axis(
                "± %", domain=[0, 0.44], range=[0, 1.1 * min(max(widths), _WIDEST_PERCENT)]
            ),
        ),
        height_px=380,
    )
