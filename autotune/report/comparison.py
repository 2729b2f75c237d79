"""Configurations beside a baseline, with the verdicts on them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from xml.etree import ElementTree as ET

from autotune.report.remarks import BATCH_MEANING, coverage_remarks
from autotune.report.text import interval, latency, memory, percent, without_controls
from autotune.report.view import BLANK, Block, Line, Table, View
from autotune.results.compare import Compared, Comparison
from autotune.results.gate import Verdict, exit_code
from autotune.results.score import is_leaner, slower_by_up_to
from autotune.search.objective import TOKENS

_INPUTS = {"user": "your inputs", "generated": "generated inputs"}
_TOO_FEW = "–: there were too few requests for this percentile."


# Verdicts that say that nothing could be judged.
_UNKNOWN = ("runs", "quiet")


def view_comparison(comparison: Comparison, verdicts: Sequence[Verdict]) -> View:
    """Returns the verdicts, then the numbers of all configurations beside the baseline's."""
    blocks: list[Block] = list(map(_verdict, verdicts))
    if comparison.configs:
        first = comparison.configs[0].numbers
        rounds = max(config.numbers.rounds for config in comparison.configs)
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
    # a broken limit is the result, or else the last limit that is kept
    told = [verdict for verdict in verdicts if not verdict.kept][:1] or verdicts[-1:]
    result = "".join(_verdict(verdict).text for verdict in told)
    return View(blocks=blocks, data=_data(comparison, verdicts), result=result)


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
            f"{config.numbers.error:.2g}.",
            "warning",
        )


def _comparison_table(comparison: Comparison) -> Table:
    """Returns a row for the baseline and one for each configuration."""
    generates = TOKENS in comparison.baseline.numbers.values
    has_clients = comparison.clients > 1 and not generates

    def cells(config: Compared) -> list[str]:
        own, is_baseline = config.numbers, config is comparison.baseline
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
            memory(own.peak_memory_mib, own.peak_memory_interval_mib),
            f"{own.error:.1g}" if comparison.untouched and not is_baseline else "",
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


def _in_short(config: Compared) -> str:
    """Returns how the configuration's speed and memory compare with the baseline's, in words."""
    own = config.numbers
    speed = "faster" if own.significant else "slower" if config.slower else "as fast"
    if is_leaner(own) and speed == "as fast" and (loss := slower_by_up_to(own.speedup)):
        speed = f"slower by up to {percent(loss)}"
    return f"{speed}, less memory" if is_leaner(own) else speed


def _clients_remarks(comparison: Comparison) -> list[Line]:
    if comparison.clients == 1:
        return []
    words = (
        f"Closed loop: {comparison.clients} clients send one request after another, all at "
        "once. Throughput is that of all; latencies are those that a client sees."
    )
    rows = (comparison.baseline, *comparison.configs)
    is_short = not all("p99_ms" in row.numbers.values for row in rows)
    return [Line(words), *([Line(_TOO_FEW)] if is_short else [])]


def _batches(comparison: Comparison) -> list[Line]:
    """Returns how many samples the runs of configurations have, where some have batches."""
    rows = (comparison.baseline, *comparison.configs)
    sizes = {row.name: row.numbers.batch for row in rows}
    if not any(sizes.values()):
        return []
    listed = ", ".join(f"{name}: {size}" for name, size in sizes.items())
    return [Line(f"Samples of a run: {listed}. {BATCH_MEANING}")]


def _answers(comparison: Comparison) -> list[Line]:
    """Returns sentences on the inputs and the model by which the answers were compared."""
    remarks = []
    if comparison.configs and comparison.untouched:
        remarks.append(Line(f"Errors are measured on {_INPUTS[comparison.error_data]}."))
        remarks += coverage_remarks(comparison.configs[0].numbers.coverage)
    if not comparison.untouched:
        words = (
            "The answers were not compared: no study beside the config names the original model as "
            "it was. Name it with --model."
        )
        remarks.append(Line(words, "warning"))
    return remarks


def _verdict(verdict: Verdict) -> Line:
    if verdict.kept:
        return Line(f"ok     {verdict.config}: {verdict.words}", "good")
    return Line(f"FAILED {verdict.config}: {verdict.words}", "bad")


def _data(comparison: Comparison, verdicts: Sequence[Verdict]) -> dict[str, object]:
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
        "failures": sum(verdict.limit not in _UNKNOWN for verdict in broken),
        "errors": sum(verdict.limit in _UNKNOWN for verdict in broken),
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
            kind = "error" if verdict.limit in _UNKNOWN else "failure"
            message = without_controls(verdict.words)
            ET.SubElement(case, kind, {"message": message}).text = message
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
