"""Privacy that devices, or persons, spent or may yet spend in one window of a ledger."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedray.audit.ledger_files import read_units
from fedray.audit.ledger_lines import Budget, Charged, Release, Reserved, Spent
from fedray.audit.ledger_sums import Charge, Spending, components_of, summed, total_of

ROUNDING = 1e-9
"""Relative error of sums of rho that does not count as exceeding the budget."""


class WindowSpent(NamedTuple):
    """Privacy that devices, or persons, spent in one window."""

    window: str
    """Name of the window, such as 2026-Q4."""
    units: int
    """Number of devices, or persons, that were charged."""
    respelled: int
    """Number of them that were summed over several spellings of their ids."""
    recorded: float
    """Largest rho of a unit over all charges, as recorded."""
    spent: float
    """Largest rho of a unit, at most: for each run what its rules enforce, or what is recorded if
    they enforce nothing."""
    reserved: float
    """rho reserved for runs that have not been charged, for every unit."""
    epsilon: float
    """Largest epsilon of a unit at the budget's delta, of all that is spent and reserved; infinite
    if the deltas of its answers use up that delta."""
    is_within: bool
    """Whether that is within the budget."""
    may_rest_on: bool
    """Whether a guarantee may rest on `spent`, because every run enforced it."""


def spent_in(
    window: str,
    budget: Budget,
    releases: Sequence[Sequence[Charged]],
    reserved: Sequence[Reserved],
    folder: Path,
) -> WindowSpent:
    """Returns the privacy spent in a window.

    Args:
        window: name of the window.
        budget: budget of the ledger.
        releases: charges of the window: the versions of each release.
        reserved: open reservations of the window.
        folder: directory of the ledger, with the files of the charges.

    Raises:
        InputError: a file of the window is missing or was changed.
    """
    parts = [[p for each in versions for p in each.windows[window]] for versions in releases]
    promises: list[tuple[Release, float]] = [
        (each.release, each.amount) for line in reserved for each in line.windows[window]
    ]
    # A vocabulary was released once, however many runs use it.
    words: dict[Any, tuple[Release, float]] = {
        (each.run, each.sha256, json.dumps(each.event, sort_keys=True)): (each.event, 1.0)
        for line in (*reserved, *(each for versions in releases for each in versions))
        for each in line.vocabularies
    }
    # Rules bound every unit alike, so their figures add up whoever took part. Runs without
    # rules have only recorded figures, which are added unit by unit.
    by_rules: list[tuple[Release, float]] = [
        (part.release, part.enforced)
        for each in parts
        if _is_enforced(each)
        for part in each
        if part.enforced is not None
    ]
    used = [part.release for each in parts for part in each]
    others = [release for release, _ in (*promises, *words.values())]
    components = components_of([*used, *others])
    found, enforced, promised = (
        total_of(each, components) for each in (words.values(), by_rules, promises)
    )
    charges = [
        charge
        for place, versions in enumerate(releases)
        for charge in _charges_of(window, budget.unit, place, versions, folder)
    ]
    recorded = summed(charges, components).plus(found)
    spent = recorded
    if by_rules:
        rest = [each for each in charges if not _is_enforced(parts[each.place[0]])]
        spent = recorded.beside(summed(rest, components).plus(found + enforced))
    epsilon = spent.plus(promised).epsilon(budget.delta)
    return WindowSpent(
        window=window,
        units=recorded.units,
        respelled=recorded.respelled,
        recorded=recorded.rho,
        spent=spent.rho,
        reserved=Spending(components, promised[None]).rho,
        epsilon=epsilon,
        is_within=epsilon <= budget.epsilon * (1.0 + ROUNDING),
        may_rest_on=all(map(_is_enforced, parts)),
    )


def _charges_of(
    window: str, unit: str, place: int, versions: Sequence[Charged], folder: Path
) -> Iterator[Charge]:
    """Yields the charges of the versions of the release at a place."""
    # The ids of another version may be those of one unit.
    by_name = all(each.are_distinct for each in versions)
    for each in versions:
        for number, part in enumerate(each.windows[window]):
            units = read_units(folder, unit, part)
            yield Charge((place, number), part.release, *units, by_name)


def _is_enforced(parts: Sequence[Spent]) -> bool:
    return all(each.enforced is not None for each in parts)
