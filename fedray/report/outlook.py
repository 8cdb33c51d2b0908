"""The outlook of a claim: tables, a figure and the page."""

import itertools
from dataclasses import replace
from datetime import date

import numpy as np

from fedray.audit.findings import NOISE_STATEMENTS
from fedray.audit.live.changes import Change
from fedray.audit.live.outlook import Night, Outlook, Row, State, StatementAhead
from fedray.audit.rules import ROUND_TIMES
from fedray.base.rounding import counted, down, fine, given, shown_min_sep, shown_noise, up
from fedray.report.audits import FIGURES_ARE, epsilon_text, findings_table
from fedray.report.figure import Axis, Figure, Mark, Series
from fedray.report.page import render_study
from fedray.report.subject import Subject
from fedray.report.subjects import audit_subject
from fedray.report.table import Table

HEADS = {
    State.KEPT: "The claim is kept: it holds after {rounds}, {under}",
    State.IN_DANGER: "The claim is in danger: it may not hold after {rounds} under the rules",
    State.LOST: "The claim is lost: the released rounds exceed it already",
}
NO_RULE = "The claim is in danger: nothing says that a rule is in force"
OF_OTHER_NOISE = "The claim is lost: it is about another mechanism or other noise"
STYLES = {State.KEPT: "holds", State.IN_DANGER: "open", State.LOST: "broken"}
"""Style classes of the page."""


def outlook_subject(outlook: Outlook) -> Subject:
    """Returns the subject of an outlook: the trace of its released rounds, with the mechanism and
    the noise with which its figures are computed."""
    setting = outlook.setting
    if outlook.claim_file:
        setting += f", claim {outlook.claim_file}"
    return replace(audit_subject(outlook.audit), unit="device", setting=setting)


def outlook_headline(outlook: Outlook) -> str:
    """Returns the answer in sentences."""
    rounds = counted(outlook.rounds, "round")
    worst = [each for each in outlook.statements if each.state is outlook.state]
    names = " and ".join(each.removesuffix(ROUND_TIMES) for each in outlook.rules)
    under = f"if the server enforces {names}" if names else "whatever devices do"
    assumed = [
        e.statement for e in outlook.statements if not e.is_checked and e.state is State.KEPT
    ]
    if assumed:
        under += (
            f", and if {' and '.join(assumed)} {'is' if len(assumed) == 1 else 'are'} as claimed"
        )
    head = HEADS[outlook.state].format(rounds=rounds, under=under)
    if outlook.state is State.LOST and all(e.statement in NOISE_STATEMENTS for e in worst):
        head = OF_OTHER_NOISE
    sentences = [head]
    if outlook.state is State.IN_DANGER and not names:
        sentences = [NO_RULE]
    elif outlook.state is not State.KEPT:
        sentences += [_sentence(each, outlook) for each in worst]
    if outlook.state is State.LOST and outlook.left:
        sentences.append(_rest(outlook, under))
    if outlook.state_left is State.IN_DANGER:
        sentences.append(_advice(outlook))
    if outlook.slowest_recorded_hours is not None:
        sentences.append(
            f"Recorded rounds started up to {up(outlook.slowest_recorded_hours, 2)} h apart, more "
            f"than the stated {outlook.slowest_hours:g} h"
        )
    spent, forward, _ = outlook.rows
    sentences.append(
        f"Spent in {counted(outlook.released, 'round')}: epsilon {epsilon_text(spent.epsilon)}; "
        f"at most {epsilon_text(forward.epsilon)} after {rounds}, at delta {given(outlook.delta)}"
    )
    if outlook.at_recorded_pace is not None:
        hours, point = outlook.at_recorded_pace
        sentences.append(
            f"At the slowest pace so far, {up(hours, 2)} h, it would be at most "
            f"{epsilon_text(point.epsilon)}, which is not guaranteed"
        )
    return "".join(f"{each}. " for each in sentences).strip()


def _rest(outlook: Outlook, under: str) -> str:
    """Returns the state of the statements that are not lost, in a sentence."""
    rest = f"The rest ({', '.join(each.statement for each in outlook.left)}) is"
    return f"{rest} kept {under}" if outlook.state_left is State.KEPT else f"{rest} in danger"


def _advice(outlook: Outlook) -> str:
    """Returns the change that keeps what is left of a claim at the least cost, in a sentence."""
    change = outlook.advised
    if change is None:
        return f"No change is proven to keep {outlook.what_is_kept}"
    text = f"{change.text[:1].lower()}{change.text[1:]}"
    if change.kinds == ("noise",):
        return f"Kept with {text}"
    if change.kinds == ("last round",):
        return f"Kept if the server does this: {text}"
    since = "the next round on"
    if outlook.next_round is not None:
        since = f"round {outlook.next_round}"
    return f"Kept if the server enforces, from {since}: {text} ({_waits(change)})"


def _waits(change: Change) -> str:
    if not change.waits_now:
        return "no device must wait now"
    devices = counted(change.waits_now, "device")
    return (
        f"{devices} must wait now, {up(100.0 * (change.share_waiting or 0.0), 2)} % of those seen"
    )


def _sentence(each: StatementAhead, outlook: Outlook) -> str:
    shown = _shown(each.statement, each.claimed)
    if each.state is State.LOST:
        at = "" if each.lost_at is None else f" in round {outlook.number_of(each.lost_at - 1)}"
        found = _shown(each.statement, each.spent)
        if each.statement in NOISE_STATEMENTS:
            return f"The claimed {each.statement} is {shown}, not {found}"
        return f"The claimed {each.statement} {shown} was lost{at}: it is {found} now"
    if each.forward is None:
        return f"No rule ensures the claimed {each.statement} of {shown}"
    bound = "little" if each.statement == "min_sep" else "much"
    found = _shown(each.statement, each.forward)
    rounds = counted(outlook.rounds, "round")
    may = f"devices may reach as {bound} as {found} in {rounds}"
    return f"The claimed {each.statement} is {shown}, and {may}"


def _shown(statement: str, value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "-"
    if statement in ("rho", "epsilon"):
        return up(value) if statement == "epsilon" else fine(value)
    if statement == "noise_multiplier":
        return shown_noise(value)
    return f"{value:,}" if isinstance(value, int) else down(value)


def outlook_tables(outlook: Outlook) -> list[Table]:
    """Returns the three rows, the changes if the claim is in danger, the rules from now on, and the
    statements."""
    tables = [_rows_table(outlook)]
    if outlook.changes:
        tables.append(_changes_table(outlook))
    if outlook.adoption is not None:
        tables.append(_adoption_table(outlook.adoption))
    return [*tables, _rules_table(outlook), _statements_table(outlook)]


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
        who = f"device {outlook.device}, in rounds {_listed(outlook, outlook.past)} so far"
    return Table.of(
        f"The claim is {outlook.state}: figures after {counted(outlook.rounds, 'round')}",
        outlook.rows,
        cells,
        f"Spent: the released {counted(outlook.released, 'round')}. Forward: the most that any "
        "device can still reach under the rules. Claimed: the limits of the claim; its sensitivity "
        f"is the largest with which rho and epsilon hold. Delta {given(outlook.delta)}.",
        f"Forward is reached by {who}, which takes part in rounds "
        f"{_listed(outlook, outlook.future)}.",
        _numbered(outlook),
        "The argument show_devices names the device." if "#" in who else "",
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


def _number(outlook: Outlook, place: int | None) -> str:
    return "-" if place is None else str(outlook.number_of(place))


def _count(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _numbered(outlook: Outlook) -> str:
    """Returns how rounds are named, in a sentence; empty if they have one number only."""
    if outlook.numbers is None:
        return "Rounds are named by their place in the trace, as the log's numbers do not increase."
    if not outlook.numbers.differ:
        return ""
    step = outlook.numbers.step
    to_come = (
        "" if step == 1 else f"; those to come are taken to be {step:,} apart, as at most so far"
    )
    return f"Rounds are named by the log's numbers{to_come}."


def _listed(outlook: Outlook, rounds: tuple[int, ...], most: int = 8) -> str:
    if not rounds:
        return "none"
    shown = ", ".join(str(outlook.number_of(each)) for each in rounds[:most])
    return shown if len(rounds) <= most else f"{shown}, ... ({len(rounds):,} in all)"


def _statements_table(outlook: Outlook) -> Table:
    cells = {
        "statement": lambda each: each.statement,
        "claimed": lambda each: _shown(each.statement, each.claimed),
        "spent": lambda each: _shown(each.statement, each.spent),
        "forward": lambda each: _shown(each.statement, each.forward),
        "state": lambda each: each.state.value if each.is_checked else "unchecked",
        "lost in round": lambda each: _number(
            outlook, None if each.lost_at is None else each.lost_at - 1
        ),
    }
    return Table.of("Statements of the claim", outlook.statements, cells)


def _changes_table(outlook: Outlook) -> Table:
    cells = {
        "change": lambda each: " + ".join(each.kinds),
        f"keeps {outlook.what_is_kept}": lambda each: "yes" if each.is_enough else "no",
        "what": lambda each: each.text,
        "wait now": lambda each: _count(each.waits_now),
        "wait now %": lambda each: _percent(each.share_waiting),
        "noticed in round": lambda each: _number(outlook, each.first_noticed),
        "min-sep": lambda each: _count(each.min_sep),
        "part.": lambda each: _count(each.participations),
        "epsilon": lambda each: epsilon_text(each.epsilon),
        "figures are": _exactness,
        "list %": lambda each: _percent(each.share_held),
        "sensitivity": lambda each: fine(each.sensitivity),
    }
    judged = "all statements of the claim"
    if outlook.state is State.LOST:
        judged = (
            f"its statements that are not lost ({', '.join(e.statement for e in outlook.left)})"
        )
    least = "exact" if all(each.is_exact is not False for each in outlook.changes) else "bounds"
    return Table.of(
        "What to change from now on",
        outlook.changes,
        cells,
        f"The forward guarantee was computed again under each, and {judged} were "
        "judged. Wait now: devices seen so far that may not take part in the next round, though as "
        "many rounds have passed as between any two participations so far. Noticed in round: the "
        "first in which a device that comes as soon as devices did so far may be kept away.",
        "Each is the least of its sort."
        if least == "exact"
        else "Under a bound, a smaller change may be enough.",
        details=("list %", "sensitivity"),
        row_styles=["used" if each is outlook.advised else "" for each in outlook.changes],
        subject=lambda each: Subject(unit="device", estimand=_exactness(each)),
    )


def _adoption_table(lines: str) -> Table:
    is_log = "[participation]" not in lines
    where = "the file of rules in force" if is_log else "the scenario's table [participation]"
    pairs = (line.split(" ", 1) for line in lines.splitlines() if " = " in line)
    return Table.facts(f"To adopt the first change: lines of {where}", pairs)


def _exactness(change: Change) -> str:
    if change.is_exact is None:
        return "-"
    return "exact" if change.is_exact else "bound"


def _percent(share: float | None) -> str:
    return "-" if share is None else up(100.0 * share, 2)


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
    adopted = [day for day, is_new in zip(_days(nights), _adopted(nights), strict=True) if is_new]
    is_rho = all(row.epsilon is None for row in claimed) and any(row.rho for row in claimed)
    figure = "rho" if is_rho else "epsilon"
    days = _days(nights)
    names = {"spent": "Spent", "forward": "At most by the last round", "claimed": "Claimed"}
    series = (
        Series(
            name,
            "line",
            np.array(days, np.float64),
            np.array([getattr(getattr(each, row), figure) for each in nights], np.float64),
        )
        for row, name in names.items()
    )
    return Figure(
        "nights",
        f"{figure.capitalize()} on each night",
        "Spent in the rounds released by that night; the largest that any device can reach by the "
        "planned last round, as judged that night; and the claimed limit.",
        Axis(f"Days since {nights[0].night}"),
        Axis("rho" if is_rho else f"Epsilon at delta = {given(outlook.delta)}", decimals=4),
        tuple(series),
        tuple(Mark(float(day), "other rules in force") for day in adopted),
        subject=Subject(setting=", then ".join(dict.fromkeys(map(_setting, nights)))),
    )


def _days(nights: tuple[Night, ...]) -> list[int]:
    first = date.fromisoformat(nights[0].night)
    return [(date.fromisoformat(each.night) - first).days for each in nights]


def _adopted(nights: tuple[Night, ...]) -> list[bool]:
    """Returns whether each night had other rules in force than the one before."""
    pairs = itertools.pairwise(nights)
    return [False, *(set(before.rules) != set(after.rules) for before, after in pairs)]


def _nights_table(nights: tuple[Night, ...]) -> Table:
    is_new = {id(night): new for night, new in zip(nights, _adopted(nights), strict=True)}

    def limits(row: Row) -> str:
        return f"({shown_min_sep(row.min_sep)}, {_count(row.max_participations)})"

    cells = {
        "night": lambda each: each.night,
        "state": lambda each: each.state.value,
        "rounds": lambda each: f"{each.released:,}",
        "planned": lambda each: f"{each.rounds:,}",
        "spent": lambda each: epsilon_text(each.spent.epsilon),
        "forward": lambda each: epsilon_text(each.forward.epsilon),
        "claimed": lambda each: epsilon_text(each.claimed.epsilon),
        "rules": lambda each: "other" if is_new[id(each)] else "",
        "(b, k) spent": lambda each: limits(each.spent),
        "(b, k) forward": lambda each: limits(each.forward),
        "trace": lambda each: each.digest[:12],
        "figures of": _setting,
        "claim": lambda each: f"{each.claim_file or 'claim'} ({each.claim[:12]})",
        "rules in force": lambda each: "; ".join(each.rules) or "none",
    }
    return Table.of(
        "Every night",
        nights,
        cells,
        f"Spent, forward and claimed are epsilon at delta {given(nights[-1].delta)}. Rules: other "
        "if they differ from those of the night before.",
        details=(
            "(b, k) spent",
            "(b, k) forward",
            "trace",
            "figures of",
            "claim",
            "rules in force",
        ),
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
    tables = outlook.tables()
    if outlook.nights:
        # Before the statements, which only explain the first table.
        tables.insert(-1, _nights_table(outlook.nights).under(outlook.of))
    claim = outlook.claim if not outlook.claim_file else f"{outlook.claim_file} ({outlook.claim})"
    return render_study(
        f"Will the claim hold after {counted(outlook.rounds, 'round')}?",
        f"Trace {outlook.digest}, claim {claim}.",
        outlook.figures(),
        [*tables, released.under(outlook.of)],
        outlook.to_json(),
        outlook.audit.assumptions,
        verdict=outlook.headline,
        standing=STYLES[outlook.state],
        answer=outlook.state.value,
        is_open=(2, len(tables) - 1),
    )
