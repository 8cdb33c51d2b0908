"""Mechanisms: optimize, mechanism, calibrate."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from fedray.base.errors import InputError
from fedray.commands.output import (
    DeltaOption,
    JsonFlag,
    MaxParticipationsOption,
    MinSepOption,
    NoiseMultiplierOption,
    QuietFlag,
    RoundsOption,
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
    from fedray.studies.design import find_mechanism, read_request

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
        for figures in (found.figures, *found.others):
            print_pieces(figures.tables())
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
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            # A background job of a shell ignores SIGINT, and continues to.
            if signal.getsignal(number) != signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: Any) -> None:
        del number, frame
        self.is_interrupted = True
        # From now on an interrupt ends the process, as it does everywhere else.
        self.__exit__()

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
    from fedray.report.mechanisms import mechanisms_table
    from fedray.studies.design import evaluate_mechanisms

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
    if len(mechanisms) == 1:
        (figures,) = found.values()
        _print_figures(figures, as_json)
    elif as_json:
        print_json({"mechanisms": {name: figures.to_json() for name, figures in found.items()}})
    else:
        print_pieces([mechanisms_table(found)])


def _print_figures(figures: Any, as_json: bool) -> None:
    if as_json:
        print_json(figures.to_json())
    else:
        print_pieces(figures.tables())


def calibrate(
    mechanism: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MECHANISM]", help=f"{_MECHANISM} With --trace the run's own is the default."
        ),
    ] = None,
    epsilon: Annotated[
        float | None, typer.Option(metavar="E", help="Largest epsilon allowed, at delta.")
    ] = None,
    rho: Annotated[
        float | None, typer.Option(metavar="R", help="Most rho (zCDP), instead of epsilon.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(metavar="D", help="Delta of epsilon; default: 1e-10, or that of the run."),
    ] = None,
    rounds: RoundsOption = None,
    min_sep: MinSepOption = None,
    max_participations: MaxParticipationsOption = None,
    sampling: SamplingOption = None,
    partitions: PartitionsOption = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="Take the participation from this trace: what its rules enforce, and what was "
            "observed.",
        ),
    ] = None,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """The least noise multiplier with which a mechanism has at most an epsilon or rho.

    Either --epsilon or --rho is required, and either --trace or --rounds,
    --min-sep and --max-participations. Of a trace there are two noise
    multipliers: a guarantee may rest on the enforced one alone.
    """
    if trace is not None:
        setting = {
            "--rounds": rounds,
            "--min-sep": min_sep,
            "--max-participations": max_participations,
            "--sampling": sampling,
            "--partitions": partitions,
        }
        for flag, value in setting.items():
            if value is not None:
                raise InputError(
                    f"{flag} {value:g} with --trace {str(trace)!r}: a trace has its own "
                    "participation; leave one of the two out"
                )
        _calibrate_trace(trace, mechanism, epsilon, rho, delta, quiet, as_json)
        return
    if mechanism is None:
        raise InputError("MECHANISM is missing; name one, or a trace by --trace")
    from fedray.audit.audit import DEFAULT_DELTA
    from fedray.studies.design import FOLLOWING_KINDS, calibrate_mechanism

    # A directory that is called like a kind does not hide it.
    if mechanism.is_dir() and str(mechanism) not in FOLLOWING_KINDS:
        raise InputError(
            f"MECHANISM {str(mechanism)!r} is a directory; name a mechanism file, or a trace as "
            f"`--trace {mechanism}`"
        )

    figures = calibrate_mechanism(
        mechanism,
        rounds,
        min_sep,
        max_participations,
        DEFAULT_DELTA if delta is None else delta,
        epsilon,
        rho,
        sampling,
        partitions,
    )
    _print_figures(figures, as_json)


def _calibrate_trace(
    trace: Path,
    mechanism: Path | None,
    epsilon: float | None,
    rho: float | None,
    delta: float | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from fedray.audit.calibration import calibrate_trace
    from fedray.report.terminal import calibration_text
    from fedray.studies.design import mechanism_over
    from fedray.trace.imported import open_trace

    opened = open_trace(trace)
    strategy = None if mechanism is None else mechanism_over(mechanism, opened.committed_rounds)
    with progress_line("auditing", quiet):
        found = calibrate_trace(opened, epsilon=epsilon, rho=rho, delta=delta, mechanism=strategy)
    if as_json:
        print_json(found.to_json())
    else:
        print_pieces(calibration_text(found))
