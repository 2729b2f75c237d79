"""What tests run in an environment: real measurements of a moment, and real studies of them.

    python brief.py measure MODEL.onnx CONFIGURATION ...
    python brief.py study MODEL.onnx FAVOURITE PROVIDER ...

`measure` prints the outcome of each configuration, a JSON object of parameters. `study` searches
two parameters beside these execution providers and prints the result; measurements of the provider
FAVOURITE count as a hundred times as fast, so that a test knows the winner.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.deploy.providers import CACHE_FOLDER
from autotune.deploy.records import to_plain
from autotune.facts.generated import generate
from autotune.facts.model import describe
from autotune.graph.prepare import Preparer
from autotune.measure.measurer import DuetMeasurer
from autotune.measure.outcome import Effort, Measurement, Outcome
from autotune.search.context import Context
from autotune.space.configuration import Configuration
from autotune.space.session import EXECUTION_PROVIDER
from autotune.study.options import StudyOptions
from autotune.study.run import run_study
from autotune.study.seams import Seams

_MOMENT = Effort(time_cap_s=0.05, patience_s=0.2, half_width=1.0)
_FAVOUR = 0.01
_SPACE = """
description = "providers and memory patterns"

[parameters.execution_provider]
values = ["cpu", "openvino", "ggml"]
default = "cpu"

[parameters.enable_mem_pattern]
values = [true, false]
default = true
"""


class BriefMeasurer(DuetMeasurer):
    """The real measurer, which takes a moment for each configuration and favours one provider."""

    favourite = ""

    def measure(self, configuration: Configuration, _: Effort, *rest: Any) -> Outcome:
        """Returns the outcome, of the favourite with a hundredth of its latency."""
        outcome = super().measure(configuration, _MOMENT, *rest)
        provider = configuration.to_json().get(EXECUTION_PROVIDER, "cpu")
        if provider != self.favourite or not isinstance(outcome, Measurement):
            return outcome
        interval = outcome.ratio
        ratio = replace(
            interval,
            value=_FAVOUR * interval.value,
            low=_FAVOUR * interval.low,
            high=_FAVOUR * interval.high,
        )
        return replace(outcome, ratio=ratio, latency_ms=_FAVOUR * outcome.latency_ms)


def measure(path: Path, texts: Sequence[str]) -> list[object]:
    """Returns the outcomes of the configurations that `texts` describe."""
    model = describe(path)
    measurer = DuetMeasurer(model, generate(model, {}), max_error=0.05)
    try:
        configurations = [Configuration.of(json.loads(text)) for text in texts]
        return [
            to_plain(measurer.measure(configuration, _MOMENT)) for configuration in configurations
        ]
    finally:
        measurer.close()


def favouring(favourite: str) -> Callable[[Context, Preparer, float | None], BriefMeasurer]:
    """Returns what makes the measurer of a study, which favours this provider."""

    def measurer_of(ctx: Context, preparer: Preparer, reference_ms: float | None) -> BriefMeasurer:
        measurer = BriefMeasurer(
            ctx.model,
            ctx.workload,
            preparer,
            max_error=ctx.limits.max_error,
            reference_ms=reference_ms,
            provider_cache=ctx.folder / CACHE_FOLDER,
        )
        measurer.favourite = favourite
        return measurer

    return measurer_of


def study(path: Path, favourite: str, providers: Sequence[str]) -> object:
    """Returns the result of a study of two trials: the default, and the other provider's."""
    with tempfile.TemporaryDirectory() as folder:
        space = Path(folder) / "space.toml"
        space.write_text(_SPACE, encoding="utf-8")
        options = StudyOptions.of(path, space=str(space), providers=providers, trials=2)
        return run_study(options, lambda _: None, Seams(measurer=favouring(favourite))).to_json()


if __name__ == "__main__":
    command, model_path, *others = sys.argv[1:]
    if command == "measure":
        document: object = measure(Path(model_path), others)
    else:
        document = study(Path(model_path), others[0], others[1:])
    sys.stdout.write(f"\n{json.dumps(document)}\n")
