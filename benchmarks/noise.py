"""How well a measurement repeats.

    python benchmarks/noise.py [MODEL.onnx ...] [--json] [--quick]

Each repetition measures in a fresh process, in a duet like those of a study and for at most 2 s:

- same: the default against itself; the truth is 1;
- threads: one thread against the default;
- work: a chain of equal layers against one with a fifth more of them; the truth is known.

A repetition in which the machine was not quiet for long enough is repeated, at most three times;
the number of these is printed.

Each is measured on the machine as it is and beside neighbours: two processes that each burn a core
at random intervals. `p50` is what other tools report, the median of a plain loop in a process of
its own, for as long. At the end, chains of 33 and of 34 layers are measured one after the other and
ranked, 40 times over.

Without a model, three are built. NAME_inputs.npz beside NAME.onnx is its input.
"""

import contextlib
import itertools
import json
import random
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import program
from inputs import workload_of
from neighbours import neighbours
from onnx import TensorProto, helper, numpy_helper

from autotune.deploy.session import SessionConfig
from autotune.facts import sample_models
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.facts.workload import Workload
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Measurement
from autotune.measure.replies import FirstRuns, SliceTimes
from autotune.measure.requests import SampleFiles, request_session
from autotune.process.child import Child

_TIME_CAP_S = 1.6
# A measurement may wait for a quiet machine, until this many times its time cap has passed.
_PATIENCE = 1.25
_LAYERS, _ONE_MORE, _A_FIFTH_MORE = 33, 34, 40

_MOST_RETAKES = 3
_retakes: Counter[str] = Counter()

Rows = dict[tuple[str, str, bool], list[float]]
"""Ratios to the default by model, pair and whether neighbours were at work."""


@dataclass(frozen=True)
class Plan:
    """How often and how long to measure.

    Attributes:
        folder: For models and samples.
        repetitions: Of each measurement.
        tries: Of ranking two chains.
        seconds: Longest time of time slices in one measurement.
        retakes: How often one is repeated at most if the machine was never quiet.
    """

    folder: Path
    repetitions: int
    tries: int
    seconds: float
    retakes: int


def main() -> None:
    """Prints the tables."""
    parser = program.parser_of(__doc__)
    parser.add_argument("models", type=Path, nargs="*")
    parser.add_argument("--quick", action="store_true", help="5 repetitions, 16 tries")
    parser.add_argument("--repetitions", type=int, help="of each measurement")
    parser.add_argument("--tries", type=int, help="of ranking two chains")
    parser.add_argument("--seconds", type=float, default=_TIME_CAP_S, help="of a measurement")
    parser.add_argument("--retakes", type=int, default=_MOST_RETAKES, help="of a measurement")
    given = parser.parse_args()
    repetitions = given.repetitions or (5 if given.quick else 12)
    tries = given.tries or (16 if given.quick else 40)
    rows: Rows = defaultdict(list)
    plain: dict[tuple[str, bool], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        plan = Plan(Path(scratch), repetitions, tries, given.seconds, given.retakes)
        # the processes that measure have a working directory of their own
        for path in [path.resolve() for path in given.models] or build(plan.folder):
            measure_model(path, plan, rows, plain)
        right = measure_chains(plan, rows)
    print_table(rows, plain)
    summary = summarise(rows, plain) | {"rank3_right": right / tries}
    print(f"\n3 % ranked right in {right} of {tries} tries")
    for name, value in summary.items():
        print(f"{name:26} {value:.3f}")
    retakes = ", ".join(f"{name} {count}" for name, count in _retakes.items())
    print(f"measurements repeated because the machine was never quiet: {retakes or 'none'}")
    if given.json:
        counts = {"repetitions": repetitions, "tries": tries}
        print(json.dumps({**summary, **counts, "taken_again": _retakes.total()}))


def build(folder: Path) -> list[Path]:
    """Writes three models of some 0.3 ms a run."""
    models = {
        "cnn": sample_models.separable_cnn(channels=64, size=128, blocks=4),
        "transformer": sample_models.transformer(width=256, layers=4),
        "chain": chain(12),
    }
    for name, model in models.items():
        onnx.save(model, folder / f"{name}.onnx")
    return [folder / f"{name}.onnx" for name in models]


def chain(layers: int) -> onnx.ModelProto:
    """Returns a model of equal layers, one after another; its time is proportional to them."""
    weight = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32) / 16
    # chains of any length have the same input and output: a study compares outputs by name
    tensors = ["x", *(f"layer{i}" for i in range(1, layers)), "y"]
    nodes = []
    for i, (source, target) in enumerate(itertools.pairwise(tensors)):
        nodes.append(helper.make_node("MatMul", [source, "weight"], [f"product{i}"]))
        nodes.append(helper.make_node("Tanh", [f"product{i}"], [target]))
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 256])],
        [numpy_helper.from_array(weight, "weight")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def measure_model(
    path: Path, plan: Plan, rows: Rows, plain: dict[tuple[str, bool], list[float]]
) -> None:
    """Measures the default and one thread, over and over."""
    model = describe(path)
    workload = workload_of(path, model)
    one_thread = SessionConfig(options={"intra_op_num_threads": 1})
    with _measurer(path, workload, plan) as measure:
        for repetition in range(plan.repetitions):
            for noisy in (False, True):
                with neighbours(2 if noisy else 0, repetition):
                    rows[path.stem, "same", noisy].append(measure(path, SessionConfig()))
                    rows[path.stem, "threads", noisy].append(measure(path, one_thread))
                    plain[path.stem, noisy].append(_plain_p50(path, workload, plan))
            _note(f"{path.stem}: repetition {repetition + 1} of {plan.repetitions}")


def measure_chains(plan: Plan, rows: Rows) -> int:
    """Measures chains of known work; returns how often 34 layers came out slower than 33."""
    paths = {}
    for layers in (_LAYERS, _ONE_MORE, _A_FIFTH_MORE):
        paths[layers] = plan.folder / f"chain{layers}.onnx"
        onnx.save(chain(layers), paths[layers])
    workload = generate(describe(paths[_LAYERS]), {})
    order = random.Random(0)
    right = 0
    with _measurer(paths[_LAYERS], workload, plan) as measure:
        for repetition in range(plan.repetitions):
            for noisy in (False, True):
                with neighbours(2 if noisy else 0, repetition):
                    ratio = measure(paths[_A_FIFTH_MORE], SessionConfig())
                    rows["chain", "work", noisy].append(ratio)
        for i in range(plan.tries):
            ratios = {
                layers: measure(paths[layers], SessionConfig())
                for layers in order.sample((_LAYERS, _ONE_MORE), 2)
            }
            right += ratios[_ONE_MORE] > ratios[_LAYERS]
            _note(f"ranking: try {i + 1} of {plan.tries}")
    return right


def summarise(rows: Rows, plain: dict[tuple[str, bool], list[float]]) -> dict[str, float]:
    """Returns the spread (largest over smallest) of the worst model, by name."""

    def worst(pair: str, noisy: bool) -> float:
        return max(
            _spread(repetitions)
            for (_, which, state), repetitions in rows.items()
            if which == pair and state == noisy
        )

    def worst_plain(noisy: bool) -> float:
        return max(
            _spread(repetitions) for (_, state), repetitions in plain.items() if state == noisy
        )

    return {
        "same_spread": worst("same", False),
        "same_spread_neighbour": worst("same", True),
        "p50_spread": worst_plain(False),
        "p50_spread_neighbour": worst_plain(True),
        "threads_spread": worst("threads", False),
        "threads_spread_neighbour": worst("threads", True),
    }


def print_table(rows: Rows, plain: dict[tuple[str, bool], list[float]]) -> None:
    """Prints, for each pair and model, median, spread and standard deviation of the estimates."""
    _note("")
    print(f"{'':44} {'median':>8} {'bias':>8} {'spread':>8} {'sd':>8}")
    for (model, pair, noisy), repetitions in sorted(rows.items(), key=lambda item: item[0][1:]):
        truth = {"same": 1.0, "work": _A_FIFTH_MORE / _LAYERS}.get(pair)
        where = ", beside neighbours" if noisy else ""
        _print_row(f"{pair}, {model}{where}", repetitions, truth)
        if pair == "same":
            _print_row("  p50 of a plain loop, ms", plain[model, noisy], None)


def _print_row(name: str, values: list[float], truth: float | None) -> None:
    middle = float(np.median(values))
    bias = "" if truth is None else f"{middle / truth - 1:+.1%}"
    deviation = float(np.std(np.log(values)))
    print(f"{name:44} {middle:8.3f} {bias:>8} {_spread(values):8.3f} {deviation:8.1%}")


def _spread(values: list[float]) -> float:
    return max(values) / min(values)


@contextlib.contextmanager
def _measurer(
    path: Path, workload: Workload, plan: Plan
) -> Iterator[Callable[[Path, SessionConfig], float]]:
    """Gives a function that measures a file under a config and returns its ratio to the default."""
    effort = Effort(time_cap_s=plan.seconds, patience_s=_PATIENCE * plan.seconds, half_width=0.005)
    measurer = DuetMeasurer(describe(path), workload, max_error=np.inf)

    def measure(file: Path, config: SessionConfig) -> float:
        outcome = measurer.measure_session(file, config, effort)
        for _ in range(plan.retakes):
            if isinstance(outcome, Measurement) and not outcome.is_undisturbed:
                _retakes[path.stem] += 1
                outcome = measurer.measure_session(file, config, effort)
        if not isinstance(outcome, Measurement):
            raise SystemExit(f"{file} could not be measured: {outcome.message}")
        return outcome.ratio.value

    try:
        yield measure
    finally:
        measurer.close()


def _plain_p50(path: Path, workload: Workload, plan: Plan) -> float:
    """Returns the median run in ms of a loop in a fresh process, beside nothing of ours."""
    files = SampleFiles.write(workload, plan.folder)
    with Child("autotune.measure.measure_child", None) as child:
        request_session(child, files, path, SessionConfig(), 60)
        child.request({"do": "first_runs"}, 60, FirstRuns)
        time_slice = {
            "do": "slice",
            "seconds": plan.seconds,
            "unrecorded_runs": 3,
            "fewest_runs": 3,
        }
        return float(np.median(child.request(time_slice, 60, SliceTimes).run_ns)) / 1e6


def _note(text: str) -> None:
    print(f"\r{text:60}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
