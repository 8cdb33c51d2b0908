"""Audits in the terminal: participation, guarantees, the comparison of mechanisms, the claim."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedray.audit.guarantees import OBSERVED_LIMITS
from fedray.base.rounding import counted, down, given, shown_min_sep, shown_noise, up
from fedray.report.text import Paragraph, Piece, TextTable

MOST_ROUNDS_SHOWN = 12
"""Most rounds that are shown as the evidence for a finding."""


SENSITIVITY_HEADING = ["min-sep", "part.", "sensitivity"]
"""The columns of `sensitivity_cells`."""
CLASSES_NOTE = (
    "Eligible at once is the mean of the first week, whatever timers say, as estimated from a "
    "sample. Min-sep is the least between two participations of one device of the class."
)


def class_rows(classes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """How the devices of each class took part, under a heading.

    Args:
        classes: `classes` of an audit.
    """
    selected = max(1, sum(each["selected"] for each in classes))
    heading = [
        "class",
        "share",
        "eligible at once",
        "of the selected",
        "participations",
        "devices",
        "min-sep",
        "most of a device",
    ]
    rows = [
        [
            each["name"],
            f"{100 * each['share']:.1f} %",
            f"{100 * each['eligible_share']:.1f} %",
            f"{100 * each['selected'] / selected:.1f} %",
            f"{each['participations']:,}",
            f"{each['devices']:,}",
            f"{each['least_gap']:,}" if each["least_gap"] else "-",
            f"{each['most']:,}",
        ]
        for each in classes
    ]
    return [heading, *rows]


def audit_text(audit: Mapping[str, Any]) -> Iterator[Piece]:
    """An audit: rows that were left out, participation, the guarantees of each mechanism, the
    comparison, the claim, and what the figures rest on.

    Args:
        audit: as `Audit.to_json` gives it; with a claim as `Audit.to_json_in_full` does.
    """
    yield from _left_out(audit)
    yield TextTable(f"Audit of {audit['trace']}", participation_rows(audit), has_heading=False)
    if audit["short_run_note"]:
        yield Paragraph("", audit["short_run_note"])
        yield ""
    if audit["classes"]:
        yield TextTable("Classes of devices", class_rows(audit["classes"]))
        yield Paragraph("", CLASSES_NOTE)
    # How a run ended is worth a line only where it was not as planned.
    if audit["ended"] not in ("completed", "imported"):
        yield Paragraph("ended     ", f"{audit['ended']}.")
    has_claim = bool(audit["findings"])
    mechanisms = audit["mechanisms"]
    yield from guarantees_text(mechanisms, audit["findings"])
    if mechanisms:
        yield from _what_to_rest_on(mechanisms[0])
    else:
        yield (
            "No mechanism is known, so there are no privacy figures: give a mechanism and a noise "
            "multiplier, or a claim."
        )
    if audit["releases"]:
        yield ""
        yield TextTable("What was released (observed)", _release_rows(audit))
    # A claim names one mechanism, which is the first.
    if has_claim:
        *_, claimed = mechanisms[0]["guarantees"]
        yield Paragraph("claimed   ", f"{claimed['reason']}.")
    if audit["utility"]:
        yield ""
        yield TextTable(
            "Error of the prefix sums when each mechanism has the same rho "
            f"({_utility_basis(audit['utility_basis'])})",
            utility_rows(audit["utility"]),
        )
        yield Paragraph("", audit["utility_note"])
    if has_claim:
        yield from _claim(audit)
    yield "\nWhat these figures rest on"
    for each in audit["assumptions"]:
        yield Paragraph("  * ", each)


def guarantees_text(
    mechanisms: Sequence[Mapping[str, Any]], findings: Sequence[Mapping[str, Any]] = ()
) -> Iterator[TextTable]:
    """The guarantees of every mechanism of an audit, a table each.

    Args:
        mechanisms: `mechanisms` of an audit's document.
        findings: its `findings`; with any there is a row for the claim.
    """
    for mechanism in mechanisms:
        noise = mechanism["noise_multiplier"]
        known = (
            f"noise multiplier {given(noise)}" if noise is not None else "without noise multiplier"
        )
        delta = mechanism["guarantees"][0]["delta"]
        title = f"{mechanism['name']}, {known}, delta {given(delta)}"
        yield TextTable(title, guarantee_rows(mechanism, findings))


def participation_rows(participation: Mapping[str, Any]) -> list[list[str]]:
    """What a trace shows of participation: a name and a value in each row.

    Args:
        participation: an audit's document, or its part that `Audit.participation_json` gives.
    """
    return [
        ["rounds (committed)", f"{participation['rounds']:,}"],
        ["devices (took part)", f"{participation['devices']:,}"],
        ["participations (accepted)", f"{participation['participations']:,}"],
        ["min-sep b (rounds)", shown_min_sep(participation["min_sep"])],
        ["max participations k", f"{participation['max_participations']:,}"],
        *_violation_rows(participation.get("violations")),
        *_exclusion_rows(participation.get("exclusions")),
    ]


def _exclusion_rows(exclusions: Mapping[str, Any] | None) -> list[list[str]]:
    """Whom a filter excluded, and how often they had taken part beside the others."""
    if exclusions is None:
        return []
    rows = [["excluded at their budget", f"{counted(exclusions['devices'], 'device')}"]]
    if not exclusions["devices"]:
        return rows
    rounds = f"{exclusions['first_round']:,}, {exclusions['median_round']:,}"
    means = f"{exclusions['participations']:.2f}, others {exclusions['of_others']:.2f}"
    return [*rows, ["from round (first, median)", rounds], ["mean participations of them", means]]


def _violation_rows(violations: Mapping[str, int] | None) -> list[list[str]]:
    """What devices did that the rules exclude, where the rules were not kept by all of them."""
    if violations is None:
        return []
    found = f"{violations['participations']:,} of {counted(violations['devices'], 'device')}"
    after_loss = f"{violations['after_loss']:,} (of {violations['losses']:,} losses recorded)"
    rows = [["breaking the rules", found], ["of them after a lost history", after_loss]]
    if violations["clock_changes"]:
        of_clocks = (
            f"{violations['after_clock_change']:,} "
            f"(of {violations['clock_changes']:,} clock changes recorded)"
        )
        rows.append(["of them after a clock set forward", of_clocks])
    return rows


def guarantee_rows(
    mechanism: Mapping[str, Any], findings: Sequence[Mapping[str, Any]] = ()
) -> list[list[str]]:
    """The guarantees of one mechanism: a heading, then a row each. Privacy is rounded up.

    Args:
        mechanism: one of `mechanisms` of an audit's document.
        findings: its `findings`; with any there is a row for the claim.
    """
    # The document has these three in this order, whether or not there is a claim.
    observed, enforced, claimed = mechanism["guarantees"]
    named = [
        ("observed", observed),
        (OBSERVED_LIMITS, mechanism["observed_limits"]),
        ("enforced", enforced),
    ]
    named += [(each["name"], each) for each in further_guarantees(mechanism)]
    if findings:
        named.append(("claimed", claimed))
    heading = ["guarantee", *SENSITIVITY_HEADING, "rho", "epsilon"]
    return [heading, *([name, *_guarantee_cells(each, findings)] for name, each in named)]


def further_guarantees(mechanism: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the server's sampling and its filter ensure, where it has any.

    Args:
        mechanism: one of `mechanisms` of an audit's document.
    """
    found = [mechanism.get(name) for name in ("sampled", "filtered")]
    return [each for each in found if each is not None]


def _release_rows(audit: Mapping[str, Any]) -> list[list[str]]:
    """Heading, a row for each release, and a row for all of them."""
    rows = [
        [each["query"], shown_noise(each["noise_multiplier"]), up(each["rho"], 6)]
        for each in audit["releases"]
    ]
    # The noise multiplier of an audit is that of all releases together.
    together = shown_noise(audit["mechanisms"][0]["noise_multiplier"])
    rho = math.fsum(each["rho"] for each in audit["releases"])
    return [
        ["release", "noise multiplier", "rho"],
        *rows,
        ["together", together, up(rho, 6)],
    ]


def utility_rows(utility: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Mechanisms side by side at equal rho: a heading, then a row each, least error first.

    Args:
        utility: `utility` of an audit's document.
    """
    heading = ["mechanism", "rms error", "max error", "RmsLoss", "MaxLoss", "noise multiplier"]
    figures = ("rms_prefix_error", "max_prefix_error", "rms_loss", "max_loss")
    rows = [
        [each["name"], *(f"{each[name]:.4f}" for name in figures), up(each["noise_multiplier"])]
        for each in utility
    ]
    return [heading, *rows]


def _utility_basis(name: str) -> str:
    return name if name == OBSERVED_LIMITS else f"{name} participation"


def _left_out(audit: Mapping[str, Any]) -> Iterator[Paragraph]:
    for each in audit["left_out"]:
        rows = counted(each["rows"], "row")
        yield Paragraph("left out  ", f"{rows} {each['reason']}, such as {each['example']}")
    if audit["filtered_rows"]:
        yield Paragraph(
            "left out  ",
            f"rows that do not meet the conditions of the import: {audit['filtered_rows']:,}",
        )
    if audit["incompleteness"]:
        yield Paragraph(
            "WARNING   ",
            f"{audit['incompleteness']} The figures below are of what is left, and no upper "
            "bounds.",
        )


def limit_cells(
    guarantee: Mapping[str, Any], findings: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Min-sep and participations of a guarantee. Limits that a claim states stand before tighter
    ones that follow from it, such as those of a timer.

    Args:
        guarantee: document of a guarantee whose participation is known.
        findings: `findings` of the audit's document.
    """
    follow = [shown_min_sep(guarantee["min_sep"]), f"{guarantee['max_participations']:,}"]
    stated = {each["statement"]: each["claimed"] for each in findings}
    if guarantee["name"] != "claimed":
        stated = {}
    names = ("min_sep", "max_participations")
    cells = zip(map(stated.get, names), follow, strict=True)
    return [
        limit if claimed is None or f"{claimed:,}" == limit else f"{claimed:,} (follows: {limit})"
        for claimed, limit in cells
    ]


def sensitivity_cells(
    guarantee: Mapping[str, Any], findings: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """The participation and the sensitivity of a guarantee, a cell for each of the heading.

    Args:
        guarantee: as `Guarantee.to_json` gives it.
        findings: `findings` of the audit's document.
    """
    most = guarantee["max_participations"]
    sensitivity = guarantee["sensitivity"]
    if most is None and sensitivity is None:
        return ["unknown", "", ""]
    limits = ["-", "-"] if most is None else limit_cells(guarantee, findings)
    if sensitivity is None:
        return [*limits, "nothing proven"]
    return [*limits, f"{up(sensitivity, 6)} {'exact' if guarantee['is_exact'] else 'bound'}"]


def _guarantee_cells(
    guarantee: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]
) -> list[str]:
    cells = sensitivity_cells(guarantee, findings)
    if guarantee["sensitivity"] is None:
        return [*cells, "", ""]
    rho = guarantee["rho"]
    epsilon = guarantee["epsilon"]
    return [
        *cells,
        "-" if rho is None else up(rho, 6),
        "-" if epsilon is None else up(epsilon),
    ]


def enforced_sentence(enforced: Mapping[str, Any]) -> str:
    """Whether a guarantee may rest on what was enforced, and why, without its subject.

    Args:
        enforced: that guarantee, as `Guarantee.to_json` gives it.
    """
    if not enforced["is_known"]:
        return f"is not known: {enforced['reason']}."
    if enforced["may_rest_on"]:
        return (
            f"holds for {enforced['scope']}; a guarantee may rest on it. Why: {enforced['reason']}."
        )
    return f"cannot be rested on by itself: {enforced['reason']}."


def _what_to_rest_on(mechanism: Mapping[str, Any]) -> Iterator[Paragraph]:
    observed, enforced, _ = mechanism["guarantees"]
    yield Paragraph(
        "",
        "observed limits: what holds for every trace with this min-sep and this many "
        "participations.",
    )
    yield Paragraph(
        "observed  ", f"is a statement about {observed['scope']}; {observed['reason']}."
    )
    yield Paragraph("enforced  ", enforced_sentence(enforced))
    for each in further_guarantees(mechanism):
        said = f"is not known: {each['reason']}."
        if each["is_known"]:
            said = f"holds for {each['scope']}. Why: {each['reason']}."
        yield Paragraph(f"{each['name']:<10}", said)


def _claim(audit: Mapping[str, Any]) -> Iterator[Piece]:
    """Verdicts first, then every statement, its evidence, and the distribution over devices."""
    yield ""
    yield Paragraph("", audit["claim_sentence"])
    yield ""
    heading = ["statement", "verdict", "claimed", "found", "should say", "because"]
    rows = [
        [
            each["statement"],
            each["verdict"],
            _claimed(each["claimed"]),
            _found(each["statement"], each["found"]),
            each["should_say"],
            each["explanation"],
        ]
        for each in audit["findings"]
    ]
    yield TextTable("The claim", [heading, *rows])
    for each in audit["findings"]:
        yield from _evidence(each)
    if audit["device_privacy"] is not None:
        rhos = {each["share"]: up(each["rho"], 6) for each in audit["device_privacy"]["quantiles"]}
        yield Paragraph(
            "  ",
            f"observed, in this trace only: rho of the median device {rhos[0.5]}, of 99 % at most "
            f"{rhos[0.99]}, of all at most {rhos[1.0]}",
        )
    if audit["frontier"] is not None:
        yield Paragraph(
            "  ",
            "observed, in this trace only: sensitivity by the frontier of (min-sep, "
            f"participations) at most {up(audit['frontier']['sensitivity'], 6)}",
        )


def _evidence(finding: Mapping[str, Any]) -> Iterator[Paragraph]:
    statement = finding["statement"]
    if finding["evidence_note"]:
        yield Paragraph("  ", f"{statement}: {finding['evidence_note']}")
    for shown in finding["evidence"]:
        rounds = ", ".join(map(str, shown["rounds"][:MOST_ROUNDS_SHOWN]))
        if len(shown["rounds"]) > MOST_ROUNDS_SHOWN:
            rounds += ", ..."
        yield Paragraph(
            "  ", f"{statement}: device {shown['device']}, rounds {rounds}: {shown['shows']}"
        )


def _claimed(value: float | str | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else given(value)


def _found(statement: str, value: float | str | None) -> str:
    """Figure that was found; losses are rounded up, spans of time down. Counts are whole, and the
    noise multiplier of a run was given."""
    if value is None or isinstance(value, str):
        return value or ""
    # Each to the side on which the claim is not flattered.
    if statement in ("rho", "epsilon"):
        return up(value, 6)
    if statement == "timer_hours":
        return down(value)
    return given(value) if isinstance(value, float) else f"{value:,}"
