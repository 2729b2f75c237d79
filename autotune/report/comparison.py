"""Configurations beside a baseline, and releases beside each other, with the verdicts on them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from xml.etree import ElementTree as ET

from autotune.measure.leak import Leak
from autotune.measure.outcome import Failure
from autotune.report.remarks import BATCH_MEANING, coverage_remarks
from autotune.report.text import interval, latency, memory, percent, without_controls
from autotune.report.view import BLANK, Block, Line, Table, View
from autotune.results.compare import Compared, Comparison, LoadComparison, UnderLoad
from autotune.results.gate import Verdict, exit_code
from autotune.results.score import slower_by_up_to
from autotune.results.versions import LEAK, ReleaseChange, VersionComparison
from autotune.search.objective import TOKENS

_INPUTS = {"user": "your inputs", "generated": "generated inputs"}
_TOO_FEW = "–: there were too few requests for this percentile."


def view_comparison(comparison: Comparison, verdicts: Sequence[Verdict]) -> View:
    """Returns the verdicts, then the numbers of all configurations beside the baseline's."""
    blocks: list[Block] = list(map(_verdict, verdicts))
    if comparison.configs:
        first = comparison.configs[0].score
        rounds = max(config.score.rounds for config in comparison.configs)
        blocks += [
            BLANK,
            _comparison_table(comparison),
            BLANK,
            Line(
                f"Measured side by side in up to {rounds} rounds. Brackets hold 95 % intervals; "
                "those of memory are prediction intervals for another process. Noise floor: "
                f"{percent(first.noise_floor)}, of memory {percent(first.memory_noise_floor)}."
            ),
            *_clients_remarks(comparison),
            *_batches(comparison),
        ]
    for config in comparison.configs:
        blocks += _since_it_was_tuned(config)
    blocks += _answers(comparison)
    return View(blocks=blocks, data=_data(comparison, verdicts))


def _since_it_was_tuned(config: Compared) -> Iterator[Line]:
    """Yields what a config's numbers were when it was tuned, and what does not hold any more."""
    then = config.tuned
    if then is None:
        return
    yield Line(
        f"{config.name} when it was tuned: {then.speedup.value:.2f}× ({interval(then.speedup)}), "
        f"{then.peak_memory_mib:.1f} MiB, error {then.error:.2g}."
    )
    if then.differences:
        yield Line(f"Changed since then: {'; '.join(then.differences)}.")
    if not then.as_fast:
        yield Line(
            "The speed-up is smaller than it was. `autotune study` may find a better config.",
            "warning",
        )
    if then.same_answers is None:
        yield Line(
            "The errors of now and then are of other inputs or another model. Name those of the "
            "study with --data and --model."
        )
    elif not then.same_answers:
        yield Line(
            f"The answers have changed: the error was {then.error:.2g} and is "
            f"{config.score.error:.2g}.",
            "warning",
        )


def view_under_load(comparison: LoadComparison, verdicts: Sequence[Verdict]) -> View:
    """Returns the verdicts, then the latencies of all configurations under an offered load."""
    clients = f"{comparison.clients} client{'s' if comparison.clients > 1 else ''}"
    blocks: list[Block] = [
        *map(_verdict, verdicts),
        BLANK,
        _load_table(comparison),
        BLANK,
        Line(
            f"Open loop: {comparison.offered_per_s:g} requests a second arrive at random "
            f"(Poisson), and {clients} send them. Latencies count from the scheduled arrival, "
            f"over {comparison.rounds} alternating rounds."
        ),
    ]
    rows = (comparison.baseline, *comparison.configs)
    if any(row.kept_up and row.p99_ms is None for row in rows):
        blocks.append(Line(_TOO_FEW))
    if not all(row.kept_up for row in rows):
        words = (
            "Where a configuration does not keep up, the queue grows for as long as requests "
            "arrive, so its latencies are not shown. Offer less with --qps."
        )
        blocks.append(Line(words, "warning"))
    return View(blocks=[*blocks, *_answers(comparison)], data=_data(comparison, verdicts))


def _comparison_table(comparison: Comparison) -> Table:
    """Returns a row for the baseline and one for each configuration."""
    generates = TOKENS in comparison.baseline.score.values
    has_clients = comparison.clients > 1 and not generates

    def cells(config: Compared) -> list[str]:
        own, is_baseline = config.score, config is comparison.baseline
        rate = own.values[TOKENS] if generates else config.throughput_per_s
        speed = f"{rate:.4g}" if has_clients or generates else latency(own.latency_ms)
        gain = f"{own.speedup.value:.2f} ({interval(own.speedup)})"
        seen = [latency(config.p50_ms), _percentile(own.values.get("p99_ms"))]
        return [
            config.name,
            speed,
            "1" if is_baseline else gain,
            *(seen if has_clients else []),
            *([_percentile(own.values.get("ttft_ms"))] if generates else []),
            memory(own.peak_memory_mib, own.peak_memory_interval),
            "" if is_baseline else f"{own.error:.1g}",
            "baseline" if is_baseline else _in_short(config),
        ]

    rows = [cells(config) for config in (comparison.baseline, *comparison.configs)]
    columns: tuple[str, ...] = ("latency ms", "speed-up")
    if generates:
        columns = ("tokens/s", "speed-up", "first token ms")
    elif has_clients:
        columns = ("samples/s", "speed-up", "p50 ms", "p99 ms")
    headings = ("configuration", *columns, "memory MiB", "error", "in short")
    return Table(headings=headings, rows=rows, words=(0, len(headings) - 1))


def _load_table(comparison: LoadComparison) -> Table:
    """Returns a row for the baseline and one for each configuration under an offered load."""

    def cells(row: UnderLoad) -> list[str]:
        return [
            row.name,
            *map(_percentile, (row.p50_ms, row.p90_ms, row.p99_ms)),
            f"{row.achieved_per_s:.4g}",
            "" if row is comparison.baseline else f"{row.error:.1g}",
            "keeps up" if row.kept_up else "does not keep up",
        ]

    headings = ("configuration", "p50 ms", "p90 ms", "p99 ms", "answered/s", "error", "load")
    rows = [cells(row) for row in (comparison.baseline, *comparison.configs)]
    return Table(headings=headings, rows=rows, words=(0, 6))


def _in_short(config: Compared) -> str:
    """Returns how the configuration's speed and memory compare with the baseline's, in words."""
    own = config.score
    speed = "faster" if own.significant else "slower" if config.slower else "as fast"
    if own.leaner and speed == "as fast" and (loss := slower_by_up_to(own.speedup)):
        speed = f"slower by up to {percent(loss)}"
    return f"{speed}, less memory" if own.leaner else speed


def _clients_remarks(comparison: Comparison) -> list[Line]:
    if comparison.clients == 1:
        return []
    words = (
        f"Closed loop: {comparison.clients} clients send one request after another, all at "
        "once. Throughput is that of all; latencies are those that a client sees."
    )
    rows = (comparison.baseline, *comparison.configs)
    is_short = not all("p99_ms" in row.score.values for row in rows)
    return [Line(words), *([Line(_TOO_FEW)] if is_short else [])]


def _batches(comparison: Comparison) -> list[Line]:
    """Returns how many samples the runs of configurations have, where some have batches."""
    rows = (comparison.baseline, *comparison.configs)
    sizes = {row.name: row.score.batch for row in rows}
    if not any(sizes.values()):
        return []
    listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    return [Line(f"Samples of a run: {listed}. {BATCH_MEANING}")]


def _answers(comparison: Comparison | LoadComparison) -> list[Line]:
    """Returns sentences on the inputs and the model by which the answers were compared."""
    remarks = []
    if comparison.configs:
        remarks.append(Line(f"Errors are measured on {_INPUTS[comparison.error_data]}."))
        first = comparison.configs[0]
        coverage = first.score.coverage if isinstance(first, Compared) else first.coverage
        remarks += coverage_remarks(coverage)
    if not comparison.untouched:
        words = (
            f"No study beside the config names the original model as it was, so "
            f"{comparison.model} takes its place. Name the original model with --model."
        )
        remarks.append(Line(words, "warning"))
    return remarks


def _verdict(verdict: Verdict) -> Line:
    if verdict.kept:
        return Line(f"ok     {verdict.config}: {verdict.words}", "good")
    return Line(f"FAILED {verdict.config}: {verdict.words}", "bad")


def _data(
    comparison: Comparison | LoadComparison, verdicts: Sequence[Verdict]
) -> dict[str, object]:
    document = asdict(comparison, dict_factory=_finite)
    listed = [asdict(verdict) for verdict in verdicts]
    return {**document, "verdicts": listed, "passed": exit_code(verdicts) == 0}


def _finite(items: list[tuple[str, object]]) -> dict[str, object]:
    """Returns the fields of a record; JSON has no infinite numbers, and null for no limit."""
    return {name: None if value == math.inf else value for name, value in items}


def _percentile(ms: float | None) -> str:
    """Returns a percentile in ms, or a dash where there is none."""
    return "–" if ms is None else latency(ms)


def junit_document(verdicts: Sequence[Verdict]) -> str:
    """Returns a JUnit document with one test case for each verdict."""
    root = ET.Element("testsuites")
    broken = [verdict for verdict in verdicts if not verdict.kept]
    counts = {
        "tests": len(verdicts),
        "failures": sum(verdict.limit != "runs" for verdict in broken),
        "errors": sum(verdict.limit == "runs" for verdict in broken),
    }
    attributes = {
        "name": "autotune compare",
        **{name: str(count) for name, count in counts.items()},
    }
    tests = ET.SubElement(root, "testsuite", attributes)
    for verdict in verdicts:
        config = without_controls(verdict.config)
        case = ET.SubElement(
            tests, "testcase", {"classname": config, "name": verdict.limit, "time": "0"}
        )
        if not verdict.kept:
            kind = "error" if verdict.limit == "runs" else "failure"
            message = without_controls(verdict.words)
            ET.SubElement(case, kind, {"message": message}).text = message
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def view_versions(versions: VersionComparison, verdicts: Sequence[Verdict]) -> View:
    """Returns the comparison, and how the memory of each grows with the runs."""
    view = view_comparison(versions.comparison, verdicts)
    rows = [(name, *_growth(leak)) for name, leak in versions.leaks.items()]
    headings = ("configuration", "growth, KiB a run", "runs", "")
    blocks: list[Block] = [
        *view.blocks,
        BLANK,
        Line("Memory after the first runs; brackets hold 95 % intervals."),
        Table(headings=headings, rows=rows, words=(0, 3)),
    ]
    leaks = {name: asdict(leak) for name, leak in versions.leaks.items()}
    return View(blocks=blocks, data={**view.data, "growth": leaks})


def view_changes(
    first: str, last: str, releases: Sequence[str], changes: Sequence[ReleaseChange]
) -> View:
    """Returns what changed between two releases, and which one brought it."""
    blocks = [
        Line(_sentence(change), "bad" if change.confirmed else "warning") for change in changes
    ]
    if not changes:
        words = f"{last} is no slower than {first}, leaks no memory and gives the same answers."
        blocks = [Line(words, "good")]
    data = {"releases": list(releases), "changes": [asdict(change) for change in changes]}
    return View(blocks=blocks, data=data)


def _growth(leak: Leak | Failure) -> tuple[str, str, str]:
    if isinstance(leak, Failure):
        return ("", "", leak.message)
    words = f"{leak.kib_per_run:.3f} ({leak.low:.3f}–{leak.high:.3f})"
    return (words, str(leak.runs), "leaks" if leak.is_leak else "")


def _sentence(change: ReleaseChange) -> str:
    words = f"{change.release} brought a {change.kind}"
    if change.speedup is not None:
        words += f": {change.speedup.value:.3f}× the speed ({interval(change.speedup)})"
    if change.leak is not None:
        leak = change.leak
        words += f": {leak.kib_per_run:.3f} KiB a run ({leak.low:.3f}–{leak.high:.3f})"
    if change.error is not None:
        now, before = change.error
        words = f"{change.release} brought other answers: error {now:.2g}, {before:.2g} before"
    if change.failure:
        words += f": {change.failure}"
    beside = "" if change.kind == LEAK else f" beside {change.before}"
    if change.confirmed:
        return f"{words}, measured again{beside}."
    return f"{words}, but measured again{beside} it does not show: it may be noise, or gradual."
