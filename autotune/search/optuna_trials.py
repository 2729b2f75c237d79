"""A trial as Optuna keeps it: parameters and values for all its tools, the rest as attributes.

The parameters are the choices among what the space offers. The configuration is an attribute as
well, because it may lie outside the space: the user may name one, and the default is measured
wherever a space begins.
"""

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.options import Value
from autotune.deploy.records import Json, from_plain, to_plain
from autotune.errors import FormatError
from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.search.trial import Trial
from autotune.space.configuration import Configuration
from autotune.space.space import Parameter, Space

CONFIGURATION = "configuration"
"""User attribute of a trial: its configuration in the shortest form."""

DUPLICATE_OF = "duplicate_of"
"""User attribute of a trial whose configuration opens the same session as another one: that one."""

DONE = (TrialState.COMPLETE, TrialState.PRUNED)
"""The states of a trial that has ended; one that failed has not."""

_CHOICES = "choices"


def parameter_names(study: optuna.Study, space: Space) -> dict[str, str]:
    """Returns the name in Optuna's study of each parameter of the space.

    A parameter of Optuna has the same choices in all trials. Where the space offers others than
    at the study's beginning, as after a runtime was added, the name lists them.
    """
    offered = {p.name: list(p.values) for p in space.parameters}
    known = study.user_attrs.get(_CHOICES)
    kept = known if isinstance(known, dict) else {}
    if offered.keys() - kept.keys():
        study.set_user_attr(_CHOICES, {**offered, **kept})
    return {
        name: name if kept.get(name, values) == values else f"{name}: {_listed(values)}"
        for name, values in offered.items()
    }


def _listed(values: list[Value]) -> str:
    return ", ".join(map(str, values))[:300]


def suggest(trial: optuna.Trial, space: Space, names: Mapping[str, str]) -> Configuration:
    """Returns the configuration that was enqueued for a trial, or else the sampler's.

    Args:
        names: The parameters' names in Optuna's study.
    """
    enqueued = _configuration_in(trial.user_attrs.get(CONFIGURATION))

    def choose(parameter: Parameter) -> Value:
        if enqueued is not None:
            value = enqueued.to_json().get(parameter.name, parameter.default)
            if value not in parameter.values:
                return value
        # Optuna's annotation leaves out that a choice keeps its type
        chosen: Any = trial.suggest_categorical(names[parameter.name], parameter.values)
        return chosen  # type: ignore[no-any-return]

    configuration = space.configuration(choose)
    if enqueued is not None:
        return enqueued
    trial.set_user_attr(CONFIGURATION, configuration.to_json())
    return configuration


def enqueue(
    study: optuna.Study, configuration: Configuration, space: Space, names: Mapping[str, str]
) -> None:
    """Lets the study measure a configuration before its sampler is asked again.

    Args:
        names: The parameters' names in Optuna's study.
    """
    parameters: dict[str, Value] = {}

    def choose(parameter: Parameter) -> Value:
        value = configuration.to_json().get(parameter.name, parameter.default)
        if value in parameter.values:
            parameters[names[parameter.name]] = value
        return value

    space.configuration(choose)
    study.enqueue_trial(parameters, user_attrs={CONFIGURATION: configuration.to_json()})


def configuration_of(frozen: FrozenTrial) -> Configuration | None:
    """Returns the configuration of a trial; None where it has none.

    A storage may come from a stranger: values that no parameter takes are ignored.
    """
    return _configuration_in(frozen.user_attrs.get(CONFIGURATION))


def duplicate_in(frozen: FrozenTrial) -> Configuration | None:
    """Returns the configuration that a trial's configuration equals; None where it has none."""
    return _configuration_in(frozen.user_attrs.get(DUPLICATE_OF))


def _configuration_in(attribute: object) -> Configuration | None:
    try:
        return Configuration.from_json(attribute)
    except FormatError:
        return None


def attributes_of(outcome: Outcome) -> Json:
    """Returns the user attribute that keeps an outcome."""
    kind = "measurement" if isinstance(outcome, Measurement) else "failure"
    return {kind: to_plain(outcome)}


def trial_of(frozen: FrozenTrial) -> Trial | None:
    """Returns the trial that Optuna keeps; None where it was not measured."""
    configuration, outcome = configuration_of(frozen), outcome_of(frozen.user_attrs)
    if configuration is None or outcome is None:
        return None
    return Trial(number=frozen.number, configuration=configuration, outcome=outcome)


def read_trials(study: optuna.Study) -> list[Trial]:
    """Returns the measured trials of the study, in order."""
    trials = (trial_of(frozen) for frozen in study.get_trials(deepcopy=False, states=DONE))
    return [trial for trial in trials if trial is not None]


def outcome_of(attributes: Mapping[str, Any]) -> Outcome | None:
    """Returns the outcome that attributes hold; None where they hold no valid one."""
    try:
        if "measurement" in attributes:
            return from_plain(Measurement, attributes["measurement"])
        if "failure" in attributes:
            return from_plain(Failure, attributes["failure"])
    except FormatError:
        pass
    return None
