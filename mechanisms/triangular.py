"""Strategies held as a whole lower-triangular matrix C, [N, N]; over fewer rounds, its leading
block.

Matrices live in `.npy` files beside the JSON that names them, with their SHA-256, so that a claim
always names one matrix.
"""

import hashlib
import io
import os
import tokenize
from abc import abstractmethod
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, model_validator

from fedray.base.errors import InputError
from fedray.base.mistakes import explain
from fedray.base.regular_file import check_regular_file
from fedray.mechanisms.gram import GramTable
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.recurrence import Outputs
from fedray.mechanisms.sensitivity import any_strategy_sensitivity, orthogonal_sensitivity
from fedray.mechanisms.strategy import Sensitivity, Strategy

MOST_ROUNDS = 20_000
"""Above, a matrix is 3.2 GB and its products take minutes; use a Toeplitz strategy or a BLT."""


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
"""Errors that numpy raises for a `.npy` file that is damaged."""
BLOCK = 512
"""Columns of C whose products are taken together."""


class TriangularStrategy(Strategy):
    """A strategy with a matrix of its own.

    A subclass says the matrix; bands, sensitivity, error and noise follow from it.
    """

    @property
    @abstractmethod
    def matrix(self) -> NDArray[np.float64]:
        """C, [N, N] float64, lower triangular with a positive diagonal, read-only."""

    @property
    def most_rounds(self) -> int:
        return len(self.matrix)

    @cached_property
    def bands(self) -> int:
        """Diagonals up to the last with an entry other than zero: C[i, j] = 0 for i - j >=
        bands."""
        C = self.matrix
        # argmax finds the first True, so the rows are searched from the last one up.
        last_rows = len(C) - 1 - np.argmax(C[::-1] != 0, axis=0)
        lags = last_rows - np.arange(len(C))
        return int(lags.max()) + 1

    def diagonals(self, rounds: int) -> int:
        return min(self.bands, rounds)

    def recurrence(self, rounds: int) -> Outputs:
        self.check_rounds(rounds)
        C = self.matrix
        bands = self.diagonals(rounds)
        return Outputs(row=lambda t: C[t, max(0, t - bands + 1) : t + 1][::-1], bands=bands)

    def gram_entries(
        self, first: NDArray[np.int64], second: NDArray[np.int64], rounds: int
    ) -> NDArray[np.float64]:
        self.check_rounds(rounds)
        C = self.matrix[:rounds, :rounds]
        i = np.ravel(first)
        j = np.ravel(second)
        entries = np.empty(i.size)
        for start in range(0, i.size, BLOCK):
            part = slice(start, start + BLOCK)
            # Rows above the earliest later round are zero in its column, so they add nothing.
            below = C[int(j[part].min()) :]
            entries[part] = np.einsum("rp,rp->p", below[:, i[part]], below[:, j[part]])
        return entries.reshape(np.shape(first))

    def gram_table(self, rounds: int) -> GramTable:
        self.check_rounds(rounds)
        return _last_table(self, rounds)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def grown_table(self, table: GramTable | None, rounds: int, most_rounds: int) -> GramTable:
        """New rows of C add their products, so all the tables of a growing run together cost one
        table of the last size.

        Blocks of C's columns only meet the rows below their diagonal and within the bands: at most
        a third of n^3 products.
        """
        self.check_rounds(rounds)
        # A G of fewer rounds has fewer rows of C in its sums, and nothing else differs.
        table = table or GramTable(most_rounds)
        C = self.matrix
        bands = self.bands
        for start in range(0, rounds, BLOCK):
            end = min(start + BLOCK, rounds)
            # Columns further to the left have no row in common with these within the bands.
            left = max(0, start - bands + 1)
            below = slice(max(start, table.rounds), min(rounds, end - 1 + bands))
            if below.start < below.stop:
                products = C[below, start:end].T @ C[below, left:end]
                table.add(start, left, products)
        table.rounds = rounds
        return table

    def gram_rows(self, rows: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        self.check_rounds(rounds)
        C = self.matrix[:rounds, :rounds]
        return C[:, rows].T @ C

    def summed_gram_rows(self, pattern: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        self.check_rounds(rounds)
        C = self.matrix[:rounds, :rounds]
        # C'(C x) takes two products with a vector, where G x would need G.
        times = np.bincount(pattern, minlength=rounds).astype(np.float64)
        return (C @ times) @ C

    def pattern_square(self, pattern: NDArray[np.int64], rounds: int) -> float | None:
        self.check_rounds(rounds)
        # With a negative entry, aligned contributions need not be the worst.
        if not self.is_non_negative:
            return None
        times = np.bincount(pattern, minlength=rounds).astype(np.float64)
        column = self.matrix[:rounds, :rounds] @ times
        return float(column @ column)

    @cached_property
    def is_non_negative(self) -> bool:
        """Whether no entry of C is below zero, so that aligned contributions are the worst of any
        pattern."""
        return float(self.matrix.min()) >= 0.0

    def participation_sensitivity(self, participation: MinSep) -> Sensitivity:
        self.check_rounds(participation.rounds)
        if self.bands <= participation.min_sep:
            C = self.matrix[: participation.rounds, : participation.rounds]
            squared_norms = np.einsum("ij,ij->j", C, C)
            return orthogonal_sensitivity(squared_norms, participation)
        return any_strategy_sensitivity(self, participation)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def error_variances(self, rounds: int) -> NDArray[np.float64]:
        """Squared row norms of A C^-1, [rounds], by forward substitution in blocks of columns."""
        # scipy takes 0.3 s to import, and most commands do not need it.
        from scipy.linalg import solve_triangular

        self.check_rounds(rounds)
        C = self.matrix[:rounds, :rounds]
        variances = np.zeros(rounds)
        # The columns of C^-1 are solved for by blocks: all would need as much memory as C again.
        for start in range(0, rounds, BLOCK):
            inverse = np.eye(rounds - start, min(BLOCK, rounds - start))
            for top in range(start, rounds, BLOCK):
                rows = slice(top, top + BLOCK)
                place = slice(top - start, top - start + BLOCK)
                inverse[place] -= C[rows, start:top] @ inverse[: top - start]
                inverse[place] = solve_triangular(
                    C[rows, rows], inverse[place], lower=True, check_finite=False
                )
            # The prefix sums of C^-1 are A C^-1, in place, because a block is large.
            B = np.cumsum(inverse, axis=0, out=inverse)
            variances[start:] += np.einsum("ij,ij->i", B, B)
        return variances


@lru_cache(maxsize=1)
def _last_table(strategy: TriangularStrategy, rounds: int) -> GramTable:
    """The table that was asked for last: one audit asks for the same one many times."""
    return strategy.grown_table(None, rounds, rounds)


class MatrixFile(TriangularStrategy):
    """A matrix read from a `.npy` file.

    It is looked for in the directory of the JSON or TOML that names it (validation context
    `directory`), or else in the working directory: first as `<sha256>.npy`, as in traces, then as
    `file`. Two are equal if kind and matrix are.
    """

    file: Annotated[str, Field(min_length=1)]
    """A .npy file: C, [rounds, rounds], float64, lower triangular, every number finite, the
    diagonal positive."""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of the matrix in row-major float64; filled in when the file is read, checked where
    given."""
    _matrix: NDArray[np.float64] = PrivateAttr()

    @property
    def matrix(self) -> NDArray[np.float64]:
        return self._matrix

    @property
    def content(self) -> bytes:
        """The matrix as a .npy file."""
        buffer = io.BytesIO()
        np.save(buffer, self._matrix)
        return buffer.getvalue()

    @property
    def content_name(self) -> str:
        """Name under which traces carry the file."""
        return f"{self.sha256}.npy"

    @classmethod
    def from_matrix(cls, matrix: NDArray[np.float64], file: str) -> Self:
        """A strategy held in memory, to be saved (`fedray.mechanisms.files`).

        Args:
            matrix: C, [N, N], lower triangular with a positive diagonal.
            file: the name that it will be saved under.

        Raises:
            InputError: the matrix breaks a rule, which the message names.
        """
        tables = {"kind": cls.model_fields["kind"].default, "file": file}
        try:
            return cls.model_validate(tables, context={"matrix": matrix})
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {explain(error, cls, tables)}") from None

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if (self.__pydantic_private__ or {}).get("_matrix") is not None:
            # The matrix was read already, and the value is now made part of another one.
            return self
        context: dict[str, Any] = info.context or {}
        given = context.get("matrix", context.get("matrices", {}).get(self.sha256))
        if given is None:
            given = _load(self.file, self.sha256, context)
        C = _checked(given, self.file)
        digest = hashlib.sha256(C.data).hexdigest()
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"file={self.file!r} holds another matrix (sha256 {digest}) than the one named; "
                "find that one"
            )
        self._matrix = C
        # The value is frozen, but it is not yet handed out.
        object.__setattr__(self, "sha256", digest)
        return self

    def __eq__(self, other: object) -> bool:
        # The digest stands for the matrix; the file's name may differ.
        if not isinstance(other, MatrixFile):
            return False
        return (self.kind, self.sha256) == (other.kind, other.sha256)

    def __hash__(self) -> int:
        return hash((self.kind, self.sha256))


def _load(file: str, sha256: str, context: dict[str, Any]) -> NDArray:
    # Traces carry matrices by their content, and other files by the name that they were given,
    # which is not tried for a trace: a stranger's could name any file of this machine.
    directory = Path(context.get("directory", "."))
    by_content = directory / f"{sha256}.npy"
    is_kept = context.get("is_recorded") or (sha256 and os.path.exists(by_content))
    path = by_content if is_kept else directory / file
    try:
        check_regular_file(path, inside=directory if is_kept else None)
        # This opens only .npy, never pickles, and reads nothing before shape and type are checked.
        return np.lib.format.open_memmap(path, mode="r")
    except NPY_DAMAGE as error:
        reason = " ".join(str(error).split())[:100]
        raise ValueError(
            f"file={str(path)!r} cannot be read as a .npy matrix ({reason}); save it with "
            "numpy.save"
        ) from None


def _checked(given: NDArray, name: str) -> NDArray[np.float64]:
    """The matrix as read-only float64, or ValueError with the rule that it breaks."""
    is_real = given.dtype.kind in "fiu"
    is_square = given.ndim == 2 and given.shape[0] == given.shape[1]
    if not is_real or not is_square or given.size == 0:
        raise ValueError(
            f"file={name!r} holds {given.dtype} of shape {given.shape}; C must be a square matrix "
            "of real numbers"
        )
    if len(given) > MOST_ROUNDS:
        raise ValueError(
            f"file={name!r} has {len(given)} rounds, more than {MOST_ROUNDS}; use a Toeplitz "
            "strategy or a BLT"
        )
    C = np.array(given, np.float64, order="C")
    # Rows are checked by blocks, or the checks would need as much memory as C again.
    for start in range(0, len(C), BLOCK):
        rows = C[start : start + BLOCK]
        on_diagonal = np.eye(*rows.shape, k=start, dtype=bool)
        is_infinite = ~np.isfinite(rows)
        is_above_diagonal = np.triu(rows, start + 1) != 0
        is_not_invertible = on_diagonal & ~(rows > 0)
        for rule, is_broken in (
            ("every number must be finite", is_infinite),
            (
                "C must be lower triangular, as noise may not depend on later rounds",
                is_above_diagonal,
            ),
            ("the diagonal must be positive, for C to be invertible", is_not_invertible),
        ):
            if is_broken.any():
                i, j = np.argwhere(is_broken)[0].tolist()
                raise ValueError(f"file={name!r}: C[{start + i}, {j}] = {rows[i, j]}; {rule}")
    C.flags.writeable = False
    return C


def lower_factor(G: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower-triangular C, diagonal positive, with C'C = G, [n, n] positive definite.

    With the exchange matrix P: L = cholesky(P G P), C = P L' P (Choquette-Choo et al. 2023,
    Proposition 4.1). The columns of C have the norms sqrt(G[i, i]). cholesky(G) itself has them in
    its rows: another mechanism, of larger sensitivity.
    """
    exchanged = np.linalg.cholesky(G[::-1, ::-1]).T
    C = np.array(exchanged[::-1, ::-1], np.float64, order="C")
    C.flags.writeable = False
    return C
