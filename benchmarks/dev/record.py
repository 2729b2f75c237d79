"""Measures a whole space of a model, for `benchmarks/dev/search.py` to search without the machine.

    python benchmarks/dev/record.py MODEL.onnx SPACE.toml OUT.jsonl.gz [--max-error 0.05]

Every configuration once, in random order; then twice more, in longer measurements, those near the
front (the best of a thousand noisy numbers was lucky as well as good) and those that are far from
what all others let expect (a noisy machine that passed for a quiet one). It goes on where it was
stopped: OUT.jsonl holds what is measured, OUT.work the prepared models. NAME_inputs.npz beside
NAME.onnx is its input; MODEL may be cnn, transformer or lstm, which
`autotune.facts.sample_models` builds.
"""

import argparse
import contextlib
import gzip
import json
import random
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent))

import numpy as np
from inputs import sample_cnn, workload_of
from recording import Header, Numbers, Recording, header_of, read
from rich.progress import track

from autotune import __version__
from autotune.deploy.loaded import Environment
from autotune.deploy.records import to_plain
from autotune.facts import sample_models
from autotune.facts.hardware import hardware
from autotune.facts.model import describe
from autotune.facts.runtime import runtime
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import FINAL_COMPARISON, Effort, Failure, Outcome
from autotune.search.coding import Coding
from autotune.search.effects import Posterior
from autotune.space.configuration import BASELINE, Configuration
from autotune.space.files import find_space
from autotune.space.resolve import resolve
from autotune.space.space import COUNT_LIMIT, Space

_ONCE = Effort(time_cap_s=0.4, patience_s=1.2, half_width=0.05)
_WARM_UP = 10
_TIMED_UP_TO = 4
_ROUNDS = 3
# What is on the front itself then, so often: a low peak may be malloc's luck three times.
_MORE_ROUNDS = 3
# What would be on the front if it were that much better is measured again.
_NEAR_LATENCY = 0.04
_NEAR_MEMORY = 0.01
# And what is farther than that, as a logarithm, from what the others let expect.
_SURPRISE = 0.08


def main() -> None:
    """Records, and says how far it is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("space", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--max-error", type=float, default=0.05)
    parser.add_argument("--machine", default="", help="what this machine stands for, in words")
    parser.add_argument("--warm-up", type=int, default=_WARM_UP, help="measurements before all")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="of what is near the front")
    parser.add_argument("--more-rounds", type=int, default=_MORE_ROUNDS, help="of the front")
    given = parser.parse_args()
    lines = given.out.with_suffix("")
    work = lines.with_suffix(".work")
    work.mkdir(parents=True, exist_ok=True)
    path = _model(given.model, work)
    with measuring(path, given.space, lines, work, given.max_error) as (measurer, space):
        # the measurer knows a quiet machine by comparison with the last twenty seconds
        warm_up = [measurer.measure(BASELINE, FINAL_COMPARISON) for _ in range(given.warm_up)]
        if not lines.exists():
            begin(lines, path, measurer, space, given.max_error, given.machine)
            for outcome in warm_up:
                _append(lines, measured(outcome, BASELINE))
        every_one(measurer, lines, list(space.configurations or ()))
        for round_number in range(1, given.rounds):
            again(measurer, lines, round_number, doubtful)
        for round_number in range(given.rounds, given.rounds + given.more_rounds):
            again(measurer, lines, round_number, lambda recording: near(recording, 0.0, 0.0))
    with lines.open("rb") as source, gzip.GzipFile(given.out, "wb", mtime=0) as packed:
        shutil.copyfileobj(source, packed)
    lines.unlink()
    shutil.rmtree(work)


@contextlib.contextmanager
def measuring(
    path: Path, space_file: Path, lines: Path, work: Path, max_error: float
) -> Iterator[tuple[DuetMeasurer, Space]]:
    """Gives what measures the model, and the space to be measured.

    A recording that was stopped keeps its space and its scale, whatever they would be today.
    """
    model = describe(path)
    workload = workload_of(path, model)
    header = header_of(lines) if lines.exists() else None
    # a recording that was stopped keeps its space, even if the file would give another one today
    resolved = resolve(find_space(str(space_file)), model, workload, hardware())
    space = header.space if header else resolved
    if space.configurations is None:
        sys.exit(f"{space_file} has more than {COUNT_LIMIT:,} configurations here")
    preparer = Preparer(model, work / "cache", workload=workload, signature=workload.signature())
    measurer = DuetMeasurer(
        model,
        workload,
        preparer,
        max_error=_TIMED_UP_TO * max_error,
        reference_ms=header.reference_ms if header else None,
    )
    try:
        yield measurer, space
    finally:
        measurer.close()


def begin(
    lines: Path, path: Path, measurer: DuetMeasurer, space: Space, max_error: float, words: str
) -> None:
    """Writes the first line of a recording: what is recorded, and where."""
    model, machine, installed = describe(path), hardware(), runtime()
    header = Header(
        model=path.name,
        model_sha256=model.sha256,
        workload=workload_of(path, model).signature(),
        recorded=f"{datetime.now(UTC):%Y-%m-%d}",
        environment=Environment(
            autotune=__version__,
            onnxruntime=installed.version,
            cpu=machine.cpu,
            cores=machine.usable_cores,
            fingerprint=machine.fingerprint(installed),
        ),
        machine=words or f"{machine.cpu}, {machine.usable_cores} cores",
        reference_ms=measurer.reference_ms,
        max_error=max_error,
        space=space,
    )
    _append(lines, header.to_json())


def _model(name: str, work: Path) -> Path:
    if name not in sample_models.KINDS:
        return Path(name)
    if name == "cnn":
        return sample_cnn(work)
    path = work / f"{name}.onnx"
    sample_models.write(name, path)
    return path


def every_one(measurer: DuetMeasurer, lines: Path, configurations: Sequence[Configuration]) -> None:
    """Measures each configuration once, in random order."""
    order = random.Random(0).sample(configurations, len(configurations))
    recording = read(lines)
    done = {*recording.measured, *recording.failed, *recording.duplicates}
    for configuration in track(order, "every configuration"):
        # asked of those that are known as well: duplicates are known by who came first
        stands_for = measurer.canonical(configuration)
        if configuration in done:
            continue
        if stands_for == configuration:
            line = measured(measurer.measure(configuration, _ONCE), configuration)
        else:
            line = {"configuration": configuration.to_json(), "same_as": stands_for.to_json()}
        _append(lines, line)


def again(
    measurer: DuetMeasurer,
    lines: Path,
    round_number: int,
    choose: Callable[[Recording], Collection[Configuration]],
) -> None:
    """Measures once more what is chosen and was measured so often."""
    recording = read(lines)
    todo = sorted(
        (c for c in choose(recording) if len(recording.measured[c]) <= round_number), key=str
    )
    random.Random(round_number).shuffle(todo)
    measurer.renew()
    for configuration in track(todo, f"again, round {round_number}"):
        _append(lines, measured(measurer.measure(configuration, FINAL_COMPARISON), configuration))


def doubtful(recording: Recording) -> set[Configuration]:
    """Returns the configurations that may be better or worse than the others by luck alone."""
    return {*near(recording, _NEAR_LATENCY, _NEAR_MEMORY), *surprising(recording)}


def near(recording: Recording, by_latency: float, by_memory: float) -> list[Configuration]:
    """Returns the configurations that would be on the front if they were better by these shares.

    And those that would be the fastest: of many that are equally fast one was lucky.
    """
    admitted = [(c, n) for c, n in recording.truth.items() if n.error <= recording.header.max_error]

    def is_near(mine: Numbers) -> bool:
        latency = mine.latency_ms * (1 - by_latency)
        memory = mine.peak_memory_mib * (1 - by_memory)
        return not any(
            n.latency_ms <= latency and n.peak_memory_mib <= memory and n != mine
            for _, n in admitted
        )

    least = min(n.latency_ms for _, n in admitted) / (1 - by_latency)
    return [c for c, n in admitted if n.latency_ms <= least or is_near(n)]


def surprising(recording: Recording) -> list[Configuration]:
    """Returns the configurations whose latency is far from what all the others let expect."""
    configurations = list(recording.measured)
    base = recording.truth[BASELINE].latency_ms
    logs = np.log([recording.measured[c][0].latency_ms / base for c in configurations])
    coding = Coding(recording.space)
    # chosen by the evidence of some, then leave-one-out errors of all
    signed, _ = Posterior(coding, coding.rows(configurations), logs, sweeps=4).left_out_errors()
    errors = np.abs(signed)
    limit = max(_SURPRISE, 4 * float(np.median(errors)))
    return [c for c, error in zip(configurations, errors, strict=True) if error > limit]


def measured(outcome: Outcome, configuration: Configuration) -> dict[str, Any]:
    """Returns the line of one measurement."""
    line: dict[str, Any] = {"configuration": configuration.to_json()}
    if isinstance(outcome, Failure):
        return line | {"failure": to_plain(outcome)}
    return line | {"numbers": asdict(Numbers.of(outcome))}


def _append(lines: Path, line: dict[str, Any]) -> None:
    with lines.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
