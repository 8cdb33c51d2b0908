"""Strategies with an explicit lower-triangular matrix C, [N, N]. Over fewer rounds C is its leading
block: the rows released by then.

Matrices are `.npy` files next to the JSON that names them. The JSON has their SHA-256, so that a
claim identifies one matrix forever.
"""

import hashlib
import io
import os
import tokenize
from abc import abstractmethod
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, model_validator

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.mistakes import explain
from fedray.base.regular_file import check_regular_file
from .fixed_order import fixed_order_sensitivity
from .gram import GramTable
from .participation import MinSep
from .recurrence import Outputs
from .sensitivity import any_strategy_sensitivity, orthogonal_sensitivity
from .strategy import MOST_MATRIX_ROUNDS, Sensitivity, Strategy

NPY_DAMAGE = (
    OSError,
    ValueError,
    TypeError,
    EOFError,
    SyntaxError,
    OverflowError,
    RecursionError,
    MemoryError,
    tokenize.TokenError,
)
"""Errors that numpy raises for damaged `.npy` files."""
BLOCK = 512
"""Number of columns of C per matrix product."""


class TriangularStrategy(Strategy):
    """A strategy defined by an explicit matrix, from which bands, sensitivity, error and noise
    follow."""

    @property
    @abstractmethod
    def matrix(self) -> Float64Array:
        """C, [N, N] float64, lower triangular with a positive diagonal, read-only."""

    @property
    def most_rounds(self) -> int:
        return len(self.matrix)

    @cached_property
    def bands(self) -> int:
        """Number of diagonals up to the last nonzero one: C[i, j] = 0 for i - j >= bands."""
        C = self.matrix
        # argmax finds the first True, so the rows are searched from the last one up.
        last_rows = len(C) - 1 - np.argmax(C[::-1] != 0, axis=0)
        lags = last_rows - np.arange(len(C))
        return int(lags.max()) + 1

    def diagonals(self, rounds: int) -> int:
        return min(self.bands, rounds)

    def recurrence(self, rounds: int) -> Outputs:
        C = self._block(rounds)
        bands = self.diagonals(rounds)
        return Outputs(row=lambda t: C[t, max(0, t - bands + 1) : t + 1][::-1], bands=bands)

    def gram_entries(self, first: Int64Array, second: Int64Array, rounds: int) -> Float64Array:
        C = self._block(rounds)
        i = np.ravel(first)
        j = np.ravel(second)
        entries = np.empty(i.size)
        for start in range(0, i.size, BLOCK):
            part = slice(start, start + BLOCK)
            # Column j is zero above row j, so rows above the least j contribute nothing.
            below = C[int(j[part].min()) :]
            entries[part] = np.einsum("rp,rp->p", below[:, i[part]], below[:, j[part]])
        return entries.reshape(np.shape(first))

    def gram_table(self, rounds: int) -> GramTable:
        self.check_rounds(rounds)
        return _last_table(self, rounds)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def grown_table(self, table: GramTable | None, rounds: int, most_rounds: int) -> GramTable:
        """Adds the products of the new rows of C, so that all tables of a growing run together cost
        as much as the last one alone.

        Takes at most n^3 / 3 products: blocks of columns meet only rows below their diagonal and
        within the bands.
        """
        self.check_rounds(rounds)
        # G over fewer rounds differs only in having fewer rows of C in its sums.
        table = table or GramTable(most_rounds)
        C = self.matrix
        bands = self.bands
        for start in range(0, rounds, BLOCK):
            end = min(start + BLOCK, rounds)
            # Columns further to the left share no nonzero row with these.
            left = max(0, start - bands + 1)
            below = slice(max(start, table.rounds), min(rounds, end - 1 + bands))
            if below.start < below.stop:
                products = C[below, start:end].T @ C[below, left:end]
                table.add(start, left, products)
        table.rounds = rounds
        return table

    def gram_rows(self, rows: Int64Array, rounds: int) -> Float64Array:
        C = self._block(rounds)
        return C[:, rows].T @ C

    def summed_gram_rows(self, pattern: Int64Array, rounds: int) -> Float64Array:
        C = self._block(rounds)
        # C'(C x) takes two matrix-vector products; G x would need G.
        times = np.bincount(pattern, minlength=rounds).astype(np.float64)
        return (C @ times) @ C

    def pattern_square(self, pattern: Int64Array, rounds: int) -> float | None:
        C = self._block(rounds)
        # With a negative entry, aligned contributions need not be the worst.
        if not self.is_non_negative:
            return None
        times = np.bincount(pattern, minlength=rounds).astype(np.float64)
        column = C @ times
        return float(column @ column)

    @cached_property
    def is_non_negative(self) -> bool:
        """Whether C >= 0, in which case aligned contributions are the worst for every pattern."""
        return float(self.matrix.min()) >= 0.0

    def fixed_order_sensitivity(self, participation: MinSep) -> Sensitivity:
        return fixed_order_sensitivity(self, participation)

    def min_sep_sensitivity(self, participation: MinSep) -> Sensitivity:
        C = self._block(participation.rounds)
        if self.bands <= participation.min_sep:
            squared_norms = np.einsum("ij,ij->j", C, C)
            return orthogonal_sensitivity(squared_norms, participation)
        return any_strategy_sensitivity(self, participation)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def noise_blocks(self, rounds: int) -> Iterator[tuple[int, Float64Array]]:
        # Blocked forward substitution.
        # Importing scipy takes 0.3 s, and most commands do not need it.
        from scipy.linalg import solve_triangular

        C = self._block(rounds)
        # One block of columns of C^-1 at a time; all of them would need as much memory as C.
        for start in range(0, rounds, BLOCK):
            inverse = np.eye(rounds - start, min(BLOCK, rounds - start))
            for top in range(start, rounds, BLOCK):
                rows = slice(top, top + BLOCK)
                place = slice(top - start, top - start + BLOCK)
                inverse[place] -= C[rows, start:top] @ inverse[: top - start]
                inverse[place] = solve_triangular(
                    C[rows, rows], inverse[place], lower=True, check_finite=False
                )
            yield start, inverse

    def _block(self, rounds: int) -> Float64Array:
        """Returns C over the first rounds. Raises InputError for too many rounds."""
        self.check_rounds(rounds)
        return self.matrix[:rounds, :rounds]


# One audit needs the same table many times.
@lru_cache(maxsize=1)
def _last_table(strategy: TriangularStrategy, rounds: int) -> GramTable:
    return strategy.grown_table(None, rounds, rounds)


class MatrixFile(TriangularStrategy):
    """A matrix read from a `.npy` file.

    The file is searched for in the directory of the JSON or TOML that names it (validation context
    `directory`; default: the working directory), first as `<sha256>.npy`, as in traces, then as
    `file`. Two strategies are equal if their kinds and their matrices are equal.
    """

    file: Annotated[str, Field(min_length=1)]
    """Path of a .npy file with C: [rounds, rounds], float64, lower triangular, finite, with a
    positive diagonal."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the matrix in row-major float64. Checked if given, else computed."""
    _matrix: Float64Array = PrivateAttr()

    @property
    def matrix(self) -> Float64Array:
        return self._matrix

    def definition(self, rounds: int) -> Float64Array:
        return self._matrix[:rounds, :rounds].copy()

    @property
    def content(self) -> bytes:
        """The matrix in .npy format."""
        buffer = io.BytesIO()
        np.save(buffer, self._matrix)
        return buffer.getvalue()

    @property
    def content_name(self) -> str:
        """Name of the file in traces."""
        return f"{self.sha256}.npy"

    @classmethod
    def from_matrix(cls, matrix: Float64Array, file: str) -> Self:
        """Makes a strategy in memory, to be saved later (`fedray.mechanisms.files`).

        Args:
            matrix: C, [N, N], lower triangular with a positive diagonal.
            file: future name of the file.

        Raises:
            InputError: the matrix breaks a rule.
        """
        tables = {"kind": cls.model_fields["kind"].default, "file": file}
        try:
            return cls.model_validate(tables, context={"matrix": matrix})
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {explain(error, cls, tables)}") from None

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if (self.__pydantic_private__ or {}).get("_matrix") is not None:
            # pydantic validates again when the value becomes a field of another one.
            return self
        context: dict[str, Any] = info.context or {}
        given = context.get("matrix", context.get("matrices", {}).get(self.sha256))
        if given is None:
            given = _load(self.file, self.sha256, context)
        C = _checked(given, self.file)
        digest = hashlib.sha256(C.data).hexdigest()
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"file={self.file!r} holds a different matrix (sha256 {digest}); name the right "
                "file"
            )
        self._matrix = C
        # The value is frozen, but not handed out yet.
        object.__setattr__(self, "sha256", digest)
        return self

    def __eq__(self, other: object) -> bool:
        # The digest identifies the matrix; file names may differ.
        if not isinstance(other, MatrixFile):
            return False
        return (self.kind, self.sha256) == (other.kind, other.sha256)

    def __hash__(self) -> int:
        return hash((self.kind, self.sha256))


def _load(file: str, sha256: str, context: dict[str, Any]) -> NDArray:
    # Traces name matrices by content. `file` is never opened for a recorded trace, because a
    # stranger's trace could name any file of this machine.
    directory = Path(context.get("directory", "."))
    by_content = directory / f"{sha256}.npy"
    is_kept = context.get("is_recorded") or (sha256 and os.path.exists(by_content))
    path = by_content if is_kept else directory / file
    try:
        check_regular_file(path, inside=directory if is_kept else None)
        # Opens no pickles, and reads no data before shape and type are checked.
        return np.lib.format.open_memmap(path, mode="r")
    except NPY_DAMAGE as error:
        reason = " ".join(str(error).split())[:100]
        raise ValueError(
            f"file={str(path)!r} cannot be read as a .npy matrix ({reason}); save it with "
            "numpy.save"
        ) from None


def _checked(given: NDArray, name: str) -> Float64Array:
    """Returns the matrix as read-only float64. Raises ValueError if it breaks a rule."""
    is_real = given.dtype.kind in "fiu"
    is_square = given.ndim == 2 and given.shape[0] == given.shape[1]
    if not is_real or not is_square or given.size == 0:
        raise ValueError(
            f"file={name!r} holds {given.dtype} of shape {given.shape}; C must be a square matrix "
            "of real numbers"
        )
    if len(given) > MOST_MATRIX_ROUNDS:
        raise ValueError(
            f"file={name!r} has {len(given)} rounds, more than {MOST_MATRIX_ROUNDS}; use a BLT"
        )
    C = np.array(given, np.float64, order="C")
    # Blocks of rows, because checking all rows at once would need as much memory as C.
    for start in range(0, len(C), BLOCK):
        rows = C[start : start + BLOCK]
        on_diagonal = np.eye(*rows.shape, k=start, dtype=bool)
        is_infinite = ~np.isfinite(rows)
        is_above_diagonal = np.triu(rows, start + 1) != 0
        is_not_invertible = on_diagonal & ~(rows > 0)
        for rule, is_broken in (
            ("every number must be finite", is_infinite),
            ("C must be lower triangular", is_above_diagonal),
            ("the diagonal must be positive, for C to be invertible", is_not_invertible),
        ):
            if is_broken.any():
                i, j = np.argwhere(is_broken)[0].tolist()
                raise ValueError(f"file={name!r}: C[{start + i}, {j}] = {rows[i, j]}; {rule}")
    C.flags.writeable = False
    return C


def lower_factor(G: Float64Array) -> Float64Array:
    """Returns the lower-triangular C with positive diagonal and C'C = G, [n, n] positive definite.

    With the exchange matrix P: L = cholesky(P G P), C = P L' P (Choquette-Choo et al. 2023,
    Proposition 4.1). The columns of C have norms sqrt(G[i, i]). In cholesky(G) the rows have these
    norms, which is another mechanism, of larger sensitivity.
    """
    exchanged = np.linalg.cholesky(G[::-1, ::-1]).T
    C = np.array(exchanged[::-1, ::-1], np.float64, order="C")
    C.flags.writeable = False
    return C
