"""The Gram matrix G = C'C as a table: what an audit of many patterns spends its time on, so it is
computed once."""

import numpy as np
from numpy.typing import NDArray


class GramTable:
    """G over the first `rounds` rounds.

    G is symmetric, so only its lower half is kept, row after row: G[i, j], j <= i, is at place i (i
    + 1) / 2 + j. A place does not depend on the number of rounds, so a table grows without being
    copied.

    Args:
        most_rounds: rounds to which the table can grow; it uses 4 bytes per pair of rounds as it
            grows.
    """

    def __init__(self, most_rounds: int) -> None:
        self.rounds = 0
        self._lower = np.zeros(most_rounds * (most_rounds + 1) // 2)

    @classmethod
    def of_matrix(cls, G: NDArray[np.float64]) -> "GramTable":
        """The table of a whole `G`, [n, n], of which the half above the diagonal is dropped."""
        table = cls(len(G))
        table.add(0, 0, G)
        table.rounds = len(G)
        return table

    def add(self, row: int, column: int, block: NDArray[np.float64]) -> None:
        """Adds a block [R, S] to G[row : row + R, column : column + S]; the part above the diagonal
        is skipped."""
        for i, values in enumerate(block, start=row):
            start = i * (i + 1) // 2 + column
            # Row i has i + 1 entries up to its diagonal.
            width = min(len(values), i + 1 - column)
            self._lower[start : start + width] += values[:width]

    def entries(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        """The entries G[first, second] elementwise, of arrays of one shape with `first` <= `second`
        < rounds."""
        row_starts = second * (second + 1) // 2
        return self._lower[row_starts + first]

    def rows(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Whole `rows` of G, [R, rounds], in the order asked for; the half above the diagonal is
        filled in by symmetry."""
        # Entries are found column by column, because neighbouring rows are adjacent in memory.
        columns = np.arange(self.rounds)[:, None]
        first = np.minimum(rows, columns)
        second = np.maximum(rows, columns)
        found = self.entries(first, second)
        return np.ascontiguousarray(found.T)

    def diagonal(self) -> NDArray[np.float64]:
        """The diagonal of G, [rounds]: the squared norms of C's columns, that is, squared
        sensitivities of one participation."""
        rounds = np.arange(self.rounds)
        return self.entries(rounds, rounds)
