"""The error rates of the sequential test of a metric, and the samples that it uses, by simulation.

    python benchmarks/dev/sequential.py [--draws 4000]

Each row is a true drop of a metric whose samples are right or wrong, and a share of samples of
which one model is right and the other wrong. The limit is one point. Nothing is measured.
"""

import argparse
import json

import numpy as np

from autotune.measure.sequential import BEYOND, UNDECIDED, WITHIN, look, looks_at

_LIMIT = 0.01
_CASES = [
    (drop, disagreement, samples)
    for samples in (300, 1000, 4000, 16000)
    for drop, disagreement in ((0.0, 0.01), (0.0, 0.04), (0.01, 0.01), (0.01, 0.04), (0.03, 0.05))
]


def shares(
    drop: float, disagreement: float, samples: int, draws: int, seed: int = 0
) -> tuple[dict[str, float], float]:
    """Returns the share of draws with each decision, and the mean number of samples used.

    Args:
        drop: The true drop of the metric.
        disagreement: The share of samples on which the two models differ.
        samples: How many samples there are.
        draws: How many draws.
        seed: Random seed.
    """
    random = np.random.default_rng(seed)
    worse, better = (disagreement + drop) / 2, (disagreement - drop) / 2
    counts = dict.fromkeys((WITHIN, BEYOND, UNDECIDED), 0)
    used = 0
    for _ in range(draws):
        row = random.choice([-1.0, 1.0, 0.0], samples, p=[worse, better, 1 - disagreement]).tolist()
        decision, size = UNDECIDED, 0
        looks = iter(looks_at(samples))
        while decision == UNDECIDED and size < samples:
            size = next(looks)
            decision, _ = look(row[:size], samples, _LIMIT)
        counts[decision] += 1
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
    names = ("samples", "true drop", "differ", WITHIN, BEYOND, UNDECIDED, "samples used")
    print(" ".join(f"{name:>12}" for name in names))
    for drop, disagreement, samples in _CASES:
        found, used = shares(drop, disagreement, samples, draws)
        rows.append({"drop": drop, "disagreement": disagreement, "samples": samples, **found})
        percents = " ".join(f"{found[name]:>12.1%}" for name in (WITHIN, BEYOND, UNDECIDED))
        print(f"{samples:>12} {drop:>12.1%} {disagreement:>12.1%} {percents} {used:>12.0f}")
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
