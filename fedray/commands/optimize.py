"""`fedray optimize`: optimize or build a mechanism."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

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
    workload: str = "prefix",
    epsilon: float | None = None,
    delta: float | None = None,
    sampling: float | None = None,
    out: Path | None = None,
    has_cache: bool = True,
    as_json: bool = False,
) -> None:
    """Optimize a mechanism for a setting, or build one.

    A setting is --rounds, --min-sep and --max-participations.
    Ctrl-C ends the search with the best mechanism so far, which is written and validated as any
    other; it is not the optimum, and is not cached. `fedray mechanism` gives its privacy.
    The kind best is the banded-toeplitz of the bands, and as many partitions of a schedule
    cyclic_poisson, with the least noise for an epsilon; it takes --rounds, and --bands to fix them.

    Args:
        kind: blt, banded, banded-toeplitz, band-fhu, bisr, dense, tree, tree-full, identity,
            best, or a finished blt-100, blt-400 or blt-1000
        buffers (D): buffers of a blt; default: 4
        bands (B): bands; default: min-sep, or those of least loss for band-fhu and bisr
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
    request = read_request(*setting, buffers, bands, workload, is_fixed_order)
    started = time.perf_counter()
    with progress_line(f"optimizing {kind}") as show, Search(show) as search:
        found = find_mechanism(request, out, has_cache, search, wanted)
    if as_json:
        seconds = round(time.perf_counter() - started, 3)
        document = {**found.to_json(), "seconds": seconds, "interrupted": search.is_interrupted}
        print_json(document)
    else:
        print_pieces(found.figures.tables())
        if found.tried:
            print_pieces([bands_table(found.tried)])
        if out is not None:
            print_line(f"mechanism  {out}")
    # The mechanism is printed and written by now; the exit code reports the interruption.
    if search.is_interrupted:
        raise KeyboardInterrupt("interrupted; the mechanism is the best that was found so far")


class Search:
    """Listener of a search, which ends with its best result so far at the first interrupt.

    The search ends at its next line of progress. A second interrupt does not wait for that.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        self.is_interrupted = False
        self._show = show
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A background job of a shell ignores SIGINT, and must continue to.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        self.is_interrupted = True
        # The next interrupt ends the process, as in every other command.
        self.__exit__()

    def __call__(self, line: str) -> None:
        self._show(line)
        if self.is_interrupted:
            # The optimizers end with the best result so far.
            raise StopIteration
