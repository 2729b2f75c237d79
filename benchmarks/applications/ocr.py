"""RapidOCR over generated pages: recorded, tuned, and run tuned without a change.

    pip install rapidocr-onnxruntime          # best in an environment of its own
    python benchmarks/applications/ocr.py --python /path/to/its/python [--pages 40] [--trials 100]

RapidOCR creates three sessions whose options it sets itself. The pages have eight lines of words.
The program is run in turns as it is and tuned; its own clock times each page, and the text of all
pages is compared: the character error rate is that of the tuned text against today's.
"""

import argparse
import difflib
import json
import os
import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Any

import tuning

from autotune.applications.command import tuned_environment

APPLICATION = Path(__file__).parent / "ocr_application.py"


def character_errors(today: list[str], tuned: list[str]) -> float:
    """Returns the share of characters that differ."""
    first, second = "\n".join(today), "\n".join(tuned)
    blocks = difflib.SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    return 1 - same / max(1, len(first), len(second))


def tune(command: list[str], options: argparse.Namespace) -> Path:
    """Records the application and tunes it; returns the folder of the tuned one."""
    study = ["--trials", str(options.trials), "--space", options.space]
    study += ["--prefer", options.prefer, "--max-error", str(options.max_error)]
    if options.metric:
        study += ["--metric", options.metric, "--max-drop", str(options.max_drop)]
    recording, tuned = options.folder / "ocr.rec", options.folder / "ocr.tuned"
    return tuning.tune(recording, tuned, command, *study)


def compare(command: list[str], rounds: int, tuned: Path) -> dict[str, Any]:
    """Returns the comparison of plain runs in turns."""
    environments = {"today": dict(os.environ), "tuned": tuned_environment(tuned)}
    runs = tuning.in_turns(environments, rounds, partial(tuning.said, command))
    page_ms = {
        name: [statistics.median(item["page_ms"]) for item in own] for name, own in runs.items()
    }
    peak_mib = {
        name: statistics.median(item["peak_mib"] for item in own) for name, own in runs.items()
    }
    pairs = zip(page_ms["tuned"], page_ms["today"], strict=True)
    return {
        "page_ms": {name: statistics.median(values) for name, values in page_ms.items()},
        "time_ratio": statistics.median(mine / its for mine, its in pairs),
        "peak_mib": peak_mib,
        "peak_ratio": peak_mib["tuned"] / peak_mib["today"],
        "character_errors": character_errors(runs["today"][0]["lines"], runs["tuned"][0]["lines"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--python", default=sys.executable, help="where RapidOCR is installed")
    parser.add_argument("--pages", type=int, default=40)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--space", default="default")
    parser.add_argument("--prefer", default="balanced", help="latency, memory or balanced")
    parser.add_argument("--max-error", type=float, default=1e-3, help="of an output of a model")
    parser.add_argument("--metric", help="SESSION=NAME,..., as of `autotune study`")
    parser.add_argument("--max-drop", type=float, default=0.002, help="how far it may fall")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("ocr"))
    parser.add_argument("--quick", action="store_true", help="at most 4 pages, 12 trials, 2 rounds")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.pages = min(4, options.pages)
        options.trials, options.rounds = min(12, options.trials), min(2, options.rounds)
        options.space = "session"
    options.folder.mkdir(parents=True, exist_ok=True)
    command = [options.python, str(APPLICATION), str(options.pages)]
    numbers = compare(command, options.rounds, tune(command, options))
    for name, value in numbers.items():
        print(f"{name:18} {value}")
    if options.json:
        print(json.dumps(numbers))


if __name__ == "__main__":
    main()
