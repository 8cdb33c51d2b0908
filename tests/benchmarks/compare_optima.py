"""Our optimised BLTs against jax-privacy's, over a grid of settings: losses and times, paired setting by setting.

    make peers                                           30 settings, n from 64 to 20,000 (about half an hour)
    python tests/benchmarks/compare_optima.py --first 2  the first settings only

Both losses are computed by fedray, from the parameters that each found. Prints a line per setting, then the largest excess of
our loss over theirs and the median ratio of the times, compilation included; asserts nothing.
"""

import argparse
import math
import statistics
import time

import jax
from jax_privacy.matrix_factorization import buffered_toeplitz

from fedray.mechanisms.blt import BLT
from fedray.mechanisms.loss import loss
from fedray.mechanisms.optimize.blt import optimize_blt
from fedray.mechanisms.optimize.objective import Objective, Target
from fedray.mechanisms.participation import MinSep

PARTICIPATIONS = [
    (64, 8, 8),
    (256, 256, 1),
    (256, 16, 4),
    (1000, 100, 10),
    (2052, 342, 6),
    (5000, 500, 3),
    (20_000, 1000, 20),
]
GRID: list[tuple[tuple[int, int, int], int, Objective]] = [
    *(
        (participation, buffers, objective)
        for participation in PARTICIPATIONS[:5]
        for buffers in (1, 2, 4)
        for objective in ("max", "rms")
    ),
]
GRID = [
    *GRID[:26],
    (PARTICIPATIONS[5], 3, "max"),
    (PARTICIPATIONS[5], 2, "rms"),
    (PARTICIPATIONS[6], 2, "max"),
    (PARTICIPATIONS[6], 4, "rms"),
]


def ours(participation: MinSep, buffers: int, objective: Objective) -> BLT:
    """Ours."""
    return optimize_blt([Target(participation)], buffers, objective)


def theirs(participation: MinSep, buffers: int, objective: Objective, steps: int) -> BLT | None:
    """Theirs; None where it is no BLT of ours (merged or negative buffers)."""
    n, b, k = participation.rounds, participation.min_sep, participation.max_participations
    error = "max" if objective == "max" else "mean"
    target = buffered_toeplitz.LossFn.build_min_sep(
        n=n, error=error, min_sep=b, max_participations=k
    )
    found, _ = buffered_toeplitz.optimize_loss(
        target, num_buffers=buffers, max_optimizer_steps=steps
    )
    try:
        return BLT(
            theta=tuple(map(float, found.buf_decay)), omega=tuple(map(float, found.output_scale))
        )
    except ValueError:
        return None


def value(blt: BLT | None, participation: MinSep, objective: Objective) -> float:
    """The loss asked for; NaN for none."""
    if blt is None:
        return math.nan
    found = loss(blt, participation)
    return found.max_loss if objective == "max" else found.rms_loss


def main() -> None:
    """Runs the comparison."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=len(GRID), help="how many settings to run")
    parser.add_argument(
        "--steps",
        type=int,
        default=600,
        help="steps of jax-privacy's optimiser [default: its own, 600]",
    )
    arguments = parser.parse_args()
    excesses, ratios = [], []
    for (n, b, k), buffers, objective in GRID[: arguments.first]:
        participation, results, seconds = MinSep(n, b, k), [], []
        for is_ours in (True, False):
            jax.clear_caches()
            started = time.perf_counter()
            found = (
                ours(participation, buffers, objective)
                if is_ours
                else theirs(participation, buffers, objective, arguments.steps)
            )
            results.append(value(found, participation, objective))
            seconds.append(time.perf_counter() - started)
        excesses.append(results[0] - results[1])
        ratios.append(seconds[0] / seconds[1])
        print(
            f"n={n:6} b={b:5} k={k:3} buffers={buffers} {objective}: ours {results[0]:.6f} in {seconds[0]:6.2f} s, "
            f"jax-privacy {results[1]:.6f} in {seconds[1]:6.2f} s, ratio {ratios[-1]:.3f}",
            flush=True,
        )
    known = [excess for excess in excesses if not math.isnan(excess)]
    print(
        f"{len(excesses)} settings ({len(excesses) - len(known)} where jax-privacy's result is no valid BLT)"
    )
    print(
        f"largest excess of our loss {max(known):+.6f}; median ratio of times {statistics.median(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
