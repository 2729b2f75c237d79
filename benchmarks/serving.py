"""What a config tuned for the load gains over one tuned for a single caller.

    python benchmarks/serving.py MODEL.onnx ... [--clients 1,2,4,8] [--trials 15] [--space SPACE]
                                 [--max-error 0.1] [--rounds 5] [--out DIR] [--json]

For each model a study of one client, and for each further number of clients a study under that
load, which also tries the config of the first one. The space is serving.toml, unless --space names
another one. Then, for each number of clients: throughput and p99 of the default, of the config
tuned for one client, and of the config tuned for that number, side by side in alternating rounds.

With --out a study that was cut short goes on. NAME_inputs.npz beside NAME.onnx is its input.

The last line has by model and number of clients: "throughput_per_s" and "p99_ms" of "default",
"one_client" and "tuned"; "gain_clients", the throughput of the config tuned for the load over that
of the config tuned for one, with its interval. A percentile is null where there were too few
requests for it.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import program
from inputs import file_beside, workload_of

from autotune.deploy.config import Interval
from autotune.facts.model import describe
from autotune.facts.workload import Workload
from autotune.results.compare import Compared, compare
from autotune.results.final_comparison import OnStep, RoundsPlan
from autotune.results.subjects import Lineup, default_of, subject_of
from autotune.study.progress import Progress
from autotune.study.tune import tune

_SPACE = Path(__file__).with_name("serving.toml")

DEFAULT, ONE_CLIENT, TUNED = "default", "one_client", "tuned"


def main() -> None:
    """Prints a table for each model."""
    parser = program.parser_of(__doc__)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--clients", default="1,2,4,8")
    parser.add_argument("--trials", type=int, default=15)
    parser.add_argument("--space", default=str(_SPACE), help="a preset, or a TOML file")
    parser.add_argument("--max-error", type=float, default=0.1)
    parser.add_argument("--rounds", type=int, default=5, help="rounds, 2 at least")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    figures: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for path in given.models:
            folder = (given.out or Path(scratch)) / path.stem
            figures[path.stem] = {}
            print(f"{path.stem}", flush=True)
            for clients in map(int, given.clients.split(",")):
                one = study(path, folder / "1", 1, given)
                tuned = one if clients == 1 else study(path, folder / str(clients), clients, given)
                row = side_by_side(path, one, tuned, clients, given)
                figures[path.stem][str(clients)] = row
                show(clients, row)
    program.print_json(given, figures)


def study(path: Path, folder: Path, clients: int, given: argparse.Namespace) -> Path:
    """Returns the config of a study for so many clients; a study that is there goes on."""

    def report(progress: Progress) -> None:
        text = f"{path.stem} for {clients}: {progress.stage} {progress.done} of {progress.total}"
        sys.stderr.write(f"\r{text:70}")

    one = folder.parent / "1" / "best.json"
    result = tune(
        path,
        trials=given.trials,
        space=given.space,
        data=file_beside(path),
        max_error=given.max_error,
        clients=clients,
        objectives=["latency_ms" if clients == 1 else "throughput_per_s"],
        first=[] if clients == 1 else [one],
        out=folder,
        on_progress=report,
    )
    sys.stderr.write("\n")
    return result.folder / "best.json"


def side_by_side(
    path: Path, one: Path, tuned: Path, clients: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Returns the figures of the default and two configs."""
    model = describe(path)
    workload = workload_of(path, model)
    names = {DEFAULT: default_of(model), ONE_CLIENT: subject_of(one), TUNED: subject_of(tuned)}
    if one == tuned:
        del names[TUNED]
    subjects = {name: replace(subject, name=name) for name, subject in names.items()}
    lineup = Lineup(
        subjects=tuple(own for name, own in subjects.items() if name != ONE_CLIENT),
        baseline=subjects[ONE_CLIENT],
        model=model,
        untouched=True,
    )
    row = closed_loop(lineup, workload, clients, given)
    if one == tuned:
        row[TUNED] = row[ONE_CLIENT]
    return row


def closed_loop(
    lineup: Lineup, workload: Workload, clients: int, given: argparse.Namespace
) -> dict[str, Any]:
    """Returns throughput and p99 of each, and the gain of the config tuned for the load."""
    comparison = compare(
        lineup,
        workload,
        max_error=given.max_error,
        clients=clients,
        plan=RoundsPlan(fewest=min(3, given.rounds), most=given.rounds),
        on_step=_reporter(f"closed loop, {clients}"),
    )
    rows = {row.name: row for row in (comparison.baseline, *comparison.configs)}
    figures = {name: _figures(row) for name, row in rows.items()}
    one = Interval(value=1.0, low=1.0, high=1.0)
    gain = rows[TUNED].numbers.speedup if TUNED in rows else one
    return {**figures, "gain_clients": gain.value, "gain_clients_interval": [gain.low, gain.high]}


def show(clients: int, row: dict[str, Any]) -> None:
    """Prints the figures of one number of clients."""
    low, high = row["gain_clients_interval"]
    words = f"{row['gain_clients']:.2f} ({low:.2f} to {high:.2f})"
    print(f"  {clients} client{'s' if clients > 1 else ''}: tuned for the load over one: {words}")
    print(f"    {'':12}{'samples/s':>10}{'p99 ms':>10}")
    for name in (DEFAULT, ONE_CLIENT, TUNED):
        closed = row[name]
        print(
            f"    {name:12}{closed['throughput_per_s']:10.1f}{_milliseconds(closed['p99_ms']):>10}",
            flush=True,
        )


def _figures(row: Compared) -> dict[str, float | None]:
    return {"throughput_per_s": row.throughput_per_s, "p99_ms": row.numbers.values.get("p99_ms")}


def _milliseconds(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.2f}"


def _reporter(words: str) -> OnStep:
    """Returns a function that says how far a comparison is."""

    def report(done: int, total: int) -> None:
        sys.stderr.write(f"\r{f'{words}: {done} of {total}':70}")
        if done == total:
            sys.stderr.write("\n")

    return report


if __name__ == "__main__":
    main()
