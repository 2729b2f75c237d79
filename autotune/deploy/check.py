"""What a tuned config would do on this machine, without opening the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import FORMAT, TunedConfig
from autotune.deploy.fitting import fit
from autotune.deploy.loader import check_files
from autotune.errors import CannotMeasureError, ConfigError


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of a check.

    Attributes:
        format: The config's format; empty where it cannot be read.
        problem: Why ``autotune.load`` would refuse the config; empty if it would not.
        refusal: Why it refuses the config on this processor, whose answers would be wrong; empty if
            it does not.
        lacking: The execution providers that this machine lacks, in words.
        differences: How this machine differs from the one that tuned the config, in words.
        adapted: What would be changed for this machine, in words; empty if nothing.
        steps: What the config's model differs by from the untouched one, with the shapes that it
            takes where they are fixed; empty if it is the untouched one.
        files: Names of the model files whose sizes and SHA-256 are those of the config.
        tuned_for: How the config was called while it was tuned, in words; empty for one caller.
    """

    format: str
    problem: str
    refusal: str = ""
    lacking: Sequence[str] = ()
    differences: Sequence[str] = ()
    adapted: str = ""
    steps: Sequence[str] = ()
    files: Sequence[str] = ()
    tuned_for: str = ""

    @property
    def valid(self) -> bool:
        """Whether the config keeps its schema and its model files are the ones it names."""
        return not self.problem

    @property
    def outcome(self) -> str:
        """What ``autotune.load`` would do here, as a sentence."""
        if self.problem:
            return "autotune.load refuses this config."
        if self.refusal:
            return "autotune.load refuses this config on this processor."
        if self.lacking:
            return "autotune.load opens the model with ONNX Runtime's default options, and warns."
        if self.differences:
            return "autotune.load opens the model as tuned, and warns that the machine is another."
        return "autotune.load opens the model as tuned."

    def exit_code(self, *, strict: bool) -> int:
        """Returns the exit code of `autotune check`.

        Args:
            strict: Whether another machine counts as a fault, as in ``load(strict=True)``.
        """
        if self.problem:
            return ConfigError.exit_code
        if self.refusal or self.lacking or (strict and self.differences):
            return CannotMeasureError.exit_code
        return 0


def check(path: Path) -> Check:
    """Returns what ``autotune.load`` would do with the config `path` on this machine."""
    try:
        config = TunedConfig.read(path)
    except ConfigError as error:
        return Check(format="", problem=str(error))
    try:
        check_files(path, config, read_all=True)
    except ConfigError as error:
        return Check(format=FORMAT, problem=str(error))
    here = fit(config)
    return Check(
        format=FORMAT,
        problem="",
        refusal=here.refusal,
        lacking=here.lacking,
        differences=here.differences,
        adapted=here.adapted,
        steps=config.model.steps,
        files=config.model.names,
        tuned_for="" if config.serving is None else config.serving.words,
    )
