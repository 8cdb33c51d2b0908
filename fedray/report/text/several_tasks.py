"""Runs of several tasks in the terminal: the tasks side by side, and what devices spent over all of
them."""

from collections.abc import Iterator, Mapping
from typing import Any

from fedray.base.rounding import given, shown_min_sep, up
from fedray.report.text import Paragraph, Piece, TextTable
from fedray.report.text.audits import audit_text


def tasks_text(document: Mapping[str, Any]) -> Iterator[Piece]:
    """The audit of every task, the tasks side by side, and their composition.

    Args:
        document: as `TasksAudit.to_json` gives it.
    """
    for name, audit in document["tasks"].items():
        yield f"Task {name}"
        yield from audit_text(audit)
        yield ""
    yield TextTable("The tasks", task_rows(document))
    for name in document["without_rounds"]:
        yield Paragraph("", f"Task {name} committed no round, so it released nothing.")
    yield from composition_text(document["composition"])
    for each in document["assumptions"]:
        yield Paragraph("  * ", each)


def composition_text(composition: Mapping[str, Any]) -> Iterator[Piece]:
    """What devices spent over all tasks.

    Args:
        composition: as `Composition.to_json` gives it.
    """
    title = f"Over all tasks, for one device, delta {given(composition['delta'])}"
    yield TextTable(title, composition_rows(composition))
    title = f"Device {composition['observed']['device']}, which spent most"
    yield TextTable(title, worst_rows(composition))
    yield TextTable(
        "Devices by what they spent over all tasks", spending_rows(composition), has_heading=True
    )
    yield Paragraph("observed  ", f"{composition['observed']['reason']}.")
    yield Paragraph("enforced  ", f"{composition['enforced']['reason']}.")


def task_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """The tasks side by side: a heading, then a row each. Privacy is rounded up.

    Args:
        document: as `TasksAudit.to_json` gives it.
    """
    rows = [["task", "rounds", "devices", "min-sep", "part.", "rho observed", "rho enforced"]]
    for name, audit in document["tasks"].items():
        observed, enforced, _ = audit["guarantees"]
        rows.append(
            [
                name,
                f"{audit['rounds']:,}",
                f"{audit['devices']:,}",
                shown_min_sep(audit["min_sep"]),
                f"{audit['max_participations']:,}",
                up(observed["rho"], 6),
                _rho(enforced["rho"]),
            ]
        )
    return rows


def composition_rows(composition: Mapping[str, Any]) -> list[list[str]]:
    """What one device spent over all tasks at most: a heading, then what was observed, and its two
    upper bounds.

    Args:
        composition: as `Composition.to_json` gives it.
    """
    observed = composition["observed"]
    bound, enforced = composition["sum_of_largest"], composition["enforced"]
    kind = "exact" if observed["is_exact"] else "bound"
    # The sum is known only if every task has an enforced guarantee.
    known = enforced["rho"] is not None
    return [
        ["what", "is", "rho", "epsilon"],
        ["observed, the device that spent most", kind, *_spent(observed)],
        ["sum of each task's largest", "bound", *_spent(bound)],
        [
            "sum of each task's enforced limits",
            "bound" if known else "unknown",
            *(_spent(enforced) if known else ("", "")),
        ],
    ]


def worst_rows(composition: Mapping[str, Any]) -> list[list[str]]:
    """What the device that spent most did in each task: a heading, then a row each.

    Args:
        composition: as `Composition.to_json` gives it.
    """
    largest = composition["sum_of_largest"]["tasks"]
    rows = [["task", "participations", "sensitivity", "rho", "largest rho in the task"]]
    for each in composition["observed"]["tasks"]:
        sensitivity, rho = up(each["sensitivity"], 6), up(each["rho"], 6)
        count = f"{len(each['rounds']):,}"
        rows.append([each["task"], count, sensitivity, rho, up(largest[each["task"]], 6)])
    return rows


def spending_rows(composition: Mapping[str, Any]) -> list[list[str]]:
    """How many devices took part in how many tasks, and rho at a few shares of them: a heading,
    then a row each.

    Args:
        composition: as `Composition.to_json` gives it.
    """
    rows = [["devices", "value"]]
    for tasks, devices in enumerate(composition["devices_by_tasks"], 1):
        rows.append([f"in {tasks} task{'s' if tasks > 1 else ''}", f"{devices:,}"])
    for each in composition["quantiles"]:
        # The document has more shares than a terminal has use for.
        if each["share"] in (0.5, 0.95, 0.99):
            rows.append([f"{100 * each['share']:g} % spent at most rho", up(each["rho"], 6)])
    return [*rows, ["mean rho", up(composition["mean_rho"], 6)]]


def _spent(each: Mapping[str, Any]) -> tuple[str, str]:
    return up(each["rho"], 6), up(each["epsilon"])


def _rho(value: float | None) -> str:
    return "-" if value is None else up(value, 6)
