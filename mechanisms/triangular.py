"""Strategies held as a whole lower-triangular matrix C, [N, N]; over fewer rounds, its leading
block (what was released by then).

Matrices live in `.npy` files beside the JSON that names them, with their SHA-256, so that a claim
names one matrix for good.
"""

import hashlib
import tokenize
from abc import abstractmethod
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, model_validator

from fedray.errors import InputError
from fedray.mistakes import explain
from mechanisms.gram import GramTable
from mechanisms.participation import MinSep
from mechanisms.recurrence import Outputs
from mechanisms.sensitivity import any_strategy_sensitivity, orthogonal_sensitivity
from mechanisms.strategy import Sensitivity, Strategy

MOST_ROUNDS = 20_000
"""Above, a matrix is 3.2 GB and its products take minutes; use a Toeplitz strategy or a BLT."""


BLOCK = 512
"""Columns of C whose products are taken together."""


class TriangularStrategy(Strategy):
    """A strategy with a matrix of its own."""

    @property
    @abstractmethod
    def matrix(self) -> NDArray[np.float64]:
        """C, [N, N], lower triangular, read-only."""

    @property
    def most_rounds(self) -> int:
        return len(self.matrix)

    @cached_property
    def bands(self) -> int:
        """Diagonals up to the last with an entry other than zero: C[i, j] = 0 for i - j >=
        bands."""
        C = self.matrix
        last_rows = len(C) - 1 - np.argmax(C[::-1] != 0, axis=0)
        return int((last_rows - np.arange(len(C))).max()) + 1

    def diagonals(self, rounds: int) -> int:
        return min(self.bands, rounds)

    def recurrence(self, rounds: int) -> Outputs:
        self.check_rounds(rounds)
        C, bands = self.matrix, self.diagonals(rounds)
        return Outputs(row=lambda t: C[t, max(0, t - bands + 1) : t + 1][::-1], bands=bands)

    def gram_entries(
        self, first: NDArray[np.int64], second: NDArray[np.int64], rounds: int
    ) -> NDArray[np.float64]:
        self.check_rounds(rounds)
        C, i, j = self.matrix[:rounds, :rounds], np.ravel(first), np.ravel(second)
        entries = np.empty(i.size)
        for start in range(0, i.size, BLOCK):
            part = slice(start, start + BLOCK)
            below = C[int(j[part].min()) :]  # no column has an entry above its diagonal
            entries[part] = np.einsum("rp,rp->p", below[:, i[part]], below[:, j[part]])
        return entries.reshape(np.shape(first))

    def gram_table(self, rounds: int) -> GramTable:
        self.check_rounds(rounds)
        return _last_table(self, rounds)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def grown_table(self, table: GramTable | None, rounds: int, most_rounds: int) -> GramTable:
        """The rows of C that are new add their products, so all the tables of a growing run cost
        what the last one does.

        Blocks of C's columns meet only the rows below their diagonal and within the bands: a third
        of n^3 products at most.
        """
        self.check_rounds(rounds)
        table = table or GramTable(most_rounds)
        C, bands = self.matrix, self.bands
        for start in range(0, rounds, BLOCK):
            end, left = min(start + BLOCK, rounds), max(0, start - bands + 1)
            below = slice(max(start, table.rounds), min(rounds, end - 1 + bands))
            if below.start < below.stop:
                table.add(start, left, C[below, start:end].T @ C[below, left:end])
        table.rounds = rounds
        return table

    def gram_rows(self, rows: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        self.check_rounds(rounds)
        C = self.matrix[:rounds, :rounds]
        return C[:, rows].T @ C

    def summed_gram_rows(self, pattern: NDArray[np.int64], rounds: int) -> NDArray[np.float64]:
        self.check_rounds(rounds)
        C = self.matrix[:rounds, :rounds]
        return (C @ np.bincount(pattern, minlength=rounds).astype(np.float64)) @ C

    def pattern_square(self, pattern: NDArray[np.int64], rounds: int) -> float | None:
        self.check_rounds(rounds)
        if not self.is_non_negative:
            return None
        column = self.matrix[:rounds, :rounds] @ np.bincount(pattern, minlength=rounds).astype(
            np.float64
        )
        return float(column @ column)

    @cached_property
    def is_non_negative(self) -> bool:
        """Whether no entry of C is below zero."""
        return float(self.matrix.min()) >= 0.0

    def participation_sensitivity(self, participation: MinSep) -> Sensitivity:
        self.check_rounds(participation.rounds)
        if self.bands <= participation.min_sep:
            C = self.matrix[: participation.rounds, : participation.rounds]
            return orthogonal_sensitivity(np.einsum("ij,ij->j", C, C), participation)
        return any_strategy_sensitivity(self, participation)  # pyright: ignore[reportArgumentType]  (frozen, so it has a hash)

    def error_variances(self, rounds: int) -> NDArray[np.float64]:
        """From the columns of A C^-1, by forward substitution."""
        from scipy.linalg import solve_triangular  # 0.3 s to import

        self.check_rounds(rounds)
        C, variances = self.matrix[:rounds, :rounds], np.zeros(rounds)
        for start in range(
            0, rounds, BLOCK
        ):  # columns of C^-1; all of them would need as much memory as C again
            inverse = np.eye(rounds - start, min(BLOCK, rounds - start))
            for top in range(start, rounds, BLOCK):
                rows, place = slice(top, top + BLOCK), slice(top - start, top - start + BLOCK)
                inverse[place] -= C[rows, start:top] @ inverse[: top - start]
                inverse[place] = solve_triangular(
                    C[rows, rows], inverse[place], lower=True, check_finite=False
                )
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

    @classmethod
    def from_matrix(cls, matrix: NDArray[np.float64], file: str) -> Self:
        """A strategy held in memory, to be saved (`mechanisms.files`) under the name `file`. Raises
        InputError."""
        tables = {"kind": cls.model_fields["kind"].default, "file": file}
        try:
            return cls.model_validate(tables, context={"matrix": matrix})
        except ValidationError as error:
            raise InputError(f"{cls.__name__}: {explain(error, cls, tables)}") from None

    @model_validator(mode="after")
    def _read(self, info: ValidationInfo) -> Self:
        if (self.__pydantic_private__ or {}).get("_matrix") is not None:
            return self  # read already, and now made part of another value
        context: dict[str, Any] = info.context or {}
        given = context.get("matrix", context.get("matrices", {}).get(self.sha256))
        C = _checked(
            _load(Path(context.get("directory", ".")), self.file, self.sha256)
            if given is None
            else given,
            self.file,
        )
        digest = hashlib.sha256(C.data).hexdigest()
        if self.sha256 not in ("", digest):
            raise ValueError(
                f"file={self.file!r} holds another matrix (sha256 {digest}) than the one named; "
                "find that one"
            )
        self._matrix = C
        object.__setattr__(self, "sha256", digest)  # frozen, and not yet handed out
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MatrixFile) and (self.kind, self.sha256) == (
            other.kind,
            other.sha256,
        )

    def __hash__(self) -> int:
        return hash((self.kind, self.sha256))


def _load(directory: Path, file: str, sha256: str) -> NDArray:
    by_content = directory / f"{sha256}.npy"
    path = by_content if sha256 and by_content.exists() else directory / file
    try:
        return np.lib.format.open_memmap(
            path, mode="r"
        )  # .npy only, no pickles; nothing is read before shape and type are checked
    except (
        OSError,
        ValueError,
        TypeError,
        EOFError,
        SyntaxError,
        OverflowError,
        RecursionError,
        tokenize.TokenError,
    ) as error:
        reason = " ".join(str(error).split())[:100]
        raise ValueError(
            f"file={str(path)!r} cannot be read as a .npy matrix ({reason}); save it with "
            "numpy.save"
        ) from None


def _checked(given: NDArray, name: str) -> NDArray[np.float64]:
    if (
        given.dtype.kind not in "fiu"
        or given.ndim != 2
        or given.shape[0] != given.shape[1]
        or given.size == 0
    ):
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
    for start in range(
        0, len(C), BLOCK
    ):  # not all rows at once, or the checks would need as much memory again
        rows = C[start : start + BLOCK]
        on_diagonal = np.eye(*rows.shape, k=start, dtype=bool)
        for rule, is_broken in (
            ("every number must be finite", ~np.isfinite(rows)),
            (
                "C must be lower triangular, as noise may not depend on later rounds",
                np.triu(rows, start + 1) != 0,
            ),
            ("the diagonal must be positive, for C to be invertible", on_diagonal & ~(rows > 0)),
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
    C = np.array(np.linalg.cholesky(G[::-1, ::-1]).T[::-1, ::-1], np.float64, order="C")
    C.flags.writeable = False
    return C
