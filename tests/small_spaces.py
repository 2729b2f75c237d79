"""Spaces resolved for a model and a machine that are made up, and strategies of values."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from factories import model_of, tensor
from hypothesis import strategies as st

from autotune.deploy.options import Domain, Value
from autotune.facts.generated import generate
from autotune.facts.hardware import Hardware
from autotune.facts.model import Model
from autotune.facts.providers import READY, ProviderState
from autotune.facts.usual_sizes import usual_shapes
from autotune.space.files import find_space
from autotune.space.parameters import PARAMETERS
from autotune.space.resolve import resolve
from autotune.space.space import Space


def values_of(domain: Domain) -> st.SearchStrategy[Value]:
    if domain.choices:
        return st.sampled_from(domain.choices)
    if domain.pattern:
        return st.from_regex(domain.pattern, fullmatch=True)
    numbers = st.integers(domain.low, domain.high)
    return numbers.map(str) if isinstance(domain.default, str) else numbers


VALUES: st.SearchStrategy[dict[str, Value]] = st.fixed_dictionaries(
    {}, optional={name: values_of(domain) for name, domain in PARAMETERS.items()}
)
"""Some parameters with values that they take."""


def machine(cores: int, features: tuple[str, ...] = (), architecture: str = "x86_64") -> Hardware:
    return Hardware(
        cpu="a cpu",
        features=features,
        architecture=architecture,
        logical_cores=cores,
        physical_cores=cores,
        usable_cores=cores,
        quota_cores=None,
        memory_mib=1024,
        gpus=(),
        system="Linux 6",
    )


def model(**changes: Any) -> Model:
    """Returns the facts of a model with an input of an open batch, and all else by default."""
    inputs = changes.pop("inputs", (tensor("x", "float32", "batch", 4),))
    return model_of(*inputs, **{"path": Path("m.onnx"), **changes})


def resolved(
    name: str = "default",
    cores: int = 8,
    fixed: Mapping[str, str] | None = None,
    providers: Sequence[str] = ("cpu",),
    batch: Sequence[int] = (),
    features: tuple[str, ...] = (),
    architecture: str = "x86_64",
    **changes: Any,
) -> Space:
    """Returns a preset or a file of the user, resolved for such a model and machine.

    The machine has these execution providers.
    """
    ready = tuple(ProviderState(word=word, state=READY, devices=("CPU",)) for word in providers)
    described = model(**changes)
    # as the user gives them: sizes that autotune chose are not fixed
    shapes = next(usual_shapes(described.inputs))
    inputs = generate(described, shapes)
    here = machine(cores, features, architecture)
    return resolve(find_space(name), described, inputs, here, fixed, ready, batch=batch)
