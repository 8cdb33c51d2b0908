"""Strategy: the matrix C of a mechanism that releases C X + z * clip_norm * N(0, I), and the
statement of its sensitivity."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from pydantic import ConfigDict

from fedray.base.arrays import FloatArray, IntArray
from fedray.base.errors import InputError
from fedray.base.mistakes import Explained
from fedray.mechanisms.gram import GramTable
from fedray.mechanisms.participation import MOST_ROUNDS, MinSep
from fedray.mechanisms.recurrence import Recurrence

LARGEST_NOISE_GROWTH = 1e6
"""Largest weight of a draw in C^-1 Z; above it, rounding in float32 exceeds the noise itself."""


class SensitivityUnknown(InputError):
    """No theorem gives the sensitivity under this participation at reasonable cost. The sensitivity
    of a trace may still be computable, pattern by pattern."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """L2 sensitivity of X -> C X at clip norm 1, under zero-out of one device."""

    value: float
    """The sensitivity, or a proven upper bound of it."""
    is_exact: bool
    """Whether some device's contributions attain the value. False marks an upper bound, which may
    be loose."""
    theorem: str
    """The result that proves the value."""
    lower_bound: float
    """Sensitivity that a device with `worst_pattern` attains; equal to an exact value."""
    worst_pattern: tuple[int, ...]
    """Rounds of a device that attains the lower bound."""


class Strategy(Explained, ABC):
    """An immutable strategy matrix C. Its JSON is its `kind` and its parameters.

    A subclass defines the entries of G = C'C, the error of the decoder and the recurrence of the
    noise. Most subclasses belong to a family that defines all three:
    `fedray.mechanisms.toeplitz.ToeplitzStrategy` or
    `fedray.mechanisms.triangular.TriangularStrategy`.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True
    )

    kind: str
    """Kind of strategy."""

    paper: ClassVar[str]

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters given, as in its JSON; for a matrix its digest instead of its file."""
        return {
            key: value
            for key, value in self.model_dump(mode="json", exclude_none=True).items()
            if key not in ("kind", "file")
        }

    @property
    def most_rounds(self) -> int | None:
        """Number of rounds for which C is defined; None if there is no limit."""
        return None

    def check_rounds(self, rounds: int) -> None:
        """Raises InputError unless 1 <= `rounds` <= most_rounds."""
        if rounds < 1:
            raise InputError.of("rounds", rounds, "must be at least 1")
        if rounds > MOST_ROUNDS:
            raise InputError.of("rounds", rounds, f"must not exceed {MOST_ROUNDS:,}", "lower it")
        # Noise after the last row would repeat rows, or there would be no noise.
        if self.most_rounds is not None and rounds > self.most_rounds:
            raise InputError.of(
                "rounds",
                rounds,
                f"is more than this {self.kind} strategy has ({self.most_rounds})",
                "optimise it for more rounds",
            )

    @abstractmethod
    def gram_entries(self, first: IntArray, second: IntArray, rounds: int) -> FloatArray:
        """Returns G[first, second] elementwise, for 0 <= first <= second < rounds of equal shapes.

        G = C'C over a run of `rounds` rounds. For some kinds an entry depends on the number of
        rounds that follow, so the G of a run is not a block of the G of a longer run.
        """

    def gram(self, rounds: int) -> FloatArray:
        """Returns G = C'C, [rounds, rounds]; at 8 bytes per entry, for a few thousand rounds at
        most."""
        return self.gram_rows(np.arange(rounds), rounds)

    def gram_table(self, rounds: int) -> GramTable:
        """Returns a table of G, 4 bytes per pair of rounds.

        A table is faster than `gram_entries` if many patterns need the same entries.
        """
        return GramTable.of_matrix(self.gram(rounds))

    def grown_table(self, table: GramTable | None, rounds: int, most_rounds: int) -> GramTable:
        """Returns a table of G that covers more rounds than `table`; invalidates `table`.

        A strategy whose G only gains terms with each round extends the table; others recompute it.

        Args:
            table: the previous table; None on the first call.
            rounds: rounds of the new table.
            most_rounds: rounds of the last table that will be asked for.
        """
        del table, most_rounds
        return self.gram_table(rounds)

    def gram_rows(self, rows: IntArray, rounds: int) -> FloatArray:
        """Returns rows of G, [R, rounds], in the order of `rows`."""
        columns = np.arange(rounds)
        first = np.minimum(rows[:, None], columns)
        second = np.maximum(rows[:, None], columns)
        return self.gram_entries(first, second, rounds)

    def summed_gram_rows(self, pattern: IntArray, rounds: int) -> FloatArray | None:
        """Returns the sum of G's rows in a pattern [c], [rounds], computed without G; None if
        adding the rows is the fastest way."""
        del pattern, rounds
        return None

    def pattern_square(self, pattern: IntArray, rounds: int) -> float | None:
        """Returns the squared norm of the sum of C's columns in a pattern [c], computed without G;
        None if C has negative entries.

        It equals the sum of G[i, j] over i, j in the pattern, in time and memory O(rounds) instead
        of O(c^2). A round that occurs twice in the pattern counts twice.
        """
        del pattern, rounds
        return None

    def diagonals(self, rounds: int) -> int:
        """Returns the number of diagonals of C up to the last nonzero one, or `rounds` if unknown.
        Columns that are at least this far apart are orthogonal."""
        return rounds

    def is_quick_under_participation(self, rounds: int) -> bool:
        """Whether `participation_sensitivity` is faster than a pass over all entries of G."""
        del rounds
        return False

    def noise_growth(self, rounds: int) -> float:
        """Returns the largest weight of a draw in the noise C^-1 Z.

        1 if the parameters bound it, and if finding it would need the inverse of a matrix.
        """
        del rounds
        return 1.0

    def check_noise_growth(self, rounds: int) -> None:
        """Raises InputError if the noise grows beyond LARGEST_NOISE_GROWTH."""
        growth = self.noise_growth(rounds)
        if not growth <= LARGEST_NOISE_GROWTH:
            raise InputError(
                f"the noise C^-1 Z of this {self.kind} strategy grows {growth:g}-fold within "
                f"{rounds} rounds; use coefficients whose inverse is stable"
            )

    @abstractmethod
    def recurrence(self, rounds: int) -> Recurrence:
        """Returns the recurrence of the noise, row by row, for 1 <= rounds <= most_rounds.

        It is all that the server needs: noise streams are made from recurrences, not from kinds.
        """

    @abstractmethod
    def participation_sensitivity(self, participation: MinSep) -> Sensitivity:
        """Returns the largest sensitivity of any pattern that the participation permits.

        The value is never too small: it is exact, or a proven upper bound marked as such.

        Raises:
            InputError: the strategy has fewer rounds than the participation.
            SensitivityUnknown: no theorem gives it at reasonable cost.
        """

    @abstractmethod
    def error_variances(self, rounds: int) -> FloatArray:
        """Returns the squared norms of the rows of B = A C^-1, [rounds]: the variance of each
        prefix sum at noise of unit scale."""
