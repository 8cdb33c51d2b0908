"""The cost of BLTs beside other mechanisms, and their inverses by closed form and brute force.

McMahan, Xu, Zhang 2024: table 1 orders mechanisms by the cost of their optimisation, the memory of
their noise, and the noise; its words are not at hand, so the order is that of the text. Algorithm 5
computes the weights of a BLT and of its inverse from their decays, theta and theta_hat, which lets
an optimiser search decays only.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedray
from fedray.mechanisms import BLT, Identity, Tree, TreeFull
from .reproduction import (
    Document,
    InJson,
    Reproduced,
    Reproduction,
    Request,
    Subject,
    Table,
    figure_text,
    in_steps,
    statements_table,
)

PAPER = "McMahan, Xu, Zhang 2024"
SETTING = fedray.MinSep(512, 86, 6)
"""A quarter of the rounds and the min-sep of the paper's table 3."""
BUFFERS = 3
ROUNDS = 2052
"""Rounds over which inverses are compared."""
NAMED = ("blt-100", "blt-400", "blt-1000")
"""BLTs of production."""
ROUNDING, NEAR = 1e-12, 1.1
"""Largest difference of the closed form from brute force; largest loss of a BLT over that of a
banded matrix."""
NOTES = (
    f"Mechanisms are for {SETTING.rounds} rounds, min-sep {SETTING.min_sep} and "
    f"{SETTING.max_participations} participations. Numbers are those that the optimiser searches: "
    "two decays of each buffer, coefficients, or entries of a matrix. Seconds are of this machine "
    "and decide nothing. Memory is in models.",
    "Brute force solves C D = I for all coefficients of D. The closed form takes the decays of the "
    "inverse, which are the eigenvalues of its recurrence, and the weights from Algorithm 5.",
)


@dataclass(frozen=True, slots=True)
class Cost(Document):
    """Costs and noise of a mechanism."""

    mechanism: str
    """Kind of the mechanism."""
    searched: int
    """Numbers that its optimiser searches; 0 for a closed form."""
    seconds: float
    """Seconds of the optimisation on the machine that ran it."""
    memory: int
    """Rows of the model's size that its noise keeps."""
    rms_loss: float
    """RmsLoss of the prefix sums."""


@dataclass(frozen=True, slots=True)
class Inverse(Document):
    """A BLT, and its inverse in two ways."""

    name: str
    """Name of the BLT."""
    buffers: int
    """Number of its buffers."""
    decays: tuple[float, ...]
    """theta_hat, decays of the inverse."""
    of_weights: float
    """Largest difference of its own weights from those of Algorithm 5."""
    of_inverse: float
    """Largest difference of the coefficients of the inverse from those of brute force."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether both differences are rounding."""
        return max(self.of_weights, self.of_inverse) <= ROUNDING


@dataclass(frozen=True, slots=True)
class CostsOfBLTs(Document):
    """`fedray reproduce blt-cost`."""

    costs: tuple[Cost, ...]
    """Mechanisms, by their noise."""
    inverses: tuple[Inverse, ...]
    """BLTs of production."""


def weights_of(theta: NDArray, theta_hat: NDArray) -> NDArray:
    """Returns the weights of the BLT with decays theta, [d], whose inverse has the decays
    theta_hat, [d] (Algorithm 5): prod_i (theta_j - theta_hat_i) / prod_(i != j) (theta_j -
    theta_i). The weights of the inverse are those of exchanged arguments."""
    across = theta[:, None] - theta_hat
    within = theta[:, None] - theta + np.eye(len(theta))
    return np.prod(across, axis=1) / np.prod(within, axis=1)


def coefficients_of(theta: NDArray, omega: NDArray, rounds: int) -> NDArray:
    """Returns the first column of a BLT: 1, then sum_j omega_j theta_j^(i - 1)."""
    powers = theta ** np.arange(rounds - 1)[:, None]
    return np.concatenate([[1.0], powers @ omega])


def inverse_by_brute_force(column: NDArray) -> NDArray:
    """Returns the first column of the inverse of a lower triangular Toeplitz matrix, from its own,
    by forward substitution in O(n^2)."""
    inverse = np.zeros_like(column)
    inverse[0] = 1.0 / column[0]
    for i in range(1, len(column)):
        inverse[i] = -(column[i:0:-1] @ inverse[:i]) / column[0]
    return inverse


def inverse_of(name: str, blt: BLT) -> Inverse:
    """Computes the inverse of a BLT in both ways."""
    theta, omega = np.array(blt.theta), np.array(blt.omega)
    # The recurrence of C^-1 maps its buffers by this matrix.
    decays = np.sort(np.linalg.eigvals(np.diag(theta) - omega).real)[::-1]
    closed = coefficients_of(decays, weights_of(decays, theta), ROUNDS)
    forced = inverse_by_brute_force(coefficients_of(theta, omega, ROUNDS))
    return Inverse(
        *(name, len(theta), tuple(decays.tolist())),
        float(np.abs(weights_of(theta, decays) - omega).max()),
        float(np.abs(closed - forced).max()),
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    name: str
    make: Callable[[], "fedray.Strategy"]
    searched: int
    memory: Callable[["fedray.Strategy"], int]
    work: float = 1.0
    """Time that it takes, in any unit."""


def _optimised(kind: Any, **options: Any) -> Callable[[], "fedray.Strategy"]:
    request = fedray.MechanismRequest(kind, SETTING, **options)
    return lambda: fedray.optimize_mechanism(request)


def _bands_kept(strategy: "fedray.Strategy") -> int:
    return strategy.diagonals(SETTING.rounds) - 1


_N, _B = SETTING.rounds, SETTING.min_sep
KINDS = (
    _Kind("banded", _optimised("banded"), _N * _B - _B * (_B - 1) // 2 - _N, _bands_kept, 20.0),
    _Kind("banded-toeplitz", _optimised("banded-toeplitz"), _B - 1, _bands_kept),
    _Kind("blt", _optimised("blt", buffers=BUFFERS), 2 * BUFFERS, lambda _: BUFFERS),
    _Kind("tree-full", lambda: TreeFull(rounds=_N), 0, lambda _: _N),
    _Kind("tree", Tree, 0, lambda _: _N.bit_length()),
    _Kind("identity", Identity, 0, lambda _: 0),
)
"""Mechanisms by their noise in the literature, the least first."""


def run(request: Request) -> Iterator[Reproduced]:
    """Makes every mechanism, and inverts the BLTs of production."""
    inverses = []
    for name in NAMED:
        blt = fedray.read_strategy(name)
        assert isinstance(blt, BLT)
        inverses.append(inverse_of(name, blt))
    costs: dict[str, Cost] = {}
    for kind, _ in in_steps(request, KINDS, lambda kind: kind.name, lambda kind: kind.work):
        begun = time.perf_counter()
        strategy = kind.make()
        seconds = time.perf_counter() - begun
        loss = fedray.mechanism_figures(strategy, SETTING).loss.rms_loss
        costs[kind.name] = Cost(kind.name, kind.searched, seconds, kind.memory(strategy), loss)
    yield _reproduced(CostsOfBLTs(tuple(costs[kind.name] for kind in KINDS), tuple(inverses)))


def _reproduced(found: CostsOfBLTs) -> Reproduced:
    by_name = {each.mechanism: each for each in found.costs}
    losses = [each.rms_loss for each in found.costs]
    blt, banded, toeplitz = (by_name[name] for name in ("blt", "banded", "banded-toeplitz"))
    statements = (
        ("noise grows in this order", losses == sorted(losses)),
        (
            f"a BLT is within {100 * (NEAR - 1):.0f} % of the noise of a banded matrix",
            blt.rms_loss <= NEAR * banded.rms_loss,
        ),
        (
            "a BLT is searched by fewer numbers than bands, and these by fewer than a matrix",
            0 < blt.searched < toeplitz.searched < banded.searched,
        ),
        (
            "a BLT keeps less than the tree, and this less than bands",
            0 < blt.memory < by_name["tree"].memory < banded.memory,
        ),
        (
            "Algorithm 5 is the inverse by brute force",
            all(each.agrees for each in found.inverses),
        ),
    )
    cells = {
        "mechanism": lambda each: each.mechanism,
        "searched numbers": lambda each: f"{each.searched:,}" if each.searched else "none",
        "seconds": lambda each: figure_text(each.seconds, ".2f") if each.searched else "-",
        "memory, models": lambda each: f"{each.memory:,}",
        "RmsLoss": lambda each: figure_text(each.rms_loss),
    }
    inverse_cells = {
        "BLT": lambda each: each.name,
        "buffers": lambda each: str(each.buffers),
        "weights differ by": lambda each: f"{each.of_weights:.1e}",
        "inverse differs by": lambda each: f"{each.of_inverse:.1e}",
        "agrees": lambda each: "yes" if each.agrees else "NO",
    }
    count = sum(holds for _, holds in statements)
    return Reproduced(
        "The cost of BLTs, and their inverses",
        found.to_json(),
        [
            Table.of("Optimisation, memory and noise", found.costs, cells),
            Table.of(
                f"Algorithm 5 and brute force, {ROUNDS:,} coefficients",
                found.inverses,
                inverse_cells,
            ),
            statements_table(statements),
        ],
        NOTES,
        f"{count} of {len(statements)} statements hold.",
        count == len(statements),
        subject=Subject(f"the mechanisms of {PAPER}"),
    )


REPRODUCTION = Reproduction(
    "blt-cost",
    "Cost of optimisation, memory and noise of BLTs, and their inverses by brute force.",
    f"{PAPER}, table 1, algorithm 5",
    "20 s",
    run,
)
