"""The parameters that change the model's file, read from the entries of this room."""

from collections.abc import Mapping

from autotune.deploy.options import Value
from autotune.graph.entries import GraphParameter
from autotune.graph.passes import PRE_PASSES
from autotune.graph.precision import PRECISIONS
from autotune.graph.precision_options import AS_PRECISION, EMBEDDINGS, OPTIONS
from autotune.graph.storage_form import STORAGE_FORMS

GRAPH_PARAMETERS: Mapping[str, GraphParameter] = {
    "pre_pass": GraphParameter.of_entries("none", PRE_PASSES),
    "precision": GraphParameter.of_entries("fp32", PRECISIONS),
    **OPTIONS,
    "embeddings": GraphParameter.of_entries(AS_PRECISION, EMBEDDINGS),
    "storage": GraphParameter.of_entries("inline", STORAGE_FORMS),
}
"""All of them by name, in the order in which their words are listed."""

ANSWER_PARAMETERS = frozenset({"precision", "embeddings", *OPTIONS})
"""Those that are meant to change the answers; the others change them by rounding, or by a fault."""

PACKAGES = tuple(
    dict.fromkeys(
        package
        for parameter in GRAPH_PARAMETERS.values()
        for entry in parameter.entries.values()
        for package in entry.packages
    )
)
"""Import names of all packages that an entry needs."""


def graph_words(half: Mapping[str, Value]) -> tuple[str, ...]:
    """Returns a graph half in words, a phrase for each parameter that is not at its default.

    Args:
        half: Graph parameters that differ from their default, by name.
    """
    return tuple(
        parameter.words(half[name]) for name, parameter in GRAPH_PARAMETERS.items() if name in half
    )
