"""Mechanisms: optimize, mechanism."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from fedray.commands.output import (
    DeltaOption,
    JsonFlag,
    MaxParticipationsOption,
    MinSepOption,
    NoiseMultiplierOption,
    QuietFlag,
    RoundsOption,
    print_figures,
    print_json,
    print_pieces,
    progress_line,
)


def _kinds(begun: str) -> list[str]:
    from fedray.mechanisms.optimize.design import KINDS

    return [kind for kind in KINDS if kind.startswith(begun)]


def optimize(
    kind: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            autocompletion=_kinds,
            help="blt, banded, banded-toeplitz, band-fhu, bisr, dense, tree, tree-full or "
            "identity.",
        ),
    ],
    rounds: RoundsOption = None,
    min_sep: MinSepOption = None,
    max_participations: MaxParticipationsOption = None,
    buffers: Annotated[
        int | None, typer.Option(metavar="D", help="Buffers of a blt; default: 4.")
    ] = None,
    bands: Annotated[
        int | None,
        typer.Option(
            metavar="B", help="Bands; default: min-sep; for band-fhu and bisr those of least loss."
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(metavar="max|rms", help="Which loss; default: max for blt, else rms."),
    ] = None,
    targets: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON list of weighted outcomes (rounds, min_sep, max_participations, weight) for "
            "a blt.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write the mechanism as JSON (a matrix beside it as .npy)."
        ),
    ] = None,
    noise_multiplier: NoiseMultiplierOption = None,
    delta: DeltaOption = 1e-10,
    has_cache: Annotated[
        bool,
        typer.Option("--cache/--no-cache", help="Keep and reuse results under ~/.cache/fedray."),
    ] = True,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Optimise a noise mechanism for (rounds, min-sep, max participations), or for weighted
    outcomes; or build one.

    Ctrl-C ends the search with the best mechanism so far, which is written
    and validated as any other; it is not the optimum, and is not cached.
    """
    from fedray.design import find_mechanism, read_request

    request = read_request(
        kind, rounds, min_sep, max_participations, buffers, bands, objective, targets
    )
    started = time.perf_counter()
    with progress_line(f"optimising {kind}", quiet) as on_status, _Search(on_status) as search:
        found = find_mechanism(request, noise_multiplier, delta, out, has_cache, search)
    if as_json:
        seconds = round(time.perf_counter() - started, 3)
        document = {**found.to_json(), "seconds": seconds, "interrupted": search.is_interrupted}
        print_json(document)
    else:
        print_figures(found.figures.to_json())
        for other in found.others:
            print_figures(other.to_json())
        if out is not None:
            typer.echo(f"mechanism  {out}")
    # The mechanism is printed and written by now; the exit code tells that it was interrupted.
    if search.is_interrupted:
        raise KeyboardInterrupt("interrupted; the mechanism is the best that was found so far")


class _Search:
    """Within: listens to a search, and ends it with what was found so far at the first interrupt.

    The search ends when it next tells how far it is. A second interrupt does not wait for that.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.is_interrupted = False
        self._tell = tell
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: Any) -> None:
        del number, frame
        self.is_interrupted = True
        # From now on an interrupt ends the process, as it does everywhere else.
        signal.signal(signal.SIGINT, self._before)

    def __call__(self, line: str) -> None:
        self._tell(line)
        if self.is_interrupted:
            # The optimisers understand it as the wish to end with the best that was found.
            raise StopIteration


_MECHANISM = (
    "A mechanism as JSON (`fedray optimize --out` writes one), a matrix as .npy, or a kind that "
    "follows from the setting: tree, tree-full, identity, band-fhu or bisr."
)
SamplingOption = Annotated[
    float | None,
    typer.Option(
        "--sampling",
        metavar="P",
        help="Hypothetical: each device is drawn with this probability in its turn.",
    ),
]
PartitionsOption = Annotated[
    int | None,
    typer.Option(
        "--partitions",
        metavar="M",
        help="With --sampling: parts of the population that take turns; default: 1.",
    ),
]


def mechanism(
    mechanisms: Annotated[
        list[Path],
        typer.Argument(metavar="MECHANISM", help=f"{_MECHANISM} Several are printed as one table."),
    ],
    rounds: RoundsOption = None,
    min_sep: MinSepOption = None,
    max_participations: MaxParticipationsOption = None,
    noise_multiplier: NoiseMultiplierOption = None,
    delta: DeltaOption = 1e-10,
    sampling: SamplingOption = None,
    partitions: PartitionsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """Loss and sensitivity of mechanisms at any setting, side by side; with a noise multiplier rho
    and epsilon too.

    --rounds, --min-sep and --max-participations are required. Compare the
    losses: each is the noise on the prefix sums at equal privacy.
    """
    from fedray.design import evaluate_mechanisms
    from fedray.report.text.mechanisms import mechanisms_text

    found = evaluate_mechanisms(
        mechanisms,
        rounds,
        min_sep,
        max_participations,
        noise_multiplier,
        delta,
        sampling,
        partitions,
    )
    documents = {name: figures.to_json() for name, figures in found.items()}
    if len(mechanisms) == 1:
        (document,) = documents.values()
        show = print_json if as_json else print_figures
        show(document)
    elif as_json:
        print_json({"mechanisms": documents})
    else:
        print_pieces(mechanisms_text(documents))


def calibrate(
    mechanism: Annotated[Path, typer.Argument(metavar="MECHANISM", help=_MECHANISM)],
    epsilon: Annotated[
        float | None, typer.Option(metavar="E", help="Largest epsilon allowed, at delta.")
    ] = None,
    rho: Annotated[
        float | None, typer.Option(metavar="R", help="Most rho (zCDP), instead of epsilon.")
    ] = None,
    delta: DeltaOption = 1e-10,
    rounds: RoundsOption = None,
    min_sep: MinSepOption = None,
    max_participations: MaxParticipationsOption = None,
    sampling: SamplingOption = None,
    partitions: PartitionsOption = None,
    as_json: JsonFlag = False,
) -> None:
    """The least noise multiplier with which a mechanism has at most an epsilon or rho.

    Either --epsilon or --rho is required, and --rounds, --min-sep and
    --max-participations are.
    """
    from fedray.design import calibrate_mechanism

    figures = calibrate_mechanism(
        mechanism, rounds, min_sep, max_participations, delta, epsilon, rho, sampling, partitions
    )
    show = print_json if as_json else print_figures
    show(figures.to_json())
