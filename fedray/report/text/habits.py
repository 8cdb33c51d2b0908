"""Fits of the habit model, and populations, in the terminal and on their pages."""

from collections.abc import Mapping
from typing import Any

Document = Mapping[str, Any]


def fit_sentence(fit: Document) -> str:
    """What was fitted and how well, in words.

    Args:
        fit: as `HabitFit.to_json` gives it.
    """
    verdict = "The differences that are left are no more than chance explains."
    if fit["p_value"] < 0.01:
        verdict = (
            "The differences that are left are more than chance explains: the habit model is not "
            "quite true of these devices, and the intervals are those of its nearest values."
        )
    return (
        f"A log of {fit['kind']}: {fit['records']:,} records of {fit['devices']:,} devices on "
        f"{fit['days']} whole days, beside {fit['simulated_devices']:,} simulated devices. J "
        f"statistic {fit['j_statistic']:.1f} on {fit['degrees_of_freedom']} degrees of freedom "
        f"(p-value {fit['p_value']:.3g}). {verdict}"
    )


def estimate_rows(fit: Document) -> list[list[str]]:
    """What was fitted: heading, then a row per parameter.

    Args:
        fit: as `HabitFit.to_json` gives it.
    """
    rows = [["parameter", "estimate", "standard error", "95 % from", "to"]]
    for each in fit["estimates"]:
        figures = (each["value"], each["standard_error"], each["low"], each["high"])
        rows.append([each["name"], *(f"{figure:.4g}" for figure in figures)])
    return rows


def held_rows(fit: Document) -> list[list[str]]:
    """What was not fitted: heading, then a row per parameter.

    Args:
        fit: as `HabitFit.to_json` gives it.
    """
    rows = [["parameter", "held at", "why"]]
    for each in fit["held"]:
        value = each["value"]
        shown = f"{value:.4g}" if isinstance(value, float) else ", ".join(map(str, value))
        rows.append([each["name"], shown, each["reason"]])
    return rows


def statistic_rows(fit: Document) -> list[list[str]]:
    """Every statistic: heading, then measured, simulated and how far they are apart.

    Args:
        fit: as `HabitFit.to_json` gives it.
    """
    rows = [["statistic", "measured", "simulated", "difference"]]
    for each in fit["statistics"]:
        measured, simulated, error = each["measured"], each["simulated"], each["standard_error"]
        # Differences are told in standard errors, so that statistics of any unit can be compared.
        apart = f"{(simulated - measured) / error:+.1f}" if error > 0 else "-"
        rows.append([each["name"], f"{measured:.4f}", f"{simulated:.4f}", apart])
    return rows


def population_rows(population: Document) -> list[tuple[str, str]]:
    """How many devices are eligible, and what was written: a name and words in each row.

    Args:
        population: as `fedray population --json` prints it.
    """
    at_once = population["eligible_at_once"]
    rows = [
        ("devices", f"{population['devices']:,}"),
        (
            "eligible at once",
            f"{at_once['mean']:,}, {at_once['least']:,} to {at_once['most']:,} over the first week",
        ),
    ]
    return rows if population["file"] is None else [*rows, *session_rows(population["file"])]


def session_rows(file: Document) -> list[tuple[str, str]]:
    """What a file of sessions has: a name and words in each row, and the keys that replay it.

    Args:
        file: as `fedray sessions --json` prints it.
    """
    rows = [
        ("sessions", f"{file['sessions']:,} of {file['devices']:,} devices in {file['days']} days"),
        ("file", f"{file['path']} ({file['format']})"),
    ]
    if file["format"] in ("parquet", "csv"):
        keys = f'availability.model = "replay", recorded_devices = {file["devices"]}'
        rows.append(("replayed by", keys))
    return rows
