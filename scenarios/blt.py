"""Losses of mechanisms in the BLT paper, and the privacy of its runs.

McMahan, Xu, Zhang 2024 (arXiv 2408.08868): Table 3 prints losses at 2052 rounds, min-sep 342 and 6
participations; Table 4 prints rho and epsilon of ten runs. Nothing is simulated. With an output
directory, optimised mechanisms are kept there and read again.

    OUT/mechanisms/NAME.json   an optimised mechanism
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import fedray
from fedray.mechanisms import Identity, Tree, TreeFull
from .gboard_rows import table_rows
from .reproduction import (
    Document,
    InJson,
    Reproduced,
    Reproduction,
    Request,
    Subject,
    Table,
    agreement_figure,
    figure_text,
    in_steps,
    up,
)

PAPER = "McMahan, Xu, Zhang 2024"
ROUNDS, MIN_SEP, PARTICIPATIONS = 2052, 342, 6
DELTA = 1e-10
"""delta of the printed epsilons."""
NOTES = (
    "A printed loss is met by the same digits or, where the mechanism is an optimum, by a smaller "
    "loss. Some printings of Table 3 have the headings of the two losses swapped.",
    "Table 4 prints the rounds strictly between two participations, so min-sep is one more, and "
    "rounds rho and epsilon up. Its matrices of BandMF are not in print; their noise multipliers "
    "are for a sensitivity of 1. Two printed rhos contradict their own row: BandMF of es-ES, and "
    "the tree of pt-PT, which a noise multiplier of 4.03 would fit. The rows of blt-100 are no "
    "evidence: its parameters are not in print, and were chosen among local optima by these rows.",
)


@dataclass(frozen=True, slots=True)
class PrintedLoss(Document):
    """Losses of a mechanism, computed and as printed."""

    name: str
    """Name of the mechanism."""
    max_loss: float
    """MaxLoss, computed."""
    printed_max_loss: float | None
    """MaxLoss, as printed; None if it is not."""
    rms_loss: float
    """RmsLoss, computed."""
    printed_rms_loss: float | None
    """RmsLoss, as printed; None if it is not."""
    digits: int
    """Digits after the decimal point that were printed."""
    is_optimised: bool
    """Whether an optimiser made it, so that ours may be better."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether both losses are the printed ones or, for an optimum, smaller."""
        pairs = (
            (self.max_loss, self.printed_max_loss),
            (self.rms_loss, self.printed_rms_loss),
        )
        return all(self._meets(ours, printed) for ours, printed in pairs if printed is not None)

    def _meets(self, ours: float, printed: float) -> bool:
        # Half a unit of the last printed digit, and a little for losses that were cut off there.
        slack = 0.51 * 10.0**-self.digits
        return ours <= printed + slack and (self.is_optimised or ours >= printed - slack)


@dataclass(frozen=True, slots=True)
class PrintedPrivacy(Document):
    """rho and epsilon of a run of Table 4, computed and as printed."""

    locale: str
    """Locale of the run, such as es-ES."""
    mechanism: str
    """Mechanism of the run, or its name."""
    noise_multiplier: float
    """Noise multiplier, as printed."""
    rounds: int
    """n: rounds of the run."""
    min_sep: int
    """b: one more than the printed rounds between participations."""
    max_participations: int
    """k, as printed."""
    rho: float
    """rho, computed."""
    printed_rho: str
    """rho, as printed."""
    epsilon: float
    """Epsilon at delta 1e-10, computed from the unrounded rho."""
    printed_epsilon: str
    """Epsilon at delta 1e-10, as printed."""

    @property
    def agrees(self) -> InJson[bool]:
        """Whether rho and epsilon, rounded up, are the printed ones to every digit."""
        pairs = ((self.rho, self.printed_rho), (self.epsilon, self.printed_epsilon))
        return all(_is_rounded_up(value, printed) for value, printed in pairs)


def _is_rounded_up(value: float, printed: str) -> bool:
    above = Decimal(printed) - Decimal(value)
    return 0 <= above < Decimal(1).scaleb(int(Decimal(printed).as_tuple().exponent))


class LossesOfBLTs(TypedDict):
    """`fedray reproduce blt`."""

    losses: list[PrintedLoss]
    """Printed losses at 2052 rounds, min-sep 342 and 6 participations."""
    privacy: list[PrintedPrivacy]
    """Runs of Table 4."""


CONTRADICTORY = {("es-ES", "banded"), ("pt-PT", "tree")}
"""Rows of Table 4 whose figures contradict one another (see NOTES)."""


@dataclass(frozen=True, slots=True)
class _Printed:
    name: str
    mechanism: Any
    """Kind of the mechanism, or a made one."""
    max_loss: float | None
    rms_loss: float | None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of its request; k is the number of participations that it is made for."""
    digits: int = 2
    is_optimised: bool = True
    work: int = 1
    """Time that it takes, about, in fifths of a second."""

    def made(self, out: Path | None) -> "fedray.Strategy":
        """Makes the mechanism, or reads the kept one."""
        if isinstance(self.mechanism, TreeFull):
            return self.mechanism
        options = dict(self.options)
        setting = fedray.MinSep(ROUNDS, MIN_SEP, options.pop("k", PARTICIPATIONS))
        words = [self.mechanism, ROUNDS, MIN_SEP, setting.max_participations]
        words += [f"{key}-{value}" for key, value in options.items()]
        name = f"{'-'.join(map(str, words))}.json"
        path = None if out is None else out / "mechanisms" / name
        if path is not None and path.exists():
            return fedray.read_strategy(path)
        request = fedray.MechanismRequest(self.mechanism, setting, **options)
        strategy = fedray.optimize_mechanism(request)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fedray.write_strategy(strategy, path)
        return strategy


PRINTED = (
    _Printed("identity", "identity", None, 78.4793, {}, 4, False),
    _Printed("tree, online", "tree", 27.2721, 19.2750, {}, 4, False),
    _Printed("tree-full", "tree-full", 14.9809, 12.4715, {}, 4, False),
    _Printed(
        "tree-full, completed",
        TreeFull(rounds=ROUNDS, completion=True),
        *(16.6163, 13.9576, {}, 4, False),
    ),
    _Printed("band-fhu, 342 bands", "band-fhu", 11.05, 8.98, {"bands": 342}, 2, False),
    _Printed("banded-toeplitz, 342 bands, rms", "banded-toeplitz", 10.53, 8.80),
    _Printed(
        "blt, 2 buffers, max at k = 1",
        "blt",
        11.80,
        11.15,
        {"k": 1, "buffers": 2, "objective": "max"},
    ),
    _Printed(
        "blt, 5 buffers, max at k = 1",
        "blt",
        11.40,
        10.87,
        {"k": 1, "buffers": 5, "objective": "max"},
    ),
    _Printed("blt, 2 buffers, max", "blt", 10.81, 9.34, {"buffers": 2, "objective": "max"}),
    _Printed("blt, 3 buffers, max", "blt", 10.79, None, {"buffers": 3, "objective": "max"}),
    _Printed("blt, 2 buffers, rms", "blt", None, 9.18, {"buffers": 2, "objective": "rms"}),
    _Printed("blt, 4 buffers, rms", "blt", None, 9.17, {"buffers": 4, "objective": "rms"}),
    _Printed("banded, 342 bands, rms", "banded", 10.21, 8.60, work=400),
)
"""Printed mechanisms, in the order of the table."""


def run(request: Request) -> Iterator[Reproduced]:
    """Computes the privacy of the runs, then the printed losses; yields all results so far after
    every mechanism."""
    privacy = [_privacy_of(each) for each in table_rows("later")]
    losses: dict[str, PrintedLoss] = {}
    for row, _ in in_steps(request, PRINTED, lambda row: row.name, lambda row: row.work):
        losses[row.name] = _loss_of(row, request.out)
        yield _reproduced([losses[e.name] for e in PRINTED if e.name in losses], privacy)


def _loss_of(row: _Printed, out: Path | None) -> PrintedLoss:
    setting = fedray.MinSep(ROUNDS, MIN_SEP, PARTICIPATIONS)
    found = fedray.mechanism_figures(row.made(out), setting, None, DELTA).loss
    return PrintedLoss(
        *(row.name, found.max_loss, row.max_loss, found.rms_loss, row.rms_loss),
        *(row.digits, row.is_optimised),
    )


def _privacy_of(row: dict[str, str]) -> PrintedPrivacy:
    mechanism, z, n = row["mechanism"], float(row["noise_multiplier"]), int(row["rounds"])
    gap, k = int(row["rounds_between"]) + 1, int(row["max_participations"])
    # A device that takes part once is as far from itself as the run is long, and a matrix of
    # sensitivity 1 is accounted as one release of one Gaussian.
    once = mechanism == "banded"
    setting = fedray.MinSep(1, 1, 1) if once else fedray.MinSep(n, min(gap, n), k)
    made = {"banded": Identity(), "tree": Tree()}
    strategy = made.get(mechanism) or fedray.read_strategy(mechanism)
    found = fedray.mechanism_figures(strategy, setting, z, DELTA)
    assert found.rho is not None  # a noise multiplier is given
    assert found.epsilon is not None
    figures = (found.rho, row["zcdp"], found.epsilon, row["epsilon_at_delta_1e-10"])
    return PrintedPrivacy(row["locale"], mechanism, z, n, gap, k, *figures)


def _reproduced(losses: list[PrintedLoss], runs: list[PrintedPrivacy]) -> Reproduced:
    agreeing = sum(each.agrees for each in losses)
    same = sum(each.agrees for each in runs)
    # The contradictory rows cannot agree with any computation.
    others = [each for each in runs if (each.locale, each.mechanism) not in CONTRADICTORY]
    cells = {
        "mechanism": lambda each: each.name,
        "MaxLoss": lambda each: f"{each.max_loss:.4f}",
        "printed MaxLoss": lambda each: _printed(each.printed_max_loss, each.digits),
        "RmsLoss": lambda each: f"{each.rms_loss:.4f}",
        "printed RmsLoss": lambda each: _printed(each.printed_rms_loss, each.digits),
        "agrees": lambda each: "yes" if each.agrees else "NO",
    }
    run_cells = {
        "run": lambda each: f"{each.locale} {each.mechanism}",
        "z": lambda each: f"{each.noise_multiplier:g}",
        "n": lambda each: f"{each.rounds:,}",
        "b": lambda each: f"{each.min_sep:,}",
        "k": lambda each: str(each.max_participations),
        "rho": lambda each: up(each.rho),
        "printed rho": lambda each: each.printed_rho,
        "epsilon": lambda each: up(each.epsilon),
        "printed": lambda each: each.printed_epsilon,
        "agrees": lambda each: "yes" if each.agrees else "NO",
    }
    points = [(each.name, each.printed_rms_loss, each.rms_loss) for each in losses]
    note = "RmsLoss of each mechanism over the printed one."
    return Reproduced(
        title="Losses of mechanisms in the BLT paper, and the privacy of its runs",
        document={
            "losses": [each.to_json() for each in losses],
            "privacy": [each.to_json() for each in runs],
        },
        shown=[
            Table.of(
                "Losses at 2052 rounds, min-sep 342, 6 participations",
                losses,
                cells,
                subject=lambda each: Subject(f"the mechanisms of {PAPER}", each.name),
            ),
            Table.of(
                "Runs of Table 4: noise multiplier z, (n, b, k), delta 1e-10",
                runs,
                run_cells,
                subject=lambda each: Subject(
                    f"the runs of {PAPER}", run_cells["run"](each), unit="device"
                ),
            ),
        ],
        notes=NOTES,
        verdict=f"{agreeing} of {len(losses)} mechanisms have the printed losses, or smaller "
        f"ones. {same} of {len(runs)} runs have the printed rho and epsilon, to every digit.",
        agrees=agreeing == len(losses) and all(each.agrees for each in others),
        drawn=[agreement_figure("losses", "RmsLoss", note, points)],
        subject=Subject(f"the mechanisms of {PAPER}"),
    )


def _printed(value: float | None, digits: int) -> str:
    return "-" if value is None else figure_text(value, f".{digits}f")


REPRODUCTION = Reproduction(
    "blt",
    "Losses of the BLT paper's mechanisms, and the privacy of its runs.",
    f"{PAPER}, tables 3 and 4",
    "2 min",
    run,
    has_figures=True,
    is_resumable=True,
)
