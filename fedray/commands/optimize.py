"""`fedray optimize`: optimize or build a mechanism."""

import time
from pathlib import Path
from typing import Annotated

from fedray.commands.frame.output import print_json, print_line, print_pieces
from fedray.commands.frame.progress import progress_line


def _kinds(begun: str) -> list[str]:
    from fedray.mechanisms.optimize.design import KINDS

    return [kind for kind in (*KINDS, "best") if kind.startswith(begun)]


def optimize(
    kind: Annotated[str, _kinds],
    *,
    rounds: int | None = None,
    min_sep: int | None = None,
    max_participations: int | None = None,
    is_fixed_order: bool = False,
    buffers: int | None = None,
    bands: int | None = None,
    loss: str = "rms",
    workload: str = "prefix",
    epsilon: float | None = None,
    delta: float | None = None,
    sampling: float | None = None,
    out: Path | None = None,
    as_json: bool = False,
) -> None:
    """Optimize a mechanism for a setting, or build one.

    A setting is --rounds, --min-sep and --max-participations.
    `fedray mechanism` gives its privacy.
    The kind best is the banded-toeplitz of the bands, and as many partitions of a schedule
    cyclic_poisson, with the least noise for an epsilon; it takes --rounds, and --bands to fix them.

    Args:
        kind: blt, banded, banded-toeplitz, band-fhu, bisr, dense, tree, tree-full, identity,
            best, or a finished blt-100, blt-400 or blt-1000
        buffers (D): buffers of a blt; default: 4
        bands (B): bands; default: min-sep, or those of least loss for band-fhu and bisr
        loss (max|rms): loss to minimise: of the worst round, or the root mean square over rounds
        workload (W): prefix, for prefix sums; SCENARIO.toml for its server; or parts joined by
            commas: momentum=0.9, decay=0.95, schedule=SCENARIO.toml
        out (FILE): mechanism as JSON, with a matrix as .npy beside it
    Privacy, of the kind best:
        epsilon (E): largest epsilon allowed
        sampling (P): expected share of all devices in a round
    """
    from fedray.report.mechanisms import bands_table
    from fedray.runs.design import (
        AMPLIFIED_KIND,
        find_mechanism,
        read_amplification,
        read_request,
    )

    unused = {"min_sep": min_sep, "max_participations": max_participations}
    unused |= {"buffers": buffers, "is_fixed_order": is_fixed_order or None}
    wanted = read_amplification(kind, rounds, epsilon, delta, sampling, unused)
    setting = (kind, rounds, min_sep, max_participations)
    if wanted is not None:
        # The search sets min-sep and participations, by the number of bands.
        setting = (AMPLIFIED_KIND, rounds, 1, 1)
    request = read_request(*setting, buffers, bands, workload, is_fixed_order, loss)
    started = time.perf_counter()
    with progress_line(f"optimizing {kind}") as show:
        found = find_mechanism(request, out, show, wanted)
    if as_json:
        seconds = round(time.perf_counter() - started, 3)
        print_json({**found.to_json(), "seconds": seconds})
    else:
        print_pieces(found.figures.tables())
        if found.tried:
            print_pieces([bands_table(found.tried)])
        if out is not None:
            print_line(f"mechanism  {out}")
