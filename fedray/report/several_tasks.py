"""The page of a run of several tasks: the privacy that devices spent over all of them."""

from fedray.audit.basis import weak_text
from fedray.audit.several_tasks import ASSUMPTIONS, TasksAudit
from fedray.base.rounding import given, up
from fedray.report.figure import Figure
from fedray.report.figures import spent_figure
from fedray.report.page import render_study


def tasks_page(audit: TasksAudit) -> str:
    """Returns the page of a run's audit."""
    found, enforced = audit.composition, audit.composition.enforced_epsilon
    shown = "unknown" if enforced is None else up(enforced)
    return render_study(
        f"Several tasks: {audit.path.name}",
        f"{len(audit.audits)} tasks on one population; {found.devices:,} devices took part in at "
        "least one. Each task has a page of its own.",
        audit.figures(),
        audit.tables(),
        audit.to_json(),
        ASSUMPTIONS,
        verdict=f"Enforced epsilon of a device over all tasks: {shown} at delta "
        f"{given(found.delta)}; {found.enforced_reason}. The device "
        f"that spent most has epsilon {'' if found.is_exact else 'at most '}{up(found.epsilon)} "
        f"(observed). {weak_text(enforced, found.epsilon)}".rstrip(),
    )


def tasks_figures(audit: TasksAudit) -> list[Figure]:
    """Returns the privacy of the devices in each task and over all tasks."""
    composition = audit.composition
    # The empty name stands for all tasks together.
    curves = {name or "all tasks together": curve for name, curve in composition.curves.items()}
    note = " A task's line is of the devices that took part in it."
    return [spent_figure(curves, composition.is_exact, note)]
