"""Table of the Gram matrix G = C'C, whose entries take most of the time of an audit."""

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array


class GramTable:
    """G over the first `rounds` rounds.

    Stores the lower triangle row by row: G[i, j], j <= i, is at position i (i + 1) / 2 + j. This
    does not depend on the number of rounds, so a table grows without a copy.

    Args:
        most_rounds: largest number of rounds; memory grows with the rounds in use, at 4 bytes per
            pair of rounds.
    """

    def __init__(self, most_rounds: int) -> None:
        self.rounds = 0
        self._lower = np.zeros(most_rounds * (most_rounds + 1) // 2)

    @classmethod
    def of_matrix(cls, G: Float64Array) -> "GramTable":
        """Makes a table of `G`, [n, n]."""
        table = cls(len(G))
        table.add(0, 0, G)
        table.rounds = len(G)
        return table

    def add(self, row: int, column: int, block: Float64Array) -> None:
        """Adds a block [R, S] to G[row : row + R, column : column + S], ignoring entries above the
        diagonal."""
        for i, values in enumerate(block, start=row):
            start = i * (i + 1) // 2 + column
            # Row i has i + 1 entries up to its diagonal.
            width = min(len(values), i + 1 - column)
            self._lower[start : start + width] += values[:width]

    def entries(self, first: Int64Array, second: Int64Array) -> Float64Array:
        """Returns G[first, second] elementwise, for first <= second < rounds of equal shapes."""
        row_starts = second * (second + 1) // 2
        return self._lower[row_starts + first]

    def rows(self, rows: Int64Array) -> Float64Array:
        """Returns rows of G, [R, rounds], in the order of `rows`."""
        # Column by column, because entries of neighbouring rows are adjacent in memory.
        columns = np.arange(self.rounds)[:, None]
        first = np.minimum(rows, columns)
        second = np.maximum(rows, columns)
        found = self.entries(first, second)
        return np.ascontiguousarray(found.T)

    def diagonal(self) -> Float64Array:
        """Returns the diagonal of G, [rounds]: squared column norms of C, which are the squared
        sensitivities of one participation."""
        rounds = np.arange(self.rounds)
        return self.entries(rounds, rounds)
