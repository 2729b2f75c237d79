"""Candidates of one space as rows of zeros and ones, which linear models read."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.deploy.options import Value
from autotune.graph.parameters import ANSWER_PARAMETERS, GRAPH_PARAMETERS
from autotune.space.candidate import Candidate
from autotune.space.space import Space

Floats = NDArray[np.float64]


class Coding:
    """The columns of a space: one for each value of each parameter that is not its default.

    Attributes:
        columns: Parameter and value that each column stands for.
        parameter: By column, the number of its parameter.
        is_graph: By column, whether the parameter belongs to the graph half.
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
        # a random number for each column: graph halves differ where the sums of theirs do
        self._marks = np.random.default_rng(0).normal(size=len(self.columns)) * self.is_graph

    def rows(self, candidates: Sequence[Candidate]) -> Floats:
        """Returns the rows of these candidates, as [candidates, columns].

        Raises:
            KeyError: one has a value that the space does not offer.
        """
        rows = np.zeros((len(candidates), len(self.columns)))
        for row, candidate in zip(rows, candidates, strict=True):
            for pair in candidate.values:
                row[self._column[pair]] = 1.0
        return rows

    def covers(self, candidate: Candidate) -> bool:
        """Returns whether all values of the candidate are of this space."""
        return all(pair in self._column for pair in candidate.values)

    def graph_halves(self, rows: Floats) -> Floats:
        """Returns a number for each row that is the same where the graph half is; 0 for none."""
        numbers: Floats = np.round(rows @ self._marks, 9)
        return numbers
