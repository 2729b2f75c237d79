"""Where the time of a study goes, and how long it takes beside an earlier version.

    python benchmarks/dev/overhead.py [MODEL.onnx ...] [--trials 100] [--space default]
                                      [--neighbour] [--against CHECKOUT] [--json] [--quick]

A real study of each model, with its pages and its final comparison; all of its wall time is booked
on a part: making files (between trials as well), waiting for quiet time slices, the time slices
themselves, and so on. With --against the same study is made by the code of another checkout right
after it, in the same environment: the wall times, and the hypervolume of both fronts by the numbers
of their final comparisons, in logarithms of latency and memory over the default's, as far as a
tenth beyond it. Another version may count memory in another way, and its numbers are the best of
many: then the members of both fronts are measured once more, all in one comparison by this code.
And both configs run in plain processes, by turns with the untouched model, each opened by its own
version's loader.
With --neighbour a process beside them keeps one core busy half of the time. NAME_inputs.npz beside
NAME.onnx is its input; without a model, one that `autotune.facts.sample_models` builds is taken.

The last line has by model "wall_s", "parts" (seconds by part, in the search and after it), "files"
and "waiting" (shares of the wall time), "final" (the share of what follows the search) and
"hypervolume"; with --against "there" (its "wall_s", "hypervolume"), "ratio" of the wall times, and
"again" (the hypervolume of both fronts, "here" and "there", when measured once more), and "plain"
(latency and memory of both configs over the default's, in plain processes). After several models
"plain" has the geometric means of what is here over what is there.
"""

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from common import file_beside, models, neighbours, program, sample_cnn, workload_of
from search import Point, hypervolume
from stopwatch import Methods, Stopwatch, optuna_methods, timed

from autotune.cli.report import live_page, write_last_page
from autotune.errors import ConfigError
from autotune.facts.inputs import workload_for
from autotune.facts.model import describe
from autotune.graph.prepare import Preparer
from autotune.measure.configuration_run import ConfigurationRun
from autotune.measure.duet import Reference
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Measurement, Outcome
from autotune.report.page.live import LivePage
from autotune.results.compare import compare
from autotune.results.subjects import lineup_of
from autotune.study.options import StudyOptions
from autotune.study.progress import Progress
from autotune.study.tune import tune

FILES, WAITING, SLICES = "making files", "waiting for quiet", "configuration's slices"
PAGE, REST = "report.html", "the rest"

_METHODS: Methods = {
    FILES: (Preparer, ["prepare", "looked_at"]),
    "default, calibration": (DuetMeasurer, ["__init__", "renew"]),
    "opening sessions": (ConfigurationRun, ["open"]),
    "first runs, memory": (ConfigurationRun, ["first_runs"]),
    "answers": (ConfigurationRun, ["judge"]),
    SLICES: (ConfigurationRun, ["play"]),
    "reference's slices": (Reference, ["time_slice"]),
    "other measuring": (DuetMeasurer, ["measure", "answers_of"]),
    PAGE: (LivePage, ["__call__"]),
}
_MARGIN = math.log(1.1)
_HALF_OF_THE_TIME_S = 1.0
_PROCESSES, _SECONDS = 7, 1.5


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--space", default="default")
    parser.add_argument("--quick", action="store_true", help="20 trials")
    parser.add_argument("--neighbour", action="store_true", help="a busy process beside the study")
    parser.add_argument("--against", type=Path, help="a checkout of another version")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    trials = 20 if given.quick else given.trials
    figures = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if given.neighbour:
            stack.enter_context(neighbours(1, 0, _HALF_OF_THE_TIME_S))
        for path in given.models or [sample_cnn(scratch)]:
            row = study(path, scratch / path.stem / "here", trials, given.space)
            if given.against:
                row["there"] = study_of(
                    given.against, path, scratch / path.stem / "there", trials, given.space
                )
                row["ratio"] = row["wall_s"] / row["there"]["wall_s"]
                row["plain"] = in_plain_processes(path, scratch / path.stem, given.against)
                try:  # picks other members, so it comes last
                    row["again"] = measured_again(path, scratch / path.stem, given.against)
                except ConfigError as error:  # its configs may have another format
                    print(f"{path.stem}: the fronts are not measured once more: {error}")
            figures[path.stem] = row
            show(path.stem, row)
    if given.against:
        print(f"here over there: {over(figures)}")
    if given.json:
        print(json.dumps(figures))


def study(path: Path, folder: Path, trials: int, space: str) -> dict[str, Any]:
    """Returns the figures of a study by this code, its time booked on parts."""
    options = StudyOptions.of(
        path, trials=trials, space=space, data=file_beside(path), out=folder, early_stop=False
    )
    watch = Stopwatch()
    in_search_s: dict[str, float] = {}
    began_s = time.monotonic()
    with timed(watch, {**_METHODS, **optuna_methods()}), _waits_booked(watch):
        update_page = live_page()

        def on_progress(progress: Progress) -> None:
            sys.stderr.write(f"\r{f'{progress.stage}: {progress.done} of {progress.total}':60}")
            if progress.stage == "final comparison" and not in_search_s:
                in_search_s.update(watch.spent_s, wall=time.monotonic() - began_s)
            update_page(progress)

        result = tune(options, on_progress=on_progress)
        watch.wrap(PAGE, write_last_page)(result.folder)
    wall_s = time.monotonic() - began_s
    sys.stderr.write("\n")
    parts_s = {**watch.spent_s, REST: wall_s - sum(watch.spent_s.values())}
    search_s = in_search_s.pop("wall")
    in_search_s[REST] = search_s - sum(in_search_s.values())
    return {
        "wall_s": wall_s,
        "trials": result.trials,
        "parts": {
            part: [in_search_s.get(part, 0.0), seconds - in_search_s.get(part, 0.0)]
            for part, seconds in parts_s.items()
        },
        "files": parts_s.get(FILES, 0.0) / wall_s,
        "waiting": parts_s.get(WAITING, 0.0) / wall_s,
        "final": 1 - search_s / wall_s,
        "hypervolume": volume_of(folder),
    }


@contextmanager
def _waits_booked(watch: Stopwatch) -> Iterator[None]:
    """Books the pauses in which a measurement waited for a quiet machine apart from the slices."""
    measure_session = DuetMeasurer.measure_session

    def measured(*arguments: Any, **named: Any) -> Outcome:
        outcome = measure_session(*arguments, **named)
        if isinstance(outcome, Measurement):
            watch.spent_s[WAITING] += outcome.spent_s["waited"]
            watch.spent_s[SLICES] -= outcome.spent_s["waited"]
        return outcome

    with patch.object(DuetMeasurer, "measure_session", measured):
        yield


def measured_again(path: Path, folder: Path, checkout: Path) -> dict[str, float]:
    """Returns the hypervolume of the fronts of both studies, measured in one comparison."""
    fronts = {
        "here": configs_of(folder / "here", Path(__file__).parents[2]),
        "there": configs_of(folder / "there", checkout),
    }
    configs = [config for front in fronts.values() for config in front]
    if not configs:  # the default stays in both
        return dict.fromkeys(fronts, hypervolume([(0.0, 0.0)], (_MARGIN, _MARGIN)))
    lineup = lineup_of(configs, path, None)
    workload = workload_for(lineup.model, file_beside(path), {})
    compared = compare(lineup, workload, max_error=math.inf, on_step=lambda *_: None)
    points = {
        Path(one.name): (
            -math.log(one.numbers.speedup.value),
            math.log(one.numbers.peak_memory_mib / compared.baseline.numbers.peak_memory_mib),
        )
        for one in compared.configs
    }
    return {
        name: hypervolume(
            [(0.0, 0.0), *(points[config] for config in front if config in points)],
            (_MARGIN, _MARGIN),
        )
        for name, front in fronts.items()
    }


def in_plain_processes(path: Path, folder: Path, checkout: Path) -> dict[str, dict[str, float]]:
    """Returns latency and memory over the default's of the configs that both studies wrote."""
    feed = folder / "feed.npz"
    (sample, *_) = workload_of(path, describe(path)).validation
    np.savez(feed, **{f"0:{name}": array for name, array in sample.items()})  # type: ignore[arg-type]
    sides = {"here": Path(__file__).parents[2], "there": checkout}
    environments = {
        folder / side / "best.json": {**os.environ, "PYTHONPATH": str(place.resolve())}
        for side, place in sides.items()
    }
    medians = models.in_turns({path: dict(os.environ), **environments}, feed, _PROCESSES, _SECONDS)
    base_s, base_mib = medians[path]
    return {
        side: {"latency": run_s / base_s, "memory": mib / base_mib}
        for side in sides
        for run_s, mib in [medians[folder / side / "best.json"]]
    }


def over(figures: dict[str, Any]) -> dict[str, float]:
    """Returns the geometric means of latency, memory and wall time here over those there."""
    ratios: dict[str, list[float]] = {"wall time": [row["ratio"] for row in figures.values()]}
    for quantity in ("latency", "memory"):
        ratios[quantity] = [
            row["plain"]["here"][quantity] / row["plain"]["there"][quantity]
            for row in figures.values()
        ]
    return {name: round(statistics.geometric_mean(own), 3) for name, own in ratios.items()}


def configs_of(folder: Path, checkout: Path) -> list[Path]:
    """Returns a config for each member of a study's front but the default, beside its model."""
    members = json.loads((folder / "front.json").read_text(encoding="utf-8"))["members"]
    configs = []
    for member in members[1:]:
        trial = str(member["evidence"]["trial"])
        run_there(checkout, folder.parent, ["pick", str(folder), "--trial", trial])
        copy = folder.with_name(f"{folder.name}-{trial}")
        copy.mkdir()
        for file in folder.glob("best.*"):
            shutil.copyfile(file, copy / file.name)
        configs.append(copy / "best.json")
    return configs


def run_there(checkout: Path, folder: Path, arguments: list[str]) -> None:
    """Runs a command of a checkout in a folder, where no other version would be imported."""
    subprocess.run(
        [*program.AUTOTUNE, *arguments],
        env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def study_of(checkout: Path, path: Path, folder: Path, trials: int, space: str) -> dict[str, float]:
    """Returns wall time and hypervolume of a study by the code of another checkout."""
    data = file_beside(path)
    command = ["study", str(path.resolve()), "--trials", str(trials), "--space", space]
    command += ["--out", str(folder), "--set", "early_stop=no"]
    command += ["--data", str(data.resolve())] if data else []
    folder.parent.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    run_there(checkout, folder.parent, command)
    return {"wall_s": time.monotonic() - began_s, "hypervolume": volume_of(folder)}


def volume_of(folder: Path) -> float:
    """Returns the hypervolume of a study's front by the numbers of its final comparison."""
    members = json.loads((folder / "front.json").read_text(encoding="utf-8"))["members"]
    base = members[0]["evidence"]

    def point_of(member: dict[str, Any]) -> Point:
        own = member["evidence"]
        latency, memory_mib = own["latency_ms"], own["peak_memory_mib"]
        return (
            math.log(latency / base["latency_ms"]),
            math.log(memory_mib / base["peak_memory_mib"]),
        )

    return hypervolume([point_of(member) for member in members], (_MARGIN, _MARGIN))


def show(name: str, row: dict[str, Any]) -> None:
    """Prints the table of a model."""
    wall_s = row["wall_s"]
    print(f"{name}: {row['trials']} trials in {wall_s:.1f} s, hypervolume {row['hypervolume']:.3f}")
    print(f"  {'':20}{'search':>10}{'final':>10}{'share':>8}")
    for part, (search_s, final_s) in row["parts"].items():
        share = (search_s + final_s) / wall_s
        print(f"  {part:20}{search_s:8.1f} s{final_s:8.1f} s{share:8.1%}")
    if "there" in row:
        there = row["there"]
        print(f"  there {there['wall_s']:.1f} s, hypervolume {there['hypervolume']:.3f}: ", end="")
        print(f"{row['ratio']:.2f} of its time")
        if again := row.get("again"):
            print(f"  measured once more: here {again['here']:.3f}, there {again['there']:.3f}")
        for side, numbers in row["plain"].items():
            words = ", ".join(f"{name} {number:.3f}" for name, number in numbers.items())
            print(f"  {side}, in plain processes: {words}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
