"""Tables of mechanisms at one setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from fedray.base.rounding import counted, down, fine, given, in_words, needed_noise, significant, up
from fedray.mechanisms.comparison import NOT_COMPARABLE
from fedray.mechanisms.figures import Figures, Mechanisms
from fedray.mechanisms.loss import LOSS_NAMES, loss
from fedray.mechanisms.optimize.amplified import AmplifiedBands
from fedray.mechanisms.participation import MinSep
from fedray.mechanisms.registry import Identity
from fedray.report.subject import Subject
from fedray.report.table import Table
from fedray.report.works import of_kind

MOST_SHOWN = 8
"""Largest number of values of a list that are shown."""
UNITS = "errors at clip norm 1 and losses at mu = 1"
AT_BOUND = "The largest theta is the bound of the search, exp(-1e-13): its buffer forgets nothing."
"""Note on a BLT whose search ended at its bound."""


def figures_verdict(figures: Figures) -> str:
    """Returns the epsilon of a mechanism, if it has noise, its loss, and how far it is from
    independent noise at equal privacy."""
    setting, found = figures.participation, figures.loss
    least, objective = found.of(figures.objective), figures.objective
    independent = loss(Identity(), setting, figures.workload).of(objective)
    spent = ""
    if figures.epsilon is not None:
        at_most = "" if found.sensitivity.is_exact else "at most "
        spent = f"epsilon {at_most}{up(figures.epsilon)} at delta {given(figures.delta)}, and "
    return (
        f"{figures.strategy.kind} has {spent}{least / independent:.3g} times the error of "
        f"independent noise at equal privacy ({LOSS_NAMES[objective]} {significant(least)} of "
        f"{figures.workload.rows}{_mark(figures, ', {}')})."
    )


def _mark(figures: Figures, form: str) -> str:
    """Returns the purpose of a mechanism, in a form with a place for it, if it is compared by
    another loss or workload."""
    return form.format(f"made for {figures.made_for}") if figures.is_for_another else ""


def figures_subject(figures: Figures) -> Subject:
    """Returns the subject of a mechanism's figures: the rounds and the limits of a participant,
    and the loss by which it is compared."""
    n, b, k = (
        figures.participation.rounds,
        figures.participation.min_sep,
        figures.participation.max_participations,
    )
    limits = f"{counted(n, 'round')} with min-sep {b:,}, at most {counted(k, 'participation')}"
    return Subject(
        f"{limits}{_order(figures.participation)}",
        loss="" if figures.is_for_another else LOSS_NAMES[figures.objective],
    )


def mechanism_subject(several: Mechanisms) -> Subject:
    """Returns the subject of several mechanisms at one setting."""
    first = several.first
    return replace(figures_subject(first), loss=LOSS_NAMES[first.objective])


def _at(participation: MinSep) -> str:
    """Returns n, b and k of a title."""
    n, b, k = (participation.rounds, participation.min_sep, participation.max_participations)
    return f"n = {n:,}, b = {b:,}, k = {k:,}"


def mechanisms_verdict(several: Mechanisms) -> str:
    """Returns the mechanism of the least loss, and how much more the others have."""
    if len(several.by_name) == 1:
        return figures_verdict(several.first)
    objective = several.first.objective
    shown = ((each.name or name, each) for name, each in several.by_name.items())
    ordered = sorted(shown, key=lambda pair: pair[1].loss.of(objective))
    (best, figures), *others = ordered
    least = figures.loss.of(objective)
    value = f"{LOSS_NAMES[objective]} {significant(least)}{_mark(figures, ', {}')}"
    more = ", ".join(
        f"{name} +{100 * (each.loss.of(objective) / least - 1):.1f} %{_mark(each, ' ({})')}"
        for name, each in others
    )
    return f"Least error at equal privacy: {best} ({value}); {more}."


def figures_tables(figures: Figures) -> list[Table]:
    """Returns all `figures` of a mechanism. Privacy is rounded up."""
    found, setting = figures.loss, figures.participation
    sensitivity = found.sensitivity
    # A lower bound is rounded down and the sensitivity up, so that the truth lies between them.
    bound = down(sensitivity.lower_bound, 6)
    how = "exact" if sensitivity.is_exact else f"upper bound; at least {bound}"
    limits = (setting.rounds, setting.min_sep, setting.max_participations)
    facts = [
        ("kind", figures.strategy.cited(figures.strategy.kind)),
        (
            "rounds n, min-sep b, max participations k",
            ", ".join(f"{each:,}" for each in limits) + _order(setting),
        ),
        ("sensitivity", f"{fine(sensitivity.value)} ({how})"),
        ("by", sensitivity.theorem),
        ("a worst pattern of rounds", in_words(list(sensitivity.worst_pattern), MOST_SHOWN)),
        (
            f"error of {figures.workload.rows}, max / rms",
            f"{found.max_error:.6f} / {found.rms_error:.6f}",
        ),
        ("MaxLoss / RmsLoss", f"{found.max_loss:.6f} / {found.rms_loss:.6f}"),
        *_privacy_facts(figures),
    ]
    if figures.made_for is not None:
        other = ", another than here" if figures.is_for_another else ""
        facts.append(("made for", f"{figures.made_for}{other}"))
    facts += [(name, in_words(each, MOST_SHOWN)) for name, each in figures.parameters().items()]
    title = f"Mechanism {figures.name or figures.strategy.kind}, {_at(setting)}, {UNITS}"
    return [Table.facts(title, facts, AT_BOUND if figures.is_at_bound else "")]


def mechanism_tables(several: Mechanisms) -> list[Table]:
    """Returns all figures of one mechanism, or a row for each of several at one setting."""
    if len(several.by_name) == 1:
        return figures_tables(several.first)
    return [mechanisms_table(several.by_name)]


def _order(participation: MinSep) -> str:
    return ", in a fixed order" if participation.is_fixed_order else ""


def _privacy_facts(figures: Figures) -> list[tuple[str, str]]:
    if figures.noise_multiplier is None or figures.mu is None or figures.epsilon is None:
        return []
    facts = [
        ("noise multiplier", needed_noise(figures.noise_multiplier, 6)),
        ("mu, rho", f"{up(figures.mu, 6)}, {fine(figures.rho)}"),
        (f"epsilon at delta {given(figures.delta)}", up(figures.epsilon)),
    ]
    sampled, renyi = figures.amplified_epsilon, figures.amplified_renyi_epsilon
    if sampled is not None:
        text = f"at most {up(sampled)} ({figures.condition})"
        if renyi is not None:
            text += f"; by Renyi DP, as other tools have it, {up(renyi)}"
        facts.append(("hypothetical epsilon, sampled", text))
    return facts


def bands_table(tried: Sequence[AmplifiedBands]) -> Table:
    """Returns the numbers of bands that a search tried, one per row. Noise is rounded up."""
    cells: dict[str, Callable[[AmplifiedBands], str]] = {
        "bands, partitions": lambda row: f"{row.bands:,}",
        "probability": lambda row: fine(row.probability),
        "turns": lambda row: f"{row.turns:,}",
        "noise multiplier": lambda row: needed_noise(row.noise_multiplier, 6),
        "over the largest column": lambda row: up(row.column_multiplier, 6),
        "noise": lambda row: up(row.noise, 6),
    }
    note = (
        "The noise is that of the workload at clip norm 1: compare this. Each row needs the "
        "schedule cyclic_poisson with these partitions and this probability."
    )
    return Table.of("Bands at equal epsilon", tried, cells, note)


def mechanisms_table(mechanisms: Mapping[str, Figures]) -> Table:
    """Returns several mechanisms at one setting, one per row, in the order given. Privacy is
    rounded up.

    Args:
        mechanisms: figures by name, all at one setting.
    """
    first = next(iter(mechanisms.values()))
    workload = first.workload
    title = f"Mechanisms, {_at(first.participation)}, losses of {workload.rows} at mu = 1"
    cells: dict[str, Callable[[tuple[str, Figures]], str]] = {
        "mechanism": lambda row: row[1].name or row[0],
        **(
            {"made for": lambda row: row[1].made_for or "-"}
            if any(each.is_for_another for each in mechanisms.values())
            else {}
        ),
        "sensitivity": lambda row: fine(row[1].loss.sensitivity.value),
        "sensitivity is": lambda row: "exact" if row[1].loss.sensitivity.is_exact else "a bound",
        "MaxLoss": lambda row: f"{row[1].loss.max_loss:.6f}",
        "RmsLoss": lambda row: f"{row[1].loss.rms_loss:.6f}",
    }
    notes = [
        f"The losses are the errors of {workload.rows} at equal privacy. Compare "
        f"{LOSS_NAMES[first.objective]}, for which mechanisms are made here."
    ]
    if first.noise_multiplier is not None:
        # Calibrated to one epsilon, every mechanism has its own noise multiplier.
        multipliers = {each.noise_multiplier for each in mechanisms.values()}
        if len(multipliers) == 1:
            title += f", noise multiplier {given(first.noise_multiplier)}"
            notes.append(NOT_COMPARABLE)
        else:
            cells["noise multiplier"] = lambda row: needed_noise(row[1].noise_multiplier or 0.0, 6)
        cells |= {
            "rho": lambda row: fine(row[1].rho),
            "epsilon": lambda row: up(row[1].epsilon or 0.0),
        }
        title += f", delta {given(first.delta)}"
    condition = ""
    if first.sampling is not None:
        cells["sampled epsilon"] = lambda row: up(row[1].amplified_epsilon or 0.0)
        condition = f"A sampled epsilon holds {first.condition}."
    kinds = (of_kind(each.name or name, each.strategy.kind) for name, each in mechanisms.items())
    return Table.of(title, mechanisms.items(), cells, condition, *kinds, method=notes).varied()
