"""The error rates of the sequential test of a metric, and the samples that it uses, by simulation.

    python benchmarks/dev/sequential.py [--draws 4000]

Each row is a true drop of a metric whose samples are right or wrong, and a share of samples of
which one model is right and the other wrong. The limit is one point. 'written' is the share of
draws in which a study writes the config: those within, and those that are undecided and whose drop
is at most the limit by the numbers. Nothing is measured.
"""

import argparse
import json

import numpy as np

from autotune.measure.sequential import BEYOND, UNDECIDED, WITHIN, look, looks_at

_LIMIT = 0.01
_WRITTEN = "written"
_CASES = [
    (drop, disagreement, samples)
    for samples in (300, 1000, 4000, 16000)
    for drop, disagreement in (
        *((0.0, 0.01), (0.0, 0.04), (0.01, 0.01)),
        *((0.01, 0.04), (0.02, 0.04), (0.03, 0.05)),
    )
]


def shares(
    drop: float, disagreement: float, samples: int, draws: int, seed: int = 0
) -> tuple[dict[str, float], float]:
    """Returns the share of draws with each outcome, and the mean number of samples used.

    Args:
        drop: The true drop of the metric.
        disagreement: The share of samples on which the two models differ.
        samples: How many samples there are.
        draws: How many draws.
        seed: Random seed.
    """
    random = np.random.default_rng(seed)
    worse, better = (disagreement + drop) / 2, (disagreement - drop) / 2
    counts = dict.fromkeys((WITHIN, BEYOND, UNDECIDED, _WRITTEN), 0)
    used = 0
    for _ in range(draws):
        row = random.choice([-1.0, 1.0, 0.0], samples, p=[worse, better, 1 - disagreement]).tolist()
        decision, size, fell = UNDECIDED, 0, 0.0
        looks = iter(looks_at(samples))
        while decision == UNDECIDED and size < samples:
            size = next(looks)
            decision, found = look(row[:size], samples, _LIMIT)
            fell = found.value
        counts[decision] += 1
        counts[_WRITTEN] += decision == WITHIN or (decision == UNDECIDED and fell <= _LIMIT)
        used += size
    return {name: count / draws for name, count in counts.items()}, used / draws


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4000)
    parser.add_argument("--json", action="store_true", help="the shares as a last line of JSON")
    options = parser.parse_args()
    draws, rows = options.draws, []
    print(f"Limit: a drop of {_LIMIT:.0%}. {draws} draws a row.\n")
    outcomes = (WITHIN, BEYOND, UNDECIDED, _WRITTEN)
    names = ("samples", "true drop", "differ", *outcomes, "samples used")
    print(" ".join(f"{name:>12}" for name in names))
    for drop, disagreement, samples in _CASES:
        found, used = shares(drop, disagreement, samples, draws)
        rows.append({"drop": drop, "disagreement": disagreement, "samples": samples, **found})
        percents = " ".join(f"{found[name]:>12.1%}" for name in outcomes)
        print(f"{samples:>12} {drop:>12.1%} {disagreement:>12.1%} {percents} {used:>12.0f}")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
