"""Configurations of one space as rows of zeros and ones, which linear models read."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.options import Value
from autotune.graph.parameters import ANSWER_PARAMETERS, GRAPH_PARAMETERS
from autotune.space.configuration import Configuration
from autotune.space.space import Space

Floats = NDArray[np.float64]


class Coding:
    """The columns of a space: one for each value of each parameter that is not its default.

    Attributes:
        columns: Parameter and value that each column stands for.
        parameter: By column, the number of its parameter.
        is_graph: By column, whether the parameter belongs to the graph parameters.
        is_of_answers: By column, whether the parameter decides the answers.
    """

    def __init__(self, space: Space) -> None:
        self.columns: tuple[tuple[str, Value], ...] = tuple(
            (parameter.name, value)
            for parameter in space.parameters
            for value in parameter.values
            if value != parameter.default
        )
        self._column = {pair: i for i, pair in enumerate(self.columns)}
        names = list(dict.fromkeys(name for name, _ in self.columns))
        self.parameter = np.asarray([names.index(name) for name, _ in self.columns], dtype=int)
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
            for pair in configuration.values:
                row[self._column[pair]] = 1.0
        return rows

    def covers(self, configuration: Configuration) -> bool:
        """Returns whether all values of the configuration are of this space."""
        return all(pair in self._column for pair in configuration.values)

    def graph_sets(self, rows: Floats) -> Floats:
        """Returns a number for each row, the same for equal graph parameters; 0 for none."""
        numbers: Floats = np.round(rows @ self._marks, 9)
        return numbers
