"""An audit of a trained model, as tables and a figure of its page."""

import math

import numpy as np

from fedray.base.rounding import given, up
from fedray.report.figure import Axis, Figure, Mark, Series
from fedray.report.lower_bounds import lower_bounds_table
from fedray.report.subject import Subject
from fedray.report.subjects import trained_subject
from fedray.report.table import Table
from fedray.report.trained_page import trained_page
from fedray.studies.inference import Interval
from fedray.studies.model_audit import ModelAudit, PhrasesFound


def model_audit_page(audit: ModelAudit) -> str:
    """Returns the page of the trained run, with the audit before its own figures."""
    figures, tables = audit.figures(), audit.tables()
    return trained_page(audit.trained, figures, tables, {"model_audit": audit.to_json()})


def model_audit_subject(audit: ModelAudit) -> Subject:
    """Returns the subject of an audit of a model: its training."""
    return trained_subject(audit.trained)


def model_audit_tables(audit: ModelAudit) -> list[Table]:
    """Exposure by table of phrases, lower bounds beside the upper one, and user inference."""
    facts = Table.facts("The model and its devices", _facts(audit), *audit.notes)
    if not audit.phrases:
        return [facts]
    upper = math.inf if audit.upper_epsilon is None else audit.upper_epsilon
    rows = [(_name(each), upper, bound) for each in audit.phrases for bound in each.lower]
    bounds = lower_bounds_table("phrases", rows, upper, audit.delta)
    return [_exposures(audit), bounds, facts]


def _exposures(audit: ModelAudit) -> Table:
    cells = {
        "devices": lambda each: f"{each.devices:,}",
        "copies": lambda each: f"{each.copies:,}",
        "planted": lambda each: f"{each.planted:,}",
        "trained": lambda each: f"{each.trained:.1f}",
        "exposure": lambda each: _interval(each.exposure),
        "left out": lambda each: _interval(each.exposure_left_out),
    }
    return Table.of(
        "Exposure of planted phrases in bits, with 95 % intervals",
        audit.phrases,
        cells,
        f"Without memory {audit.exposure_without_memory:.2f} is expected, and no phrase has more "
        f"than {math.log2(audit.references + 1):.2f}. 'trained' counts how often the devices of a "
        "phrase trained, on average.",
    )


def _name(found: PhrasesFound) -> str:
    devices = "1 device" if found.devices == 1 else f"{found.devices:,} devices"
    return f"{devices}, {found.copies:,} {'copy' if found.copies == 1 else 'copies'}"


def _facts(audit: ModelAudit) -> list[tuple[str, str]]:
    upper = "none: no noise, or noise of devices"
    if audit.upper_epsilon is not None:
        upper = (
            f"epsilon {up(audit.upper_epsilon)} at delta {given(audit.delta)}, exact for all "
            "models of this training as it happened"
        )
        if audit.is_sample:
            upper += (
                "; only a sample of each cohort trained, with its share of the noise, so a "
                "deployment has the smaller epsilon of `fedray audit`"
            )
    users = ["too few devices that trained, or that never took part"]
    if (of := audit.users) is not None:
        users = [
            f"AUC {_interval(of.area)} of {of.members:,} devices that trained and {of.others:,} "
            "that never took part (1/2: guesses)",
            f"{_interval(of.found)} of the former are found at 1 % false alarms",
        ]
        # Others then hold the texts of members.
        people = audit.trained.document["people"]
        most = people.get("most_devices", None if people else 1)
        if most is None or most > 1:
            on = "an unknown number of" if most is None else f"up to {most:,}"
            users[1] += (
                f"; no evidence of privacy: a client's data is on {on} devices, so those that "
                "never took part may hold texts that were trained"
            )
    return [("upper bound", upper), *zip(("user inference", ""), users, strict=False)]


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def model_audit_figures(audit: ModelAudit) -> list[Figure]:
    """Exposure over copies, a series per number of devices; none without phrases."""
    if not audit.phrases:
        return []
    by_devices: dict[int, list[PhrasesFound]] = {}
    for each in sorted(audit.phrases, key=lambda each: (each.devices, each.copies)):
        by_devices.setdefault(each.devices, []).append(each)
    note = (
        "Mean exposure of planted phrases, with 95 % intervals. The line is the exposure that a "
        "phrase has without memory."
    )
    marks = (Mark(audit.exposure_without_memory, "without memory", "y"),)
    axes = Axis("Texts of a device that the phrase replaces"), Axis("Exposure (bits)")
    series = tuple(map(_series, by_devices.values()))
    return [Figure("exposure", "Exposure of planted phrases", note, *axes, series, marks=marks)]


def _series(phrases: list[PhrasesFound]) -> Series:
    value, low, high = np.array([each.exposure for each in phrases]).T
    name = _name(phrases[0]).partition(",")[0]
    copies = np.array([each.copies for each in phrases], np.float64)
    return Series(name, "points", copies, value, low=low, high=high)
