"""The outlook of a claim: tables, a figure and the page."""

from dataclasses import replace
from datetime import date

import numpy as np

from fedray.audit.findings import NOISE_STATEMENTS
from fedray.audit.live.changes import Change
from fedray.audit.live.outlook import Night, Outlook, Row, State, StatementAhead
from fedray.base.rounding import counted, down, fine, given, shown_min_sep, shown_noise, up
from fedray.report.audits import FIGURES_ARE, epsilon_text, findings_table
from fedray.report.figure import Axis, Figure, Mark, Series
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.subjects import audit_subject
from fedray.report.table import Table

HEADS = {
    State.KEPT: "The claim is kept: it holds after {rounds}, whatever devices do under the rules",
    State.IN_DANGER: "The claim is in danger: it may not hold after {rounds} under the rules",
    State.LOST: "The claim is lost: the released rounds exceed it already",
}
OF_OTHER_NOISE = "The claim is lost: it is about another mechanism or other noise"
STYLES = {State.KEPT: "holds", State.IN_DANGER: "open", State.LOST: "broken"}
"""Style classes of the page."""


def outlook_subject(outlook: Outlook) -> Subject:
    """Returns the subject of an outlook: the trace of its released rounds, with the mechanism and
    the noise with which its figures are computed."""
    return replace(audit_subject(outlook.audit), unit="device", setting=outlook.setting)


def outlook_headline(outlook: Outlook) -> str:
    """Returns the answer in sentences."""
    rounds = counted(outlook.rounds, "round")
    worst = [each for each in outlook.statements if each.state is outlook.state]
    is_of_noise = all(each.statement in NOISE_STATEMENTS for each in worst)
    head = HEADS[outlook.state].format(rounds=rounds)
    if outlook.state is State.LOST and is_of_noise:
        head = OF_OTHER_NOISE
    text = f"{head}. "
    if outlook.state is not State.KEPT:
        text += f"{' '.join(_sentence(each, outlook) for each in worst)} "
    if outlook.state is State.IN_DANGER:
        helping = [each for each in outlook.changes if each.is_enough]
        first = helping[0] if helping else None
        said = (
            "No change is proven to keep it."
            if first is None
            else f"One that keeps it: {first.text}."
        )
        text += f"{said} "
    spent, forward, _ = outlook.rows
    return (
        f"{text}Spent in {counted(outlook.released, 'round')}: epsilon "
        f"{epsilon_text(spent.epsilon)}; at most {epsilon_text(forward.epsilon)} after "
        f"{rounds}, at delta {given(outlook.delta)}."
    )


def _sentence(each: StatementAhead, outlook: Outlook) -> str:
    shown = _shown(each.statement, each.claimed)
    if each.state is State.LOST:
        at = "" if each.lost_at is None else f" after {counted(each.lost_at, 'round')}"
        found = _shown(each.statement, each.spent)
        if each.statement in NOISE_STATEMENTS:
            return f"{each.statement} is {found}, not {shown}."
        return f"{each.statement} {shown} was lost{at}; it is {found} now."
    found = "not ensured by a rule"
    if each.forward is not None:
        found = f"up to {_shown(each.statement, each.forward)}"
        if each.statement == "min_sep":
            found = f"down to {_shown(each.statement, each.forward)}"
    return f"{each.statement} {shown} may become {found} by round {outlook.rounds:,}."


def _shown(statement: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if statement in ("rho", "epsilon"):
        return up(value) if statement == "epsilon" else fine(value)
    if statement == "noise_multiplier":
        return shown_noise(value)
    return f"{value:,}" if isinstance(value, int) else down(value)


def outlook_tables(outlook: Outlook) -> list[Table]:
    """Returns the three rows, the statements, the changes if the claim is in danger, and the rules
    from now on."""
    tables = [_rows_table(outlook), _statements_table(outlook)]
    if outlook.changes:
        tables.append(_changes_table(outlook))
    return [*tables, _rules_table(outlook)]


def _rows_table(outlook: Outlook) -> Table:
    cells = {
        "figures": lambda row: row.name,
        "rounds": lambda row: "-" if row.rounds is None else f"{row.rounds:,}",
        "min-sep": _min_sep,
        "part.": lambda row: _count(row.max_participations),
        "sensitivity": lambda row: fine(row.sensitivity),
        "rho": lambda row: fine(row.rho),
        "epsilon": lambda row: epsilon_text(row.epsilon),
        FIGURES_ARE: _kind,
        "theorem": lambda row: row.theorem,
    }
    who = "a device that has not taken part yet"
    if outlook.device is not None:
        who = f"device {outlook.device}, in rounds {_listed(outlook.past)} so far"
    return Table.of(
        f"The claim is {outlook.state}: figures after {counted(outlook.rounds, 'round')}",
        outlook.rows,
        cells,
        f"Spent: the released {counted(outlook.released, 'round')}. Forward: the most that any "
        "device can still reach under the rules. Claimed: the limits of the claim; its sensitivity "
        f"is the largest with which rho and epsilon hold. Delta {given(outlook.delta)}.",
        f"Forward is reached by {who}, which takes part in rounds {_listed(outlook.future)}.",
        details=("theorem",),
        subject=lambda row: Subject(unit="device", estimand=_kind(row)),
    )


def _kind(row: Row) -> str:
    if row.name == "claimed":
        return "claimed"
    return "exact" if row.is_exact else "bound"


def _min_sep(row: Row) -> str:
    if row.min_sep is None and row.name == "claimed":
        return "-"
    return shown_min_sep(row.min_sep)


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _listed(rounds: tuple[int, ...], most: int = 8) -> str:
    if not rounds:
        return "none"
    shown = ", ".join(map(str, rounds[:most]))
    return shown if len(rounds) <= most else f"{shown}, ... ({len(rounds):,} in all)"


def _statements_table(outlook: Outlook) -> Table:
    cells = {
        "statement": lambda each: each.statement,
        "claimed": lambda each: _shown(each.statement, each.claimed),
        "spent": lambda each: _shown(each.statement, each.spent),
        "forward": lambda each: _shown(each.statement, each.forward),
        "state": lambda each: each.state.value,
        "lost after round": lambda each: _count(each.lost_at),
    }
    return Table.of("Statements of the claim", outlook.statements, cells)


def _changes_table(outlook: Outlook) -> Table:
    cells = {
        "change": lambda each: " + ".join(each.kinds),
        "keeps the claim": lambda each: "yes" if each.is_enough else "no",
        "what": lambda each: each.text,
        "held %": lambda each: "-" if each.share_held is None else up(100 * each.share_held, 2),
        "min-sep": lambda each: _count(each.min_sep),
        "part.": lambda each: _count(each.participations),
        "sensitivity": lambda each: fine(each.sensitivity),
    }
    return Table.of(
        "What to change from now on",
        outlook.changes,
        cells,
        "Each is the least of its sort, and the forward guarantee was computed again under it. "
        "Held: share of the devices that took part so far.",
        details=("min-sep", "part.", "sensitivity"),
        row_styles=["used" if _is_first(each, outlook) else "" for each in outlook.changes],
        subject=Subject(unit="device", estimand="upper bounds"),
    )


def _is_first(change: Change, outlook: Outlook) -> bool:
    return change is next((each for each in outlook.changes if each.is_enough), None)


def _rules_table(outlook: Outlook) -> Table:
    facts = [
        ("rule", each) for each in outlook.rules or ("none: a device may come in every round",)
    ]
    if outlook.slowest_hours is not None:
        facts.append(("slowest pace", f"{outlook.slowest_hours:g} h from one start to the next"))
    return Table.facts("Rules from now on", facts, *(f"{each}." for each in outlook.notes))


def outlook_figures(outlook: Outlook) -> list[Figure]:
    """Returns epsilon over the number of rounds: spent, and the most that devices can reach."""
    spent = outlook.audit.spent_after()
    claimed = outlook.rows[2].epsilon
    marks = [] if claimed is None else [Mark(claimed, f"claimed {claimed:g}", "y")]
    marks.append(Mark(float(outlook.released), "now", "x"))
    now, later = "Spent", "At most by this last round"
    nights = [_nights_figure(outlook)] if outlook.nights else []
    return [
        Figure(
            "outlook",
            "Epsilon spent, and the most by the last round",
            "Spent until now; then the largest that any device can reach if the round on the x "
            f"axis is the last. Forward: {outlook.rows[1].theorem or 'exact'}.",
            Axis("Rounds released"),
            Axis(f"Epsilon at delta = {given(outlook.delta)}", decimals=4),
            (
                Series(now, "line", _x(spent), np.array([each.epsilon for each in spent])),
                Series(
                    later, "line", _x(outlook.curve), np.array([e.epsilon for e in outlook.curve])
                ),
            ),
            tuple(marks),
        ),
        *nights,
    ]


def _nights_figure(outlook: Outlook) -> Figure:
    """Returns the three rows of each night: epsilon, or rho if only that is claimed."""
    nights, claimed = outlook.nights, [each.claimed for each in outlook.nights]
    is_rho = all(row.epsilon is None for row in claimed) and any(row.rho for row in claimed)
    figure = "rho" if is_rho else "epsilon"
    first = date.fromisoformat(nights[0].night)
    days = [(date.fromisoformat(each.night) - first).days for each in nights]
    names = {"spent": "Spent", "forward": "At most by the last round", "claimed": "Claimed"}
    series = (
        Series(
            name,
            "line",
            np.array(days, np.float64),
            np.array([getattr(getattr(each, row), figure) for each in nights], np.float64),
            is_reference=row == "claimed",
        )
        for row, name in names.items()
    )
    return Figure(
        "nights",
        f"{figure.capitalize()} on each night",
        "Spent in the rounds released by that night; the largest that any device can reach by the "
        "planned last round, as judged that night; and the claimed limit.",
        Axis(f"Days since {first.isoformat()}"),
        Axis("rho" if is_rho else f"Epsilon at delta = {given(outlook.delta)}", decimals=4),
        tuple(series),
        subject=Subject(setting=", then ".join(dict.fromkeys(map(_setting, nights)))),
    )


def _nights_table(nights: tuple[Night, ...]) -> Table:
    def limits(row: Row) -> str:
        return f"({shown_min_sep(row.min_sep)}, {_count(row.max_participations)})"

    cells = {
        "night": lambda each: each.night,
        "rounds": lambda each: f"{each.released:,}",
        "planned": lambda each: f"{each.rounds:,}",
        "spent": lambda each: epsilon_text(each.spent.epsilon),
        "forward": lambda each: epsilon_text(each.forward.epsilon),
        "claimed": lambda each: epsilon_text(each.claimed.epsilon),
        "state": lambda each: each.state.value,
        "(b, k) spent": lambda each: limits(each.spent),
        "(b, k) forward": lambda each: limits(each.forward),
        "trace": lambda each: each.digest[:12],
        "figures of": _setting,
    }
    return Table.of(
        "Every night",
        nights,
        cells,
        f"Spent, forward and claimed are epsilon at delta {given(nights[-1].delta)}.",
        details=("(b, k) spent", "(b, k) forward", "trace", "figures of"),
        row_styles=[STYLES[each.state] for each in nights],
        subject=lambda each: Subject(unit="device", setting=_setting(each)),
    )


def _setting(night: Night) -> str:
    return night.setting or "mechanism not recorded"


def _x(points: object) -> np.ndarray:
    return np.array([each.rounds for each in points], np.float64)  # pyright: ignore[reportGeneralTypeIssues]


def outlook_page(outlook: Outlook) -> str:
    """Returns the page of an outlook, with the findings on the released rounds."""
    released = replace(findings_table(outlook.audit), subject=Subject(unit="device"))
    nights = [_nights_table(outlook.nights).under(outlook.of)] if outlook.nights else []
    return render_study(
        f"Will the claim hold after {counted(outlook.rounds, 'round')}?",
        f"Trace {outlook.digest}, claim {outlook.claim}.",
        outlook.figures(),
        [*outlook.tables(), *nights, released.under(outlook.of)],
        outlook.to_json(),
        outlook.audit.assumptions,
        verdict=outlook.headline,
        standing=STYLES[outlook.state],
        answer=outlook.state.value,
    )
