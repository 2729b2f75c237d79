"""Configurations of one space as rows of zeros and ones, which linear models read."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.options import Value
from autotune.graph.parameters import ANSWER_PARAMETERS, GRAPH_PARAMETERS
from autotune.space.configuration import Configuration
from autotune.space.session import EXECUTION_PROVIDER
from autotune.space.space import Space

Floats = NDArray[np.float64]


class Coding:
    """The columns of a space: one for each value of each parameter that is not its default.

    Attributes:
        columns: Parameter and value that each column stands for.
        providers: By column, the execution provider beside which it stands for them; empty where
            that does not matter.
        parameter: By column, the number of its parameter.
        is_graph: By column, whether the parameter belongs to the graph parameters.
        is_of_answers: By column, whether the parameter decides the answers.
    """

    def __init__(self, space: Space) -> None:
        pairs = [
            (parameter.name, value)
            for parameter in space.parameters
            for value in parameter.values
            if value != parameter.default
        ]
        # what int8 does on the CPU says little of what it does on another provider
        words = [str(value) for name, value in pairs if name == EXECUTION_PROVIDER]
        own = [(*pair, word) for pair in pairs if pair[0] in ANSWER_PARAMETERS for word in words]
        keys = [*((*pair, "") for pair in pairs), *own]
        self.columns: tuple[tuple[str, Value], ...] = tuple((key[0], key[1]) for key in keys)
        self.providers = tuple(key[2] for key in keys)
        self._column = {key: i for i, key in enumerate(keys)}
        names = list(dict.fromkeys((key[0], key[2]) for key in keys))
        self.parameter = np.asarray([names.index((key[0], key[2])) for key in keys], dtype=int)
        self.is_graph = np.asarray([name in GRAPH_PARAMETERS for name, _ in self.columns], bool)
        self.is_of_answers = np.asarray(
            [name in ANSWER_PARAMETERS for name, _ in self.columns], bool
        )
        # a random number for each column: sets of graph parameters differ where the sums of theirs
        # do
        self._marks = np.random.default_rng(0).normal(size=len(self.columns)) * self.is_graph

    def rows(self, configurations: Sequence[Configuration]) -> Floats:
        """Returns the rows of these configurations, as [configurations, columns].

        Raises:
            KeyError: one has a value that the space does not offer.
        """
        rows = np.zeros((len(configurations), len(self.columns)))
        for row, configuration in zip(rows, configurations, strict=True):
            word = str(dict(configuration.values).get(EXECUTION_PROVIDER, ""))
            for name, value in configuration.values:
                beside = word if name in ANSWER_PARAMETERS else ""
                row[self._column[name, value, beside]] = 1.0
        return rows

    def covers(self, configuration: Configuration) -> bool:
        """Returns whether all values of the configuration are of this space."""
        return all((*pair, "") in self._column for pair in configuration.values)

    def graph_sets(self, rows: Floats) -> Floats:
        """Returns a number for each row, the same for equal graph parameters; 0 for none."""
        numbers: Floats = np.round(rows @ self._marks, 9)
        return numbers
