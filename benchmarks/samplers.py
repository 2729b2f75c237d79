"""Samplers side by side in real studies: the hypervolume that each reaches in as many trials.

    python benchmarks/samplers.py [MODEL.onnx] [--samplers effects,tpe] [--trials 40] [--seeds 5]

Each sampler does a whole study with each seed, in turns, of a small convolutional network if no
model is named. The hypervolume is that of the trials within the limits, in logarithms of latency
and memory over the default's as far as a tenth beyond it, by the search's own measurements: those
of one trial are off by a per cent or two, and those of all seeds together by less.

    hv          the hypervolume, for each seed, and their mean
    latency     of the fastest trial within the limits, over the default's
    s           how long the study took, with its final comparison
"""

import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
import program

import autotune
from autotune.facts import sample_models
from autotune.search.optuna_trials import read_trials
from autotune.search.trial import Limits
from autotune.storage.database import Place, open_storage, quiet_optuna

_OWN = "effects"
_MARGIN = math.log(1.1)


def figures(folder: Path) -> dict[str, float]:
    """Returns what the trials of the study in a folder reached."""
    with quiet_optuna(), open_storage(Place.of(None, folder)) as database:
        (name,) = optuna.get_all_study_names(database)
        trials = read_trials(optuna.load_study(study_name=name, storage=database))
    base = trials[0].measurement
    assert base is not None
    admitted = [m for t in trials if (m := t.measurement) and Limits().admit_measurement(m)]
    points = sorted(
        (
            math.log(m.latency_ms / base.latency_ms),
            math.log(m.peak_memory_mib / base.peak_memory_mib),
        )
        for m in admitted
    )
    area, lowest = 0.0, _MARGIN
    for latency, memory in points:
        if latency < _MARGIN and memory < lowest:
            area += (_MARGIN - latency) * (lowest - memory)
            lowest = memory
    return {"hv": area, "latency": math.exp(points[0][0]), "trials": len(trials)}


def study(model: Path, folder: Path, sampler: str, seed: int, trials: int) -> dict[str, float]:
    """Returns the figures of a study by a sampler."""
    began_s = time.monotonic()
    autotune.tune(
        model,
        out=folder,
        trials=trials,
        seed=seed,
        sampler=None if sampler == _OWN else sampler,
        early_stop=False,
    )
    return {**figures(folder), "s": time.monotonic() - began_s}


def main() -> None:
    """Prints the table."""
    parser = program.parser_of(__doc__)
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--samplers", default=f"{_OWN},tpe")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    samplers = given.samplers.split(",")
    rows: dict[str, list[dict[str, float]]] = {sampler: [] for sampler in samplers}
    print(f"{'sampler':10}{'seed':>5}{'hv':>8}{'latency':>9}{'s':>7}")
    with tempfile.TemporaryDirectory() as place:
        model = given.model
        if model is None:
            model = Path(place) / "cnn.onnx"
            sample_models.write("cnn", model)
        for seed in range(given.seeds):
            for sampler in samplers:
                folder = Path(place) / f"{sampler.replace(':', '.')}-{seed}"
                row = study(model, folder, sampler, seed, given.trials)
                rows[sampler].append(row)
                print(f"{sampler:10}{seed:5}{row['hv']:8.3f}{row['latency']:9.3f}{row['s']:7.0f}")
    print()
    summary: dict[str, Any] = {}
    for sampler, of in rows.items():
        summary[sampler] = {name: statistics.fmean(row[name] for row in of) for name in of[0]}
        summary[sampler]["hv_worst_seed"] = min(row["hv"] for row in of)
        print(
            f"{sampler:10} mean{summary[sampler]['hv']:8.3f}{summary[sampler]['latency']:9.3f}"
            f"{summary[sampler]['s']:7.0f}  worst seed {summary[sampler]['hv_worst_seed']:.3f}"
        )
    program.print_json(given, {"trials": given.trials, "seeds": given.seeds, "samplers": summary})


if __name__ == "__main__":
    main()
