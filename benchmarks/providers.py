"""What each execution provider of this machine makes of some models, side by side in one study.

    python benchmarks/providers.py [MODEL.onnx ...] [--trials 30] [--providers cpu,openvino]
                                   [--cpu-python PYTHON] [--quick] [--json]

Run it in an environment with a second provider, such as onnxruntime-openvino. For every model: a
study over all providers; the best configuration of each, as a ratio to the default (below 1 is
faster); the winner loaded by a script that knows nothing of providers. With
--cpu-python, the interpreter of an environment with the CPU provider alone, the same script loads
it there. Without a MODEL, those of ../shared/models; NAME_inputs.npz beside NAME.onnx is its input.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import optuna
import program
from inputs import file_beside, workload_of

from autotune.deploy.options import Value
from autotune.deploy.providers import CPU
from autotune.deploy.telemetry import switch_off
from autotune.facts.model import describe
from autotune.results.result import StudyResult
from autotune.search.optuna_trials import read_trials
from autotune.space.session import EXECUTION_PROVIDER
from autotune.storage.locks import DATABASE
from autotune.study.progress import Progress
from autotune.study.tune import tune

_MODELS = Path(__file__).parent.parent.parent / "shared" / "models"
_TRIALS = 30
_QUICK_TRIALS = 6
_APPLICATION = """
import json, sys, warnings
import numpy
import autotune
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    session = autotune.load(sys.argv[1])
with numpy.load(sys.argv[2]) as feed:
    outputs = session.run(None, dict(feed))
numpy.savez(sys.argv[3], *outputs)
print(json.dumps([session.get_providers(), [str(item.message) for item in caught]]))
"""


def main() -> None:
    """Prints a row for each model."""
    parser = program.parser_of(__doc__)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL.onnx")
    parser.add_argument("--trials", type=int, default=_TRIALS)
    parser.add_argument("--providers", default="", help="all that are ready here by default")
    parser.add_argument("--cpu-python", help="interpreter with the CPU provider alone")
    parser.add_argument("--quick", action="store_true", help=f"{_QUICK_TRIALS} trials")
    given = parser.parse_args()
    switch_off()  # the script below inherits it
    rows = {}
    for model in given.models or sorted(_MODELS.glob("*.onnx")):
        with tempfile.TemporaryDirectory() as scratch:
            row = check(
                model,
                Path(scratch),
                _QUICK_TRIALS if given.quick else given.trials,
                [word for word in given.providers.split(",") if word],
                given.cpu_python,
            )
        rows[model.stem] = row
        print(sentence(model.stem, row), flush=True)
    program.print_json(given, {"models": rows})


def check(
    model: Path, folder: Path, trials: int, providers: Sequence[str], cpu_python: str | None
) -> dict[str, Any]:
    """Returns what a study says of one model, and what becomes of its winner."""

    def report(progress: Progress) -> None:
        text = f"{model.stem}: {progress.stage} {progress.done} of {progress.total}"
        sys.stderr.write(f"\r{text:50}")

    out = folder / "out"
    result = tune(
        model,
        trials=trials,
        providers=providers,
        data=file_beside(model),
        out=out,
        on_progress=report,
    )
    sys.stderr.write("\n")
    feed = folder / "feed.npz"
    arrays: Any = dict(workload_of(model, describe(model)).validation[0])
    np.savez(feed, **arrays)
    winner = next(m for m in result.members if m.trial == result.picked)
    evidence = winner.evidence
    return {
        "best": best_ratios(result),
        "winner": provider_of(winner.configuration),
        "words": winner.words,
        "error": evidence.error,
        "peak_memory_mib": evidence.peak_memory_mib,
        "baseline_peak_memory_mib": result.baseline.evidence.peak_memory_mib,
        "noise_floor": evidence.noise_floor,
        "placement": {} if evidence.provider is None else dict(evidence.provider.placement),
        "trials": result.trials,
        "failed": dict(result.failed),
        "loaded": loaded(sys.executable, out / "best.json", model, feed),
        "loaded_on_cpu": None
        if cpu_python is None
        else loaded(cpu_python, out / "best.json", model, feed),
    }


def provider_of(configuration: Mapping[str, Value]) -> str:
    """Returns the word of a configuration's provider."""
    return str(configuration.get(EXECUTION_PROVIDER, "cpu"))


def best_ratios(result: StudyResult) -> dict[str, float]:
    """Returns the latency of the fastest right configuration of each provider, in default runs.

    It is the final comparison's figure where one of the provider took part, or else the search's.
    A provider all of whose trials failed is missing.
    """
    confirmed: dict[str, float] = {}
    for member in result.members:
        if member.admitted:
            note_less(
                confirmed, provider_of(member.configuration), 1 / member.evidence.speedup.value
            )
    searched: dict[str, float] = {}
    study = optuna.load_study(
        study_name=result.study, storage=f"sqlite:///{Path(result.folder).absolute()}/{DATABASE}"
    )
    most = result.limits["max_error"]
    assert most is not None
    for trial in read_trials(study):
        measurement = trial.measurement
        if measurement is not None and measurement.fidelity.error <= most:
            word = provider_of(trial.configuration.to_json())
            note_less(searched, word, measurement.ratio.value)
    return {**searched, **confirmed}


def note_less(ratios: dict[str, float], word: str, ratio: float) -> None:
    """Keeps the least ratio of a provider."""
    ratios[word] = min(ratio, ratios.get(word, ratio))


def loaded(python: str, config: Path, model: Path, feed: Path) -> dict[str, Any]:
    """Returns how an application with that interpreter fares with the winner.

    The script runs autotune of this checkout. Its answers are compared with those of the untouched
    model on the CPU: relative L2 distance, worst output.
    """
    answers = feed.with_name("answers.npz")
    done = subprocess.run(
        [python, "-c", _APPLICATION, str(config), str(feed), str(answers)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    if done.returncode:
        said = [done.stderr.strip().splitlines()[-1]]
        return {"providers": [], "said": said, "difference": None}
    providers, said = json.loads(done.stdout.splitlines()[-1])
    untouched = onnxruntime.InferenceSession(model, providers=[CPU])
    with np.load(feed) as arrays, np.load(answers) as archive:
        expected = untouched.run(None, dict(arrays))
        outputs = [archive[name] for name in archive.files]
    difference = max(map(distance, expected, outputs))
    return {"providers": providers, "said": said, "difference": difference}


def distance(expected: Any, output: Any) -> float:
    """Returns the relative L2 distance of an output."""
    size = float(np.linalg.norm(expected)) or 1.0
    return float(np.linalg.norm(output.astype(np.float64) - expected)) / size


def sentence(name: str, row: dict[str, Any]) -> str:
    """Returns a row of the table as text."""
    ratios = ", ".join(f"{word} {ratio:.3f}" for word, ratio in row["best"].items())
    memory = row["peak_memory_mib"] / row["baseline_peak_memory_mib"]
    shares = ", ".join(f"{name} {share:.0%}" for name, share in row["placement"].items())
    lines = [f"{name:22} best ratios: {ratios}; winner {row['winner']}: {row['words']}"]
    lines.append(
        f"{'':22} error {row['error']:.1g}, peak memory {row['peak_memory_mib']:.1f} MiB "
        f"({memory:.2f} of the default's), nodes: {shares or 'all on the CPU'}"
    )
    for where, key in (("here", "loaded"), ("with the CPU provider alone", "loaded_on_cpu")):
        if row[key] is not None:
            said = " ".join(row[key]["said"]) or "nothing is said"
            runs = ", ".join(row[key]["providers"]) or "nothing"
            difference = row[key]["difference"]
            apart = "no answers" if difference is None else f"answers differ by {difference:.1g}"
            lines.append(f"{'':22} loaded {where}: {runs}; {apart}; {said}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
