"""Mechanisms in the terminal: what `fedray optimize`, `mechanism` and `calibrate` print."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedray.base.rounding import counted, down, exact, given, in_words, up
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.report.text import Paragraph, Piece, TextTable
from fedray.report.text.audits import SENSITIVITY_HEADING, enforced_sentence, sensitivity_cells

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
        title += (
            f", noise multiplier {given(first['noise_multiplier'])}, delta {given(first['delta'])}"
        )
        notes.append(NOT_COMPARABLE)
    if "hypothetical" in first:
        heading.append("sampled epsilon")
        notes.append(f"A sampled epsilon holds {first['hypothetical']['assumption']}.")
    yield TextTable(title, [heading, *(_row(*each) for each in mechanisms.items())])
    yield Paragraph("", " ".join(notes))


def calibration_text(calibration: Mapping[str, Any]) -> Iterator[Piece]:
    """The noise multipliers with which a trace would have met a target. Noise multipliers and
    privacy are rounded up.

    Args:
        calibration: as `TraceCalibration.to_json` gives it.
    """
    epsilon, delta = calibration["target_epsilon"], calibration["delta"]
    target = (
        f"rho {given(calibration['target_rho'])}"
        if epsilon is None
        else f"epsilon {given(epsilon)} at delta {given(delta)}"
    )
    title = f"Noise of {calibration['kind']} for {target}"
    yield TextTable(
        f"{title}, by the participation of {calibration['trace']}", calibration_rows(calibration)
    )
    enforced, observed = calibration["enforced"], calibration["observed"]
    # Both meet the same target, so that the figures of both are the same but for rounding.
    spent = (
        f"With this noise rho is {up(observed['rho'], 6)}, and epsilon {up(observed['epsilon'])} "
        f"at delta {given(delta)}."
    )
    had = calibration["run_noise_multiplier"]
    yield Paragraph(
        "", spent if had is None else f"{spent} The run had the noise multiplier {given(had)}."
    )
    yield Paragraph("enforced  ", enforced_sentence(enforced))
    yield Paragraph(
        "observed  ", f"is a statement about {observed['scope']}; {observed['reason']}."
    )
    for note in calibration["notes"]:
        yield Paragraph("  * ", note)


def calibration_rows(calibration: Mapping[str, Any]) -> list[list[str]]:
    """The guarantees of a calibration: a heading, then a row for each whose noise is known.

    Args:
        calibration: as `TraceCalibration.to_json` gives it.
    """
    rows = [
        [
            each["name"],
            *sensitivity_cells(each),
            up(each["noise_multiplier"], 6),
            "yes" if each["may_rest_on"] else "no",
        ]
        for each in (calibration["enforced"], calibration["observed"])
        if each["noise_multiplier"] is not None
    ]
    return [["guarantee", *SENSITIVITY_HEADING, "noise multiplier", "may rest on it"], *rows]


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
        # Of a calibration, one digit less may miss the target.
        ("noise multiplier", exact(figures["noise_multiplier"])),
        ("mu, rho", f"{up(figures['mu'], 6)}, {up(figures['rho'], 6)}"),
        (f"epsilon at delta {given(figures['delta'])}", up(figures["epsilon"])),
    ]
    sampled = figures.get("hypothetical")
    if sampled is not None:
        said = (
            f"at most {up(sampled['epsilon'])} ({sampled['assumption']}); by Renyi DP, as other "
            f"tools have it, {up(sampled['renyi_epsilon'])}"
        )
        rows.append(("hypothetical epsilon, sampled", said))
    return rows
