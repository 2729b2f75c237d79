"""What options of the process bring, apart from what belongs to the session."""

from collections.abc import Iterator, Mapping

from rich.text import Text

from autotune.report.memory import memory
from autotune.report.text import interval
from autotune.results.process_effect import ProcessEffect, SessionEffect
from autotune.results.result import StudyResult


def process_remarks(result: StudyResult) -> Iterator[Text]:
    """Yields what options of the process do to the default and the emitted config."""
    effect = result.process
    if effect is None:
        return
    yield Text(f"Options of the process, apart from the session: {_variables(effect)}.")
    yield Text(f"  The default with them: {_numbers(effect.default)}.")
    if effect.config is not None:
        yield Text(f"  Trial {effect.trial} with them: {_numbers(effect.config)}.")
    if effect.options_for(result.picked) is None:
        yield Text("  They are not in best.json: nothing showed that they help it.")
    else:
        yield Text(f"  {process_sentence(effect.options.environment)}")


def process_sentence(environment: Mapping[str, str]) -> str:
    """Returns how an application switches on a config's options of the process.

    Args:
        environment: The options as environment variables.
    """
    return (
        "Options of the process are switched on by autotune.load(path, process_options=True), or "
        f"in any language by the environment: {assignments(environment)}"
    )


def assignments(environment: Mapping[str, str]) -> str:
    """Returns environment variables as a shell takes them."""
    return " ".join(f"{name}={text}" for name, text in environment.items())


def _variables(effect: ProcessEffect) -> str:
    return assignments(effect.options.environment)


def _numbers(effect: SessionEffect) -> str:
    size = memory(effect.peak_memory_mib, effect.peak_memory_interval_mib)
    return (
        f"{size} MiB instead of {effect.without_mib:.1f}, "
        f"{effect.speedup.value:.2f}× as fast ({interval(effect.speedup)})"
    )
