"""The matrix C of a mechanism that releases C X + z * clip_norm * N(0, I), and its sensitivity with
the theorem that proves it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.mistakes import Explained
from .gram import GramTable
from .participation import MOST_ROUNDS, MinSep
from .recurrence import Recurrence
from .workload import PREFIX, Workload

# A rule of thumb: float32 has seven digits, and at this growth one of them is left for the noise.
LARGEST_NOISE_GROWTH = 1e6
"""Largest allowed weight of a draw in C^-1 Z; beyond it, the rounding of float32 would swamp the
noise."""

MOST_MATRIX_ROUNDS = 20_000
"""Size limit of matrices. A matrix of this size has 3.2 GB, and its products take minutes."""


class SensitivityUnknown(InputError):
    """No theorem gives the sensitivity under this participation in reasonable time. The sensitivity
    of a trace, computed pattern by pattern, may still be known."""


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """L2 sensitivity of X -> C X at clip norm 1, under zero-out of one device."""

    value: float
    """L2 sensitivity under the participation, at clip norm 1."""
    is_exact: bool
    """Whether some device's contributions attain the value; False: it is a proven upper bound,
    possibly loose."""
    theorem: str
    """Theorem that proves the value."""
    lower_bound: float
    """Norm that a device with `worst_pattern` attains; equal to the value if that is exact."""
    worst_pattern: tuple[int, ...]
    """Rounds of a device that attain the lower bound."""


class Strategy(Explained, ABC):
    """An immutable strategy matrix. Serialises to JSON as its `kind` and its parameters.

    A subclass provides the definition of C from its paper, the entries of the Gram matrix G = C'C,
    the error of the decoder, and the recurrence of the noise. Most belong to one of two families
    that implement all of these, `fedray.mechanisms.toeplitz.ToeplitzStrategy` and
    `fedray.mechanisms.triangular.TriangularStrategy`.
    """

    kind: str
    """Kind of the mechanism."""

    paper: ClassVar[str] = ""
    """The paper that published the mechanism; empty if there is none."""

    @classmethod
    def cited(cls, name: str) -> str:
        """Returns a `name` of the mechanism with its paper behind it."""
        return f"{name} ({cls.paper})" if cls.paper else name

    @property
    def parameters(self) -> dict[str, Any]:
        """The mechanism's own parameters, as in its file, without those not given; for a matrix,
        its digest instead of its file name."""
        return {
            key: value
            for key, value in self.model_dump(mode="json", exclude_none=True).items()
            if key not in ("kind", "file")
        }

    @property
    def most_rounds(self) -> int | None:
        """Largest number of rounds that may be released; None if C is defined for any number."""
        return None

    def check_rounds(self, rounds: int) -> None:
        """Raises InputError unless 1 <= `rounds` <= most_rounds; noise for later rounds would
        repeat rows or be missing."""
        if rounds < 1:
            raise InputError.of(
                "rounds", rounds, "must be at least 1", "nothing is released in no rounds"
            )
        if rounds > MOST_ROUNDS:
            raise InputError.of("rounds", rounds, f"must not exceed {MOST_ROUNDS:,}", "lower it")
        if self.most_rounds is not None and rounds > self.most_rounds:
            raise InputError.of(
                "rounds",
                rounds,
                f"is more than this {self.kind} strategy has ({self.most_rounds})",
                "optimise one for more rounds",
            )

    @abstractmethod
    def gram_entries(self, first: Int64Array, second: Int64Array, rounds: int) -> Float64Array:
        """Returns G[first, second] elementwise, for 0 <= first <= second < rounds, of equal shapes.

        G = C'C over a run of `rounds` rounds. For some kinds an entry is larger if more rounds
        follow, so it differs between a run and the beginning of that run.
        """

    def gram(self, rounds: int) -> Float64Array:
        """Returns G = C'C, [rounds, rounds]; 8 bytes per entry, so for a few thousand rounds at
        most."""
        return self.gram_rows(np.arange(rounds), rounds)

    def gram_table(self, rounds: int) -> GramTable:
        """Returns a table for looking up entries of G over `rounds` rounds; 4 bytes per pair of
        rounds.

        It is faster than `gram_entries` if many patterns need the same entries.
        """
        return GramTable.of_matrix(self.gram(rounds))

    def grown_table(self, table: GramTable | None, rounds: int, most_rounds: int) -> GramTable:
        """Returns G over `rounds` rounds, which are more than `table` has and at most
        `most_rounds`; `table` must not be used afterwards.

        A strategy whose entries of G only gain terms as rounds are added extends the table; others
        recompute it. `table` is None in the first call.
        """
        del table, most_rounds
        return self.gram_table(rounds)

    def gram_rows(self, rows: Int64Array, rounds: int) -> Float64Array:
        """Returns whole rows of G, [R, rounds], in the order of `rows`, over a run of `rounds`
        rounds."""
        columns = np.arange(rounds)
        first = np.minimum(rows[:, None], columns)
        second = np.maximum(rows[:, None], columns)
        return self.gram_entries(first, second, rounds)

    def summed_gram_rows(self, pattern: Int64Array, rounds: int) -> Float64Array | None:
        """Returns the sum of the rows of G in a pattern [c], [rounds], computed without G; None if
        adding up the rows is fastest."""
        # Only a structure such as constant diagonals makes another way quicker.
        del pattern, rounds
        return None

    def pattern_square(self, pattern: Int64Array, rounds: int) -> float | None:
        """Returns the squared norm of the sum of the columns of C in a pattern [c], computed
        without G; None if C has negative entries.

        It equals the sum of G[i, j] over i, j in the pattern, but takes time and memory in
        proportion to the rounds instead of c^2. A round that occurs twice in the pattern counts
        twice.
        """
        del pattern, rounds
        return None

    def pattern_squares(self, patterns: Int64Array, rounds: int) -> Float64Array | None:
        """Returns `pattern_square` of each of many patterns [P, c], sorted, with the bits of the
        sum of the entries of G; None if there is no quicker way than adding these up."""
        del patterns, rounds
        return None

    def diagonals(self, rounds: int) -> int:
        """Returns the number of diagonals of C up to the last nonzero one over `rounds` rounds;
        columns at least this far apart are orthogonal. `rounds` if no smaller number is known."""
        return rounds

    def is_quick_under_participation(self, rounds: int) -> bool:
        """Returns whether `participation_sensitivity` over `rounds` rounds takes less time than
        looking at every entry of G."""
        del rounds
        return False

    def noise_growth(self, rounds: int) -> float:
        """Returns the largest weight of a draw in the noise C^-1 Z over `rounds` rounds; 1 if the
        strategy's parameters bound it, or if it could be computed only by inverting a matrix."""
        del rounds
        return 1.0

    def check_noise_growth(self, rounds: int) -> None:
        """Raises InputError if the noise of `rounds` rounds grows beyond LARGEST_NOISE_GROWTH."""
        growth = self.noise_growth(rounds)
        # `not <=`, so that a growth that is not a number is refused too.
        if not growth <= LARGEST_NOISE_GROWTH:
            raise InputError(
                f"the noise C^-1 Z of this {self.kind} strategy grows {growth:g}-fold within "
                f"{rounds} rounds; use coefficients whose inverse is stable"
            )

    @abstractmethod
    def definition(self, rounds: int) -> Float64Array:
        """Returns C as its paper defines it: [rounds, rounds], or [nodes, rounds] for a tree.

        Slow and readable. Shares no code with the other methods, because canaries and tests compare
        them with it.
        """

    @abstractmethod
    def recurrence(self, rounds: int) -> Recurrence:
        """Returns the recurrence that makes the strategy's noise, row by row.

        The server does not depend on the kind of strategy: it makes its stream of noise from this
        recurrence.

        Args:
            rounds: number of rounds, from 1 to most_rounds.
        """

    def participation_sensitivity(self, participation: MinSep) -> Sensitivity:
        """Returns the largest sensitivity of any pattern that the participation permits.

        The value is never too small: it is exact, or a proven upper bound and marked as such.

        Raises:
            InputError: the strategy has fewer rounds than the participation.
            SensitivityUnknown: no theorem gives a value in reasonable time.
        """
        # Fewer patterns, and none that the other rule forbids: the value in any order would be a
        # bound here, but may be far above.
        if participation.is_fixed_order:
            return self.fixed_order_sensitivity(participation)
        return self.min_sep_sensitivity(participation)

    @abstractmethod
    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        """Returns `participation_sensitivity` for a participation in any order."""

    @abstractmethod
    def fixed_order_sensitivity(self, participation: MinSep) -> Sensitivity:
        """Returns `participation_sensitivity` for rounds exactly min-sep apart; see
        `fedray.mechanisms.fixed_order`."""

    def noise_blocks(self, rounds: int) -> Iterator[tuple[int, Float64Array]]:
        """Yields (first, block), [rounds - first, columns]: the next columns of C^-1, or of a
        tree's noise map, from row `first` on; the rows above are zero. Blocks may be
        overwritten."""
        yield 0, np.asarray(np.linalg.inv(self.definition(rounds)), np.float64)

    def error_variances(self, rounds: int, workload: Workload = PREFIX) -> Float64Array:
        """Returns the squared norms of the rows of B = A C^-1, [rounds]: the variance of each row
        of the workload A at noise of unit scale."""
        if rounds > MOST_MATRIX_ROUNDS:
            rule = f"is more than {MOST_MATRIX_ROUNDS:,}, the most for workload {workload}"
            remedy = "use fewer rounds" + ("" if workload.is_prefix else ", or workload prefix")
            raise InputError.of("rounds", rounds, rule, remedy)
        variances = np.zeros(rounds)
        # Block by block, because all of B would need as much memory as C.
        for first, block in self.noise_blocks(rounds):
            B = workload.applied(block, first)
            variances[first:] += np.einsum("ij,ij->i", B, B)
        return variances
