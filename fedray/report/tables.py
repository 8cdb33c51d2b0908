"""The tables of pages. Privacy figures are rounded to the safe side: losses up, min-sep, spans and
given noise down."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.audit.guarantees import OBSERVED_LIMITS
from fedray.base.rounding import down, given, in_words, up
from fedray.report.figure import Plane
from fedray.report.text.audits import CLASSES_NOTE, class_rows, further_guarantees, limit_cells

EPSILON_DECIMALS = 4
FINE_DECIMALS = 6
"""Decimals of rho and sensitivities."""
MOST_SHADE = 50
"""Per cent of the accent colour in the darkest cell of a plane, whose number can still be read in
the dark scheme."""
NARROW, MEDIUM, PROSE = 36, 64, 100
"""Characters: a row that stands on a telephone's screen, a row that need not fill a page, and a
cell that is prose."""
_NUMBER = re.compile(
    r"(<= |at most )?[-+]?(\d[\d,]*(\.\d+)?(e[-+]?\d+)?|inf)( ?%| h| days?)?|-|none( \(k = 1\))?|"
)


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table of a page: heading first. On a narrow screen every row is a card.

    row_styles: `used` or `marked` (bold), or a verdict (coloured), for each row after the heading;
        empty: none.
    """

    title: str
    """What stands above it; empty for nothing."""
    rows: list[list[str]]
    """Cells, row by row; the first row is the heading."""
    note: str = ""
    """What is to be known to read it."""
    row_styles: Sequence[str] = ()

    @property
    def kinds(self) -> list[str]:
        """Per column: `number`, set to the right with its heading, or `text`, set to the left as
        the first column is."""
        columns = list(zip(*self.rows[1:], strict=True))[1:]
        found = [
            "number" if all(_NUMBER.fullmatch(cell) for cell in column) else "text"
            for column in columns
        ]
        # A table without rows has no numbers by which its columns could be told.
        return ["text", *(found or ["text"] * (len(self.rows[0]) - 1))]

    @property
    def style(self) -> str:
        """Names of styles: how wide it is set, and whether its rows are cards on a narrow
        screen."""
        columns = len(self.rows[0])
        longest = [max(len(row[place]) for row in self.rows) for place in range(columns)]
        # A row that is short or has two cells stands on a telephone as it is.
        styles = ["cards"] if columns > 2 and sum(longest) > NARROW else []
        if columns > 9:
            styles.append("wide")
        elif sum(longest) <= MEDIUM:
            styles.append("narrow")
        elif max(longest[1:], default=0) > PROSE:
            styles.append("prose")
        return " ".join(styles)


def parameters_table(parameters: dict[str, Any]) -> PageTable:
    """What a mechanism, or what was run, is made of: a row per parameter, with its value unrounded.

    Args:
        parameters: values by name; those that are None or empty have no row.
    """
    told = {name: value for name, value in parameters.items() if value not in (None, [], ())}
    rows = [[name.replace("_", " "), in_words(value)] for name, value in told.items()]
    return PageTable("", [["parameter", "value"], *rows])


def guarantees_table(audit: dict[str, Any]) -> PageTable:
    """Every guarantee of every mechanism, a row each: limits, sensitivity and privacy, rounded up.

    Args:
        audit: document of an audit with a mechanism.
    """
    mechanisms = audit["mechanisms"]
    heading = [
        "guarantee",
        "mechanism",
        "min-sep",
        "participations",
        "sensitivity",
        "is",
        "rho",
        "epsilon",
        "may be rested on",
    ]
    rows = [heading]
    styles = []
    for mechanism in mechanisms:
        # The limits of the observed pattern stand beside it, as they are what a rule could enforce.
        seen, *others = mechanism["guarantees"]
        named = [
            ("observed", seen),
            (OBSERVED_LIMITS, mechanism["observed_limits"]),
            *((each["name"], each) for each in others),
        ]
        named += [(each["name"], each) for each in further_guarantees(mechanism)]
        for name, each in named:
            if name == "claimed" and each["max_participations"] is None:
                # This mechanism has no claim, so its row would be empty.
                continue
            rows.append(
                [
                    name,
                    mechanism["name"],
                    *_guarantee_cells(each, audit["findings"]),
                    "yes" if each["may_rest_on"] else "no",
                ]
            )
            styles.append("used" if mechanism is mechanisms[0] else "")
    note = (
        "Observed: this trace's own patterns. Observed limits: all patterns with its min-sep and "
        "participations. Sensitivities are "
        "at clip norm 1; a bound may be larger than the truth, never smaller. "
        f"{_binding(mechanisms[0])}"
    )
    return PageTable("Figures of each mechanism", rows, note, styles)


def _binding(mechanism: dict[str, Any]) -> str:
    is_exact = mechanism["guarantees"][0]["is_exact"]
    rounds = ", ".join(map(str, mechanism["binding_rounds"]))
    how = "is that" if is_exact else "is bounded by the bound"
    return (
        f"The observed sensitivity of {mechanism['name']} {how} of device "
        f"{mechanism['binding_device']}, of rounds {rounds}."
    )


def _guarantee_cells(guarantee: dict[str, Any], findings: Sequence[dict[str, Any]]) -> list[str]:
    if guarantee["max_participations"] is None:
        return ["-", "-", "-", "not known", "-", "-"]
    limits = limit_cells(guarantee, findings)
    if guarantee["sensitivity"] is None:
        return [*limits, "-", "not proven", "-", "-"]
    kind = "exact" if guarantee["is_exact"] else "bound"
    return [
        *limits,
        fine(guarantee["sensitivity"]),
        kind,
        fine(guarantee["rho"]),
        epsilon(guarantee["epsilon"]),
    ]


def utility_table(audit: dict[str, Any]) -> PageTable:
    """Mechanisms by the error of their prefix sums at equal rho, the least first.

    Args:
        audit: the document, as `Audit.to_json_in_full` gives it.
    """
    heading = [
        "mechanism",
        "rms error",
        "max error",
        "noise multiplier needed",
        "RmsLoss",
        "MaxLoss",
        "sensitivity",
    ]
    rows = [
        [
            each["name"],
            *(
                fine(each[key])
                for key in (
                    "rms_prefix_error",
                    "max_prefix_error",
                    "noise_multiplier",
                    "rms_loss",
                    "max_loss",
                )
            ),
            fine(each["sensitivity"]),
        ]
        for each in audit["utility"]
    ]
    note = (
        f"{audit['utility_note']} Here every mechanism has rho = {fine(audit['utility_rho'])}; the "
        "errors are of prefix sums at "
        "clip norm 1, and the best comes first."
    )
    # The mechanism of the run stands out among those that it is compared with.
    used = audit["mechanisms"][0]["name"] if audit["mechanisms"] else ""
    styles = ["used" if each["name"] == used else "" for each in audit["utility"]]
    return PageTable("Mechanisms at equal privacy", [heading, *rows], note, styles)


def findings_table(findings: Sequence[dict[str, Any]]) -> PageTable:
    """What became of every statement of a claim: verdict first, then what was claimed and found.

    Args:
        findings: `findings` of an audit's document.
    """
    heading = ["verdict", "statement", "claimed", "found", "should say", "because"]
    rows = [
        [
            each["verdict"],
            each["statement"],
            _claimed(each["claimed"]),
            _found(each["statement"], each["found"]),
            each["should_say"] or "-",
            each["explanation"],
        ]
        for each in findings
    ]
    return PageTable(
        "Statement by statement",
        [heading, *rows],
        row_styles=[style_of(each["verdict"]) for each in findings],
    )


def style_of(verdict: str) -> str:
    """The style class of a `verdict` in the page: `holds`, `broken`, or `open` for what is
    neither."""
    return verdict if verdict in ("holds", "broken") else "open"


def _claimed(value: float | str | None) -> str:
    return "-" if value is None else value if isinstance(value, str) else given(value)


def _found(statement: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    # Counts and rounds are exact, so that nothing needs to be rounded.
    if float(value).is_integer():
        return f"{int(value):,}"
    if statement == "noise_multiplier":
        return given(value)
    return down(value, FINE_DECIMALS) if statement == "timer_hours" else up(value, FINE_DECIMALS)


def evidence_table(findings: Sequence[dict[str, Any]]) -> PageTable:
    """The devices and rounds that the verdicts rest on.

    Args:
        findings: `findings` of an audit's document.
    """
    rows = [["statement", "device", "rounds", "shows"]]
    notes = []
    for each in findings:
        if each["evidence_note"]:
            notes.append(f"Of {each['statement']} {each['evidence_note']}.")
        for shown in each["evidence"]:
            rows.append(
                [
                    each["statement"],
                    shown["device"],
                    ", ".join(map(str, shown["rounds"])),
                    shown["shows"],
                ]
            )
    return PageTable("Evidence", rows, " ".join(notes))


def statement_table(statement: Sequence[dict[str, str]]) -> PageTable:
    """The privacy statement: a row per line, with what it rests on.

    Args:
        statement: lines of `Statement.to_json`.
    """
    rows = [
        ["what", "says", "evidence"],
        *([each["what"], each["says"], each["evidence"]] for each in statement),
    ]
    return PageTable(
        "Privacy statement",
        rows,
        "In the order of the checklist of Ponomareva et al. 2023, ready to be published.",
    )


def devices_table(device_privacy: dict[str, Any]) -> PageTable:
    """rho over devices, at a few shares of those that took part.

    Args:
        device_privacy: as `DevicePrivacy.to_json` gives it.
    """
    rows = [["share of devices", "sensitivity at most", "rho at most"]]
    rows += [
        [f"{100 * each['share']:g} %", fine(each["sensitivity"]), fine(each["rho"])]
        for each in device_privacy["quantiles"]
    ]
    bounds = "" if device_privacy["is_exact"] else " Some are upper bounds."
    note = (
        "rho of the devices that took part; the mean is "
        f"{fine(device_privacy['mean_rho'])}.{bounds}"
    )
    return PageTable("What each device got", rows, note)


def frontier_table(frontier: dict[str, Any]) -> PageTable:
    """Devices by number of participations, with the limits that all of a row obey.

    Args:
        frontier: as `Frontier.to_json` gives it.
    """
    heading = [
        "participations",
        "devices",
        "min-sep",
        "least span of 2, 3, ... participations",
        "sensitivity",
        "is",
    ]
    rows = [_frontier_cells(each) for each in frontier["entries"]]
    note = (
        "All devices of a row obey its own min-sep and participations, so the sensitivity of the "
        "trace is at most "
        f"{fine(frontier['sensitivity'])}."
    )
    return PageTable("By number of participations", [heading, *rows], note)


def _frontier_cells(entry: dict[str, Any]) -> list[str]:
    participations = str(entry["most"])
    if entry["fewest"] != entry["most"]:
        participations = f"{entry['fewest']} to {entry['most']}"
    # A cell has room for a dozen; the JSON of the page has all of them.
    spans = ", ".join(map(str, entry["spans"][:12]))
    if len(entry["spans"]) > 12:
        spans += ", ..."
    return [
        participations,
        f"{entry['devices']:,}",
        "none (k = 1)" if entry["most"] == 1 else f"{entry['min_sep']:,}",
        spans or "-",
        fine(entry["sensitivity"]),
        "exact" if entry["is_exact"] else "bound",
    ]


def outcomes_table(counts: dict[str, int]) -> PageTable:
    """What became of the selected devices: how many, and which share of them, by outcome.

    Args:
        counts: by outcome.
    """
    # A run may have selected nobody.
    total = max(1, sum(counts.values()))
    rows = [
        [name, f"{count:,}", f"{100 * count / total:.1f} %"]
        for name, count in counts.items()
        # Most runs have no filter.
        if count or name != "excluded"
    ]
    return PageTable("Selected devices", [["outcome", "devices", "share"], *rows])


def classes_table(classes: Sequence[Mapping[str, Any]]) -> PageTable:
    """Which devices took part, a row per class of devices.

    Args:
        classes: `classes` of an audit.
    """
    return PageTable("Classes of devices", class_rows(classes), CLASSES_NOTE)


@dataclass(frozen=True, slots=True)
class PlaneCell:
    """A cell of a drawn plane: its value as text, empty if it was not computed, and its shade in
    per cent, at most `MOST_SHADE`."""

    text: str
    shade: int


def plane_rows(plane: Plane) -> list[tuple[str, list[PlaneCell]]]:
    """The rows of a plane's table, from the top: the row's y, and a cell for each x.

    Args:
        plane: what is shown.
    """
    rows = []
    for y in plane.ys:
        cells = [plane.cell(x, y) for x in plane.xs]
        shown = [PlaneCell(text, round(MOST_SHADE * shade)) for text, shade in cells]
        rows.append((plane.y.text(y), shown))
    return rows


def fine(value: float | None) -> str:
    """A `value` of rho, of a sensitivity or of an error, rounded up to FINE_DECIMALS, so that what
    is shown is never better than the truth."""
    return "-" if value is None else up(value, FINE_DECIMALS)


def epsilon(value: float | None) -> str:
    """A `value` of epsilon, rounded up, so that what is shown is never better than the truth."""
    return "-" if value is None else up(value, EPSILON_DECIMALS)
