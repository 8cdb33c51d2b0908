"""Mechanisms in the terminal: what `fedray optimize`, `mechanism` and `calibrate` print."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.report.text import Paragraph, Piece, TextTable
from fedray.rounding import counted, down, given, in_words, up

MOST_SHOWN = 8
"""Most values of a list that are shown."""


def figures_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """All figures of a mechanism at one setting: a name and a value in each row. Privacy is rounded
    up.

    Args:
        figures: as `Figures.to_json` gives them.
    """
    # A lower bound is rounded down and the sensitivity up, so that the truth lies between them.
    bound = down(figures["sensitivity_lower_bound"], 6)
    how = "exact" if figures["sensitivity_is_exact"] else f"upper bound; at least {bound}"
    participation = (figures[name] for name in ("rounds", "min_sep", "max_participations"))
    return [
        ("kind", f"{figures['kind']} ({figures['paper']})"),
        (
            "rounds n, min-sep b, max participations k",
            ", ".join(f"{each:,}" for each in participation),
        ),
        ("sensitivity", f"{up(figures['sensitivity'], 6)} ({how})"),
        ("by", figures["sensitivity_theorem"]),
        ("a worst pattern of rounds", in_words(figures["worst_pattern"], MOST_SHOWN)),
        (
            "error of prefix sums, max / rms",
            f"{figures['max_error']:.6f} / {figures['rms_error']:.6f}",
        ),
        ("MaxLoss / RmsLoss", f"{figures['max_loss']:.6f} / {figures['rms_loss']:.6f}"),
        *_privacy_rows(figures),
        *((name, in_words(value, MOST_SHOWN)) for name, value in figures["parameters"].items()),
    ]


def mechanisms_text(mechanisms: Mapping[str, Mapping[str, Any]]) -> Iterator[Piece]:
    """Several mechanisms at one setting, a row each, in the order given. Privacy is rounded up.

    Args:
        mechanisms: their figures, as `Figures.to_json` gives them, by name.
    """
    first = next(iter(mechanisms.values()))
    n, k = counted(first["rounds"], "round"), counted(first["max_participations"], "participation")
    title = f"Mechanisms over {n}, min-sep {first['min_sep']:,}, at most {k}"
    heading = ["mechanism", "sensitivity", "MaxLoss", "RmsLoss"]
    notes = ["The losses are the errors of the prefix sums at equal privacy: compare these."]
    if first["epsilon"] is not None:
        heading += ["rho", "epsilon"]
        title += f", noise multiplier {given(first['noise_multiplier'])}, delta {first['delta']:g}"
        notes.append(NOT_COMPARABLE)
    if "hypothetical" in first:
        heading.append("sampled epsilon")
        notes.append(f"A sampled epsilon holds {first['hypothetical']['assumption']}.")
    yield TextTable(title, [heading, *(_row(*each) for each in mechanisms.items())])
    yield Paragraph("", " ".join(notes))


def _row(name: str, figures: Mapping[str, Any]) -> list[str]:
    how = "exact" if figures["sensitivity_is_exact"] else "upper bound"
    losses = (f"{figures[each]:.6f}" for each in ("max_loss", "rms_loss"))
    row = [name, f"{up(figures['sensitivity'], 6)} {how}", *losses]
    if figures["epsilon"] is not None:
        row += [up(figures["rho"], 6), up(figures["epsilon"])]
    if "hypothetical" in figures:
        row.append(up(figures["hypothetical"]["epsilon"]))
    return row


def _privacy_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    if figures["epsilon"] is None:
        return []
    rows = [
        ("noise multiplier", given(figures["noise_multiplier"])),
        ("mu, rho", f"{up(figures['mu'], 6)}, {up(figures['rho'], 6)}"),
        (f"epsilon at delta {figures['delta']:g}", up(figures["epsilon"])),
    ]
    sampled = figures.get("hypothetical")
    if sampled is not None:
        said = (
            f"at most {up(sampled['epsilon'])} ({sampled['assumption']}); by Renyi DP, as other "
            f"tools have it, {up(sampled['renyi_epsilon'])}"
        )
        rows.append(("hypothetical epsilon, sampled", said))
    return rows
