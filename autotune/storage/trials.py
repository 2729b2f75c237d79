"""A trial as Optuna keeps it: the configuration as its parameters, the outcome as an attribute.

The distribution of a parameter is all that the parameter takes anywhere, not what one space offers:
configurations of the user and of related studies lie outside the space, and Optuna allows no other
choices later.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from autotune.deploy.options import RUNTIME, Value
from autotune.deploy.records import Json, from_plain, to_plain
from autotune.errors import FormatError
from autotune.graph.parameters import OUTPUTS
from autotune.measure.outcome import Failure, Measurement, Outcome
from autotune.search.trial import Trial
from autotune.space.configuration import Configuration
from autotune.space.parameters import PARAMETERS
from autotune.space.space import Space

DUPLICATE_OF = "duplicate_of"
"""User attribute of a trial whose configuration opens the same session as another one: that one."""

_NAMING = {f"{name}:": name for name in (RUNTIME, OUTPUTS)}
"""Starts of parameters that stand for a runtime or for outputs: nobody can list their names."""

DONE = (TrialState.COMPLETE, TrialState.PRUNED)
"""The states of a trial that has ended; one that failed has not."""


def parameters_of(configuration: Configuration, space: Space) -> dict[str, Any]:
    """Returns Optuna's parameters of a configuration.

    They are its values, and the defaults of the other parameters that exist beside them: people
    compare trials by these in other tools.
    """
    chosen = configuration.to_json()
    defaults = {
        p.name: p.default
        for p in space.parameters
        if p.is_active(chosen) and p.default == PARAMETERS[p.name].default
    }
    stored = {name: _stored(name, value) for name, value in {**defaults, **chosen}.items()}
    for start, name in _NAMING.items():
        if (value := stored.pop(name, None)) is not None:
            stored[f"{start}{value}"] = True
    return stored


def distribution_of(name: str) -> BaseDistribution:
    """Returns everything that a parameter takes, as Optuna has it."""
    if name.startswith(tuple(_NAMING)):
        return CategoricalDistribution((True,))
    domain = PARAMETERS[name]
    if domain.choices:
        return CategoricalDistribution(domain.choices)
    return IntDistribution(domain.low, domain.high)


def _stored(name: str, value: Value) -> Value:
    """Returns a value as its distribution holds it: numbers of config entries are strings."""
    domain = PARAMETERS[name]
    return value if domain.choices or domain.pattern else int(value)


def _values_in(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in parameters.items():
        start = next(filter(name.startswith, _NAMING), "")
        if start:
            yield _NAMING[start], name.removeprefix(start)
            continue
        domain = PARAMETERS.get(name)
        is_entry = domain is not None and not domain.choices and isinstance(domain.default, str)
        yield name, str(value) if is_entry else value


def configuration_of(frozen: FrozenTrial) -> Configuration | None:
    """Returns the configuration of a trial; None where it has none.

    A storage may come from a stranger: values that no parameter takes are ignored.
    """
    try:
        return Configuration.from_json(dict(_values_in(frozen.params)))
    except FormatError:
        return None


def duplicate_in(frozen: FrozenTrial) -> Configuration | None:
    """Returns the configuration that a trial's configuration equals; None where it has none."""
    try:
        return Configuration.from_json(frozen.user_attrs.get(DUPLICATE_OF))
    except FormatError:
        return None


def describe(trial: Trial) -> Json:
    """Returns a trial as a line of the spool; :func:`trial_in` reads it."""
    return {"configuration": trial.configuration.to_json(), **attributes_of(trial.outcome)}


def attributes_of(outcome: Outcome) -> Json:
    """Returns the user attribute that keeps an outcome."""
    kind = "measurement" if isinstance(outcome, Measurement) else "failure"
    return {kind: to_plain(outcome)}


def trial_in(entry: Mapping[str, Any]) -> Trial | None:
    """Returns the trial that a line of the spool holds; None where it holds no valid one.

    Its number is 0: the storage numbers the trial when it gets there.
    """
    outcome = outcome_of(entry)
    try:
        configuration = Configuration.from_json(entry.get("configuration"))
    except FormatError:
        return None
    return (
        None if outcome is None else Trial(number=0, configuration=configuration, outcome=outcome)
    )


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


def outcome_of(entry: Mapping[str, Any]) -> Outcome | None:
    """Returns the outcome that attributes hold; None where they hold no valid one."""
    try:
        if "measurement" in entry:
            return from_plain(Measurement, entry["measurement"])
        if "failure" in entry:
            return from_plain(Failure, entry["failure"])
    except FormatError:
        pass
    return None
