"""The page of a run of several tasks: what devices spent over all of them."""

import numpy as np

from fedray.audit.several_tasks import ASSUMPTIONS, TasksAudit
from fedray.report.audits import tasks_tables
from fedray.report.figure import Axis, Figure, Series, Shown, needs_log
from fedray.report.page import render_study


def tasks_page(audit: TasksAudit) -> str:
    """Returns the page of a run's audit."""
    return render_study(
        f"Several tasks: {audit.path.name}",
        f"{len(audit.audits)} tasks on one population; {audit.composition.devices:,} devices took "
        "part in at least one. Each task has a page of its own.",
        tasks_figures(audit),
        tasks_tables(audit),
        audit.to_json(),
        ASSUMPTIONS,
    )


def tasks_figures(audit: TasksAudit) -> list[Shown]:
    """Figures of the page of an `audit`: privacy of the devices in each task and over all."""
    curves = audit.composition.curves
    # The empty name stands for all tasks together.
    steps = len(curves[""])
    shares = np.linspace(0.0, 100.0, steps + 1)
    rhos = {name or "all tasks together": np.array(curve) for name, curve in curves.items()}
    kind = "" if audit.composition.is_exact else " Some devices' values are upper bounds."
    return [
        Figure(
            "devices",
            "What the devices got",
            "Devices that took part, from the least rho to the largest: so many per cent of them "
            "have at most this rho. A task's line is of the devices that took part in it." + kind,
            Axis("Devices (%)"),
            Axis("rho (zCDP)", needs_log(list(rhos.values())), decimals=6),
            tuple(
                Series(name, "steps", shares[:-1], values, shares[1:])
                for name, values in rhos.items()
            ),
        )
    ]
