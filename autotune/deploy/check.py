"""What a tuned config would do on this machine, without opening the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.deploy.config import TunedConfig, config_file
from autotune.deploy.fitting import fit
from autotune.deploy.loaded import FORMAT, LoadedConfig
from autotune.deploy.loader import check_files
from autotune.errors import CannotMeasureError, ConfigError


@dataclass(frozen=True, kw_only=True)
class Check:
    """The outcome of a check.

    Attributes:
        format: The config's format; empty where it cannot be read.
        problem: What is wrong with the config or its model files; empty if nothing.
        only_strict: Whether ``autotune.load`` sees that with ``strict=True`` alone.
        refusal: Why it refuses the config on this processor, whose answers would be wrong; empty if
            it does not.
        lacking: The execution providers that this machine lacks, in words.
        differences: How this machine differs from the one that tuned the config, in words.
        adapted: What would be changed for this machine, in words; empty if nothing.
        steps: What the config's model differs by from the untouched one; empty if it is that one.
        files: Names of the model files whose sizes and SHA-256 are those of the config.
        calls: What an application must know of how it calls the session, a sentence each.
        tuned_for: How the config was called while it was tuned, in words; empty for one caller.
    """

    format: str
    problem: str
    only_strict: bool = False
    refusal: str = ""
    lacking: Sequence[str] = ()
    differences: Sequence[str] = ()
    adapted: str = ""
    steps: Sequence[str] = ()
    files: Sequence[str] = ()
    calls: Sequence[str] = ()
    tuned_for: str = ""

    @property
    def valid(self) -> bool:
        """Whether the config keeps its schema and its model files are the ones it names."""
        return not self.problem

    @property
    def outcome(self) -> str:
        """What ``autotune.load`` would do here, as a sentence."""
        if self.only_strict:
            return "autotune.load opens this config, and refuses it with strict=True."
        if self.problem:
            return "autotune.load refuses this config."
        if self.refusal:
            return "autotune.load refuses this config on this processor."
        if self.lacking:
            return "autotune.load opens the model with ONNX Runtime's default options, and warns."
        if self.differences:
            return "autotune.load opens the model as tuned, and warns that the machine is another."
        if self.adapted:
            return "autotune.load opens the model on the cores that it may use here, and warns."
        return "autotune.load opens the model as tuned."

    def exit_code(self, *, strict: bool) -> int:
        """Returns the exit code of `autotune check`.

        Args:
            strict: Whether another machine counts as a fault, as in ``load(strict=True)``.
        """
        if self.problem:
            return ConfigError.exit_code
        if self.refusal or self.lacking or (strict and (self.differences or self.adapted)):
            return CannotMeasureError.exit_code
        return 0


def check(path: Path) -> Check:
    """Returns what ``autotune.load`` would do with a config on this machine.

    Args:
        path: The config, or the folder of a study.
    """
    path = config_file(path)
    try:
        config = TunedConfig.read(path)
    except ConfigError as error:
        return Check(format="", problem=str(error), only_strict=_is_loaded(path))
    has_sizes = False
    try:
        check_files(path, config, read_all=False)
        has_sizes = True
        check_files(path, config, read_all=True)
    except ConfigError as error:
        return Check(format=FORMAT, problem=str(error), only_strict=has_sizes)
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
        calls=_calls(config),
        tuned_for="" if config.serving is None else config.serving.words,
    )


def _is_loaded(path: Path) -> bool:
    """Returns whether ``autotune.load`` reads a config that breaks the schema elsewhere."""
    try:
        check_files(path, LoadedConfig.read(path), read_all=False)
    except ConfigError:
        return False
    return True


def _calls(config: TunedConfig) -> list[str]:
    """Returns what an application must know of how it calls the session."""
    sentences = []
    if fixed := config.session.free_dimensions:
        sizes = ", ".join(f"{name} = {size}" for name, size in fixed.items())
        sentences.append(f"It takes {sizes} only: ONNX Runtime refuses inputs of other sizes.")
    if config.session.is_parallel:
        sentences.append(
            "It runs operators in parallel: a process that forks (gunicorn --preload) must load it "
            "after the fork, or the run raises an error."
        )
    if config.session.options.get("intra_op_num_threads") == 1:
        sentences.append(
            "It has one thread: run_async works in a session of autotune.load, and not in one that "
            "is made with autotune.session_options."
        )
    return sentences
